//! `hikkoshi status`: the migrations of this host.

mod seen;
mod select;
mod terminal;
mod unfinished;

use std::thread;
use std::time::Duration;

use hikkoshi_status::StatusFolder;

use crate::args::MigrationStatus;
use crate::output::colours::Colour;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::migrations::{Seen, alarms, details, json_line, table};
use crate::output::reason::Reason;
use crate::output::streams::{self, Lines};

pub(crate) use seen::SeenMigrations;
pub(crate) use select::{Choice, choose, is_meant, is_named};

/// How often it is repeated.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &MigrationStatus) -> Result<ExitStatus, Exit> {
    let run_folder = args.migration.run_folder();
    let folder = StatusFolder::in_run_folder(&run_folder);
    let guest = args.migration.guest.as_deref();
    let mut migrations = SeenMigrations::new(folder);
    let mut is_first = true;
    loop {
        // A migration that is named may have ended.
        let unfinished = unfinished::find(&run_folder);
        let all = migrations.look_with(args.all || guest.is_some(), unfinished)?;
        let meant: Vec<&Seen> = all
            .iter()
            .filter(|seen| guest.is_none_or(|guest| is_meant(seen, guest)))
            .collect();
        if let (Some(guest), true) = (guest, meant.is_empty()) {
            return Err(none(guest));
        }
        if args.json {
            meant
                .iter()
                .for_each(|seen| streams::to_stdout(&json_line(seen)));
        } else {
            let size = terminal::size();
            let mut lines = match guest {
                Some(_) => details(&meant),
                None => table(&meant, size.map(|size| size.columns)),
            };
            let alarms = alarms(&meant);
            if !alarms.is_empty() && guest.is_none() {
                lines.push(Lines::new(Colour::Plain, ""));
                let alarms = alarms.into_iter();
                lines.extend(alarms.map(|line| Lines::new(Colour::Alarm, line)));
            }
            match size.filter(|_| args.watch) {
                Some(size) => streams::draw_on_stdout(&lines, size.columns, size.rows, is_first),
                None => {
                    if !is_first {
                        streams::to_stdout("\n");
                    }
                    streams::lines_to_stdout(&lines);
                }
            }
        }
        let has_ended = guest.is_some() && !meant.iter().any(|seen| seen.is_running());
        if !args.watch || has_ended {
            let is_finished = meant.iter().all(|seen| seen.unfinished.is_none());
            return Ok(match is_finished {
                true => ExitStatus::Done,
                false => ExitStatus::Unfinished,
            });
        }
        is_first = false;
        thread::sleep(PERIOD);
    }
}

/// There is no such migration.
pub(crate) fn none(guest: &str) -> Exit {
    let what = format!("there is no migration of {guest:?} on this host");
    Exit::new(ExitStatus::Usage, Reason::Usage, what).with(
        "`hikkoshi status --all` lists those there are; --journal names another folder, if \
         `hikkoshi migrate` was given one",
    )
}
