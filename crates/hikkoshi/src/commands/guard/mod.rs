//! `hikkoshi guard`: restores the guest if `hikkoshi migrate` is killed.
//!
//! A `hikkoshi migrate` that is killed between stopping the guest and *commit* would leave the
//! guest stopped. Therefore a second process holds the reading end of a pipe, of which only
//! `migrate` has the writing end. When the pipe ends, the guard reads the journal. If the guest is
//! still the source's, the guard lets it run again and restores QEMU's settings. If *commit* may
//! have been sent, which is recorded before, the guard leaves the guest alone and reports how to
//! resume. After the end of a migration there is no journal.
//!
//! RAM that is a file without a name (a memfd) exists as long as a process has it open. So the
//! guard opens such files when it starts, and holds them as long as there is a journal: the
//! source's QEMU may end while no engine runs. The engine that resumes the migration finds them
//! there.
//!
//! A service manager that ends what is left of a unit signals the guard, too, just when it is
//! needed. So it ends by the pipe only, and SIGTERM, SIGINT and SIGHUP do nothing.
//!
//! ```text
//! migrate ◀── "ready" ── guard
//!         ── ("over") ─▶         written by a `migrate` that ends normally
//!         ── (end) ────▶         reads the journal
//! ```

mod handle;
mod held_files;
mod messages;
mod restore;

use std::io::{self, Read, Write};
use std::path::Path;

use error_reporter::Report;
use hikkoshi_handover::SourceStage;
use hikkoshi_qemu::UndoOutcome;

use crate::args::Guard as Args;
use crate::commands::resume_command::resume_command;
use crate::commands::signals;
use crate::journal::{JournalFile, LockHolder, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::output::{stderr, streams};

use messages::{MAX_MESSAGE, OVER, READY};

pub(crate) use handle::GuardProcess;
use held_files::HeldFiles;
pub(crate) use restore::{is_complete, restore};

const INTERRUPTED: &str = "'hikkoshi migrate' was interrupted";

/// The guard process.
pub(crate) fn run(args: &Args) -> Result<ExitStatus, Exit> {
    signals::ignore_signals()?;
    let held = HeldFiles::open(&args.hold);
    // If the parent does not read this it has ended, and the next read shows that.
    let _ = writeln!(io::stdout(), "{READY}");
    let journal = &args.journal;
    let killed = was_killed(&mut io::stdin())
        .map_err(|error| failed(journal, "watching hikkoshi migrate", &error))?;
    let doing = "reading what to restore";
    // Checked before locking, which would create a lock file.
    if !journal.exists() {
        return Ok(ExitStatus::Done);
    }
    let file = match JournalFile::lock(journal) {
        Ok(file) => file,
        // Another process continues the migration.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ExitStatus::Done),
        Err(error) => return Err(failed(journal, doing, &error)),
    };
    let entry = file.read::<SourceEntry>();
    let Some(entry) = entry.map_err(|error| failed(journal, doing, &error))? else {
        return Ok(ExitStatus::Done);
    };
    if entry.engine.stage == SourceStage::Done {
        // No page is needed any more.
        return if killed {
            Err(only_qemu_is_left(journal))
        } else {
            Ok(ExitStatus::Done)
        };
    }
    if entry.engine.stage != SourceStage::Owned {
        if killed {
            let exit = handed_over(journal);
            if held.is_empty() {
                return Err(exit);
            }
            streams::failure(&exit);
        }
        // The lock is for the engine that resumes the migration.
        drop(file);
        // Before standard error is closed.
        stderr::at_end();
        held.hold(journal);
        return Ok(ExitStatus::Unfinished);
    }
    file.mark(LockHolder::Guard);
    let outcome = restore(&file, &entry).map_err(|error| {
        let doing = "restoring the guest after its migration was interrupted";
        failed(journal, doing, &error)
    })?;
    Err(restored(journal, &entry, &outcome))
}

/// The guest could not be restored.
fn failed(journal: &Path, doing: &str, error: &dyn std::error::Error) -> Exit {
    let what = format!("guard: {doing}: {}", Report::new(error));
    let again = resume_command::<SourceEntry>(journal);
    Exit::new(ExitStatus::Unfinished, Reason::Interrupted, what)
        .with(format!(
            "the guest may be paused at the source. When the cause is removed, this command lets \
             it run again, or continues the migration if it was handed over: {again}"
        ))
        .resumed_by(again)
}

/// The source's QEMU has ended, and why, if that is known.
pub(super) fn qemu_ended(why: Option<&str>) -> String {
    let ended = "the source's QEMU has ended, and the guest with it";
    match why {
        Some(why) => format!("{ended}: {why}"),
        None => ended.to_owned(),
    }
}

/// The migration was undone.
fn restored(journal: &Path, entry: &SourceEntry, outcome: &UndoOutcome) -> Exit {
    let ended = |what: &str| {
        let what = format!("{INTERRUPTED}: {what}");
        Exit::new(ExitStatus::AtSource, Reason::Interrupted, what)
    };
    let was_stopped = entry.qemu.undo.stopped == Some(true);
    match outcome {
        UndoOutcome::QemuExited => {
            let why = entry.qemu.why_ended();
            ended(&qemu_ended(why.as_deref())).held_by(Holder::Nobody)
        }
        UndoOutcome::Restored { state } if state == "running" => {
            ended("the guest runs at the source")
        }
        UndoOutcome::Restored { state } if was_stopped => {
            let again = resume_command::<SourceEntry>(journal);
            let what = format!(
                "the guest is at the source, in QEMU's state '{state}'. To resume it: \
                 {again}"
            );
            ended(&what).resumed_by(again)
        }
        UndoOutcome::Restored { state } => ended(&format!(
            "the guest is at the source, in QEMU's state '{state}'"
        )),
    }
}

/// The destination has every page. The journal exists for `--quit-source`.
fn only_qemu_is_left(journal: &Path) -> Exit {
    let again = resume_command::<SourceEntry>(journal);
    let what = format!(
        "{INTERRUPTED} after the guest had been moved: it is at the destination, with all of its \
         pages. Only the source's QEMU was perhaps not ended; this command ends it: {again}"
    );
    Exit::new(ExitStatus::Moved, Reason::Interrupted, what).resumed_by(again)
}

fn handed_over(journal: &Path) -> Exit {
    let again = resume_command::<SourceEntry>(journal);
    let what = format!(
        "{INTERRUPTED}: the guest was handed over, or may have been: never continue it here by \
         hand. No data is lost. To resume, start 'hikkoshi receive --resume' at the destination \
         unless it is running there, and here: {again}"
    );
    Exit::new(ExitStatus::Unfinished, Reason::Interrupted, what).resumed_by(again)
}

/// Waits until the other program ends; whether it was killed.
fn was_killed(pipe: &mut impl Read) -> io::Result<bool> {
    let mut message = Vec::new();
    let longest = u64::try_from(MAX_MESSAGE).unwrap_or(u64::MAX);
    pipe.take(longest).read_to_end(&mut message)?;
    io::copy(pipe, &mut io::sink())?;
    Ok(message != OVER.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing has to be resumed at the destination then.
    #[test]
    fn an_engine_that_was_killed_when_all_was_there_leaves_its_qemu_only() {
        let exit = only_qemu_is_left(Path::new("/j/source-1.json"));
        assert_eq!(exit.status(), ExitStatus::Moved);
        let text = format!("{exit:?}");
        assert!(text.contains("with all of its pages"), "{text}");
        assert!(text.contains("hikkoshi migrate --resume="), "{text}");
        assert!(!text.contains("receive"), "{text}");
    }

    #[test]
    fn only_the_message_of_a_normal_end_counts() {
        assert!(!was_killed(&mut &b"over"[..]).unwrap());
        for other in ["", "ov", "overdone"] {
            assert!(was_killed(&mut other.as_bytes()).unwrap(), "{other}");
        }
        assert!(was_killed(&mut [0; 1000].as_slice()).unwrap());
    }
}
