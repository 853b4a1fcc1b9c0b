//! `hikkoshi status`: the migrations of this host, or of others.

mod hosts;
mod seen;
mod select;
mod terminal;
pub(in crate::commands) mod unfinished;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use hikkoshi_status::StatusFolder;

use crate::args::MigrationStatus;
use crate::output::colours::Colour;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::status::{SeenMigration, alarms, details, json_line, table};
use crate::output::streams::{self, Lines};

pub(crate) use hosts::are_hosts_named;
pub(crate) use seen::SeenMigrations;
pub(crate) use select::{Choice, choose, is_meant, is_named};

/// How often it is repeated.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &MigrationStatus) -> Result<ExitStatus, Exit> {
    if are_hosts_named(&args.others)? {
        return hosts::run(args);
    }
    let run_folder = args.migration.run_folder();
    let folder = StatusFolder::in_run_folder(&run_folder);
    let guest = args.migration.guest.as_deref();
    let mut migrations = SeenMigrations::new(folder);
    let mut is_first = true;
    let mut reported = BTreeSet::new();
    loop {
        // A migration that is named may have ended.
        let unfinished = unfinished::find(&run_folder);
        for (path, what) in &unfinished.unreadable {
            if reported.insert(path.clone()) {
                streams::notice(what);
            }
        }
        let is_known = unfinished.unreadable.is_empty();
        let all = migrations.look_with(args.all || guest.is_some(), unfinished.migrations)?;
        let meant: Vec<&SeenMigration> = all
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
            let lines = match guest {
                Some(_) => details(&meant),
                None => {
                    // What was drawn covers the notices.
                    let unreadable = unfinished.unreadable.into_values();
                    let unreadable = unreadable.filter(|_| args.watch && size.is_some());
                    let alarms = unreadable.chain(alarms(&meant)).collect();
                    with_alarms(alarms, table(&meant, size.map(|size| size.columns)))
                }
            };
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
            let is_finished = is_known && meant.iter().all(|seen| seen.unfinished.is_none());
            return Ok(match is_finished {
                true => ExitStatus::Done,
                false => ExitStatus::Unfinished,
            });
        }
        is_first = false;
        thread::sleep(PERIOD);
    }
}

/// The alarms before the table, of which the end is cut off if the terminal has too few lines.
fn with_alarms(alarms: Vec<String>, table: Vec<Lines>) -> Vec<Lines> {
    if alarms.is_empty() {
        return table;
    }
    let alarms = alarms
        .into_iter()
        .map(|line| Lines::new(Colour::Alarm, line));
    let gap = Lines::new(Colour::Plain, "");
    alarms.chain([gap]).chain(table).collect()
}

/// There is no such migration.
pub(crate) fn none(guest: &str) -> Exit {
    let what = format!("there is no migration of {guest:?} on this host");
    Exit::new(ExitStatus::Usage, Reason::Usage, what).with(
        "`hikkoshi status --all` lists those there are; --journal names another folder, if \
         `hikkoshi migrate` was given one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_come_first() {
        let table = || vec![Lines::new(Colour::Heading, "GUEST")];
        let texts = |lines: Vec<Lines>| {
            let texts = lines.into_iter().map(|line| (line.colour, line.text));
            texts.collect::<Vec<_>>()
        };
        let heading = (Colour::Heading, "GUEST".to_owned());
        let unchanged = texts(with_alarms(Vec::new(), table()));
        assert_eq!(unchanged, std::slice::from_ref(&heading));
        assert_eq!(
            texts(with_alarms(vec!["web: NO LINK".into()], table())),
            [
                (Colour::Alarm, "web: NO LINK".to_owned()),
                (Colour::Plain, String::new()),
                heading
            ]
        );
    }
}
