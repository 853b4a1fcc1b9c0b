//! `hikkoshi set`, `switch` and `cancel`: a migration that runs is changed through its control
//! socket.

use std::path::Path;
use std::time::Duration;

use hikkoshi_account::Side;
use hikkoshi_control::{Command, ControlFolder, Outcome, Refusal, Set, send};
use hikkoshi_engine::report::Live;
use hikkoshi_linux::is_served;
use hikkoshi_status::StatusFolder;

use crate::args::{Cancel, RunningMigration, SetLimits, Switch};
use crate::commands::resume_command::resume_command;
use crate::commands::status::{Choice, SeenMigrations, choose, none};
use crate::journal::{self, DestinationEntry, JournalEntry, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::status::{SeenMigration, table};
use crate::output::streams;
use crate::status::ShownChange;

/// How long the engine may take to answer. Its thread answers at once, unless silent clients keep
/// all of its places for 5 s.
const ANSWER: Duration = Duration::from_secs(20);

/// `hikkoshi set`.
pub(crate) fn set(args: &SetLimits) -> Result<ExitStatus, Exit> {
    let set = Set {
        bandwidth: args.bandwidth.map(|limit| limit.limit),
        max_downtime_ms: args.max_downtime,
    };
    control(&args.migration, Command::Set(set))
}

/// `hikkoshi switch`.
pub(crate) fn switch(args: &Switch) -> Result<ExitStatus, Exit> {
    control(&args.migration, Command::Switch)
}

/// `hikkoshi cancel`.
pub(crate) fn cancel(args: &Cancel) -> Result<ExitStatus, Exit> {
    control(&args.migration, Command::Cancel)
}

/// Sends a command to the migration that is meant, and prints the answer.
fn control(meant: &RunningMigration, command: Command) -> Result<ExitStatus, Exit> {
    let run_folder = meant.run_folder();
    let guest = meant.guest.as_deref();
    let mut migrations = SeenMigrations::new(StatusFolder::in_run_folder(&run_folder));
    let all = migrations.look(guest.is_some())?;
    let folder = ControlFolder::in_run_folder(&run_folder);
    // Whatever is known of its state.
    let is_controlled = |name: &str| {
        let is_name = !name.contains('/');
        is_name && is_served(&folder.socket(name)).unwrap_or(false)
    };
    let (name, guest) = match choose(&all, guest) {
        Choice::Source(seen) => (&*seen.name, &*seen.migration.guest),
        Choice::Ended(seen) | Choice::Killed(seen) if is_controlled(&seen.name) => {
            (&*seen.name, &*seen.migration.guest)
        }
        Choice::Destination(seen) => return Err(at_destination(seen)),
        Choice::Ended(seen) => return Err(ended(seen)),
        Choice::Killed(seen) => return Err(killed(seen, &run_folder)),
        Choice::Several(several) => return Err(ambiguous(&several)),
        Choice::None => match guest {
            Some(name) if is_controlled(name) => (name, name),
            Some(guest) => return Err(none(guest)),
            None => {
                let what = "no migration runs on this host";
                return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what));
            }
        },
    };
    let answer = send(&folder, name, command, ANSWER).map_err(|error| {
        let next = match error.has_ended() {
            true => {
                "it has ended just now, or its engine could not make a control socket (its \
                     messages say so)"
            }
            false if error.has_timed_out() => {
                "its engine runs, and does not answer (is it stopped?): when it continues, it may \
                     still do this. `hikkoshi status` shows that then"
            }
            false => "`hikkoshi status` shows whether it was done",
        };
        Exit::caused(ExitStatus::Usage, Reason::System, &error).with(next)
    })?;
    let done = match answer {
        Outcome::Changed(changed) => ShownChange(&changed).to_string(),
        Outcome::Switching => "pre-copy ends now, and post-copy follows".to_owned(),
        Outcome::Cancelling => {
            "the migration is cancelled: the guest continues at the source".to_owned()
        }
        Outcome::Refused(refusal) => return Err(refused(guest, &refusal)),
    };
    streams::to_stdout(&format!("{guest}: {done}\n"));
    Ok(ExitStatus::Done)
}

/// The migration exists, and is not changed.
fn refused(guest: &str, refusal: &Refusal) -> Exit {
    let what = format!("{guest}: {}", refusal.message);
    Exit::new(ExitStatus::Failed, Reason::Unsupported, what).with("nothing was changed")
}

fn at_destination(seen: &SeenMigration) -> Exit {
    let migration = &seen.migration;
    let what = format!(
        "{}: this host is its destination, and the source decides",
        migration.guest
    );
    let source = match migration.peer.as_str() {
        "" => String::new(),
        peer => format!(" ({peer})"),
    };
    Exit::new(ExitStatus::Failed, Reason::Unsupported, what).with(format!(
        "run this command at the source{source}. Nothing was changed"
    ))
}

fn ended(seen: &SeenMigration) -> Exit {
    let how = match &seen.end {
        Some(end) => format!(": {}", end.message),
        None => String::new(),
    };
    let what = format!("{}: the migration has ended{how}", seen.migration.guest);
    Exit::new(ExitStatus::Failed, Reason::Unsupported, what)
}

/// Its engine was killed. What resumes it is in its journal.
fn killed(seen: &SeenMigration, run_folder: &Path) -> Exit {
    let migration = &seen.migration;
    let what = format!(
        "{}: the engine of this migration (process {}) was killed",
        migration.guest, migration.pid
    );
    let again = match migration.side {
        Side::Source => resume::<SourceEntry>(run_folder, |entry| {
            Live::name_of(&entry.engine.id) == migration.id
        }),
        Side::Destination => resume::<DestinationEntry>(run_folder, |entry| {
            Live::name_of(&entry.engine.id) == migration.id
        }),
    };
    let exit = Exit::new(ExitStatus::Failed, Reason::Unsupported, what);
    match again {
        Some(again) => exit
            .with(format!("nothing was changed. To resume it: {again}"))
            .resumed_by(again),
        None => exit.with(format!(
            "nothing was changed. There is no journal of it in {}, so nothing is left to resume: \
             a guest that was not handed over runs at the source",
            run_folder.display()
        )),
    }
}

/// The command that resumes the migration whose journal `is` this one.
fn resume<E: JournalEntry>(run_folder: &Path, is: impl Fn(&E) -> bool) -> Option<String> {
    let found = journal::find::<E>(run_folder, None).ok()?;
    let (path, _) = found.into_iter().find(|(_, entry)| is(entry))?;
    Some(resume_command::<E>(&path))
}

/// Lists the migrations, and asks for one of them.
fn ambiguous(several: &[&SeenMigration]) -> Exit {
    let rows = table(several, None);
    rows.iter().for_each(|row| streams::notice(&row.text));
    let what = format!("there are {} migrations that run", several.len());
    Exit::new(ExitStatus::Usage, Reason::Usage, what)
        .with("name one of them: by its guest, its process (PID) or its number (ID)")
}
