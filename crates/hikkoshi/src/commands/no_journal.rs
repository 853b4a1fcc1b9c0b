//! `--resume` without a journal: QEMU is asked who has the guest.

use error_reporter::Report;
use hikkoshi_qemu::{GuestState, LastMigration, MOVED_STATE};

use crate::args::{DomainOptions, NamedGuest};
use crate::commands::monitor;
use crate::journal::{JournalEntry, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};

/// There is nothing to resume, because of `what`.
pub(super) fn no_journal<E: JournalEntry>(guest: Option<&NamedGuest>, what: &str) -> Exit {
    let state = match guest.map(|guest| monitor::find(guest, &DomainOptions::default())) {
        Some(Ok(monitor)) => GuestState::query(&*monitor),
        Some(Err(error)) => Err(Report::new(&error).to_string()),
        None => Err("name the guest with --qmp or --domain".to_owned()),
    };
    let state = match state {
        Ok(state) => state,
        Err(why) => {
            let next = format!(
                "hikkoshi cannot find out whether the guest was handed over ({why}). Nothing was \
                 changed"
            );
            return Exit::new(ExitStatus::Usage, Reason::NoJournal, what).with(next);
        }
    };
    let (status, holder, next) = if E::COMMAND == SourceEntry::COMMAND {
        at_source(&state)
    } else {
        at_destination(&state)
    };
    Exit::new(status, Reason::NoJournal, what)
        .with(next)
        .held_by(holder)
}

/// Who has the guest of a source without a journal.
fn at_source(guest: &GuestState) -> (ExitStatus, Holder, String) {
    let state = &guest.state;
    match state.as_str() {
        _ if guest.running => (
            ExitStatus::AtSource,
            Holder::Source,
            "the guest runs here: there is nothing to resume".to_owned(),
        ),
        "paused" | "prelaunch" | "suspended" | "io-error" | "debug" | "guest-panicked"
        | "internal-error" | "shutdown" | "watchdog" => (
            ExitStatus::AtSource,
            Holder::Source,
            format!("the guest is here (its state is {state}): there is nothing to resume"),
        ),
        MOVED_STATE => (
            ExitStatus::Moved,
            Holder::Destination,
            "the guest has moved to its destination, which needs nothing more from here: there is \
             nothing to resume. Never continue it here, and end this QEMU (QMP command 'quit')"
                .to_owned(),
        ),
        _ => (
            ExitStatus::Unfinished,
            Holder::Unknown,
            format!(
                "QEMU's state is {state}: the guest was migrated or saved before, by hikkoshi or \
                 by another program. Never continue it here unless you know that it runs nowhere \
                 else; 'query-status' in the destination's QEMU shows whether it runs there. If \
                 the journal is in another folder, name it with --journal"
            ),
        ),
    }
}

/// Who has the guest of a destination without a journal.
fn at_destination(guest: &GuestState) -> (ExitStatus, Holder, String) {
    let state = &guest.state;
    let named = "The journal is in another folder: name it with --journal";
    match state.as_str() {
        // QEMU leaves this state when it has loaded a guest. Memory that was only written to, and
        // what answers faults later, do not change it.
        "inmigrate" if guest.migration == LastMigration::InProgress => (
            ExitStatus::Unfinished,
            Holder::Undecided,
            "a guest is being loaded into this QEMU, and has not run here. The program that sends it \
             decides where it runs"
                .to_owned(),
        ),
        "inmigrate" if guest.has_userfault || guest.migration == LastMigration::Over => (
            ExitStatus::AtSource,
            Holder::Source,
            "no guest was handed over to this QEMU: a part of one was written to its memory, and \
             it has never run here. Restart this QEMU before the next try"
                .to_owned(),
        ),
        "inmigrate" => (
            ExitStatus::AtSource,
            Holder::Source,
            "this QEMU waits for a guest: none was handed over to it".to_owned(),
        ),
        _ if guest.has_userfault && guest.running => (
            ExitStatus::Unfinished,
            Holder::Destination,
            format!("the guest runs here, and some of its pages may be missing. {named}"),
        ),
        _ if guest.has_userfault => (
            ExitStatus::Unfinished,
            Holder::Undecided,
            format!(
                "a guest was loaded here, and some of its pages may be missing: it may have been \
                 handed over to this QEMU. {named}"
            ),
        ),
        _ if guest.running => (
            ExitStatus::Moved,
            Holder::Destination,
            "the guest runs here, with all of its pages: there is nothing to resume".to_owned(),
        ),
        // A guest is only moved if it runs or is paused, so it has run here.
        "shutdown" => (
            ExitStatus::ShutDown,
            Holder::Nobody,
            "the guest has run here and has shut down: there is nothing to resume".to_owned(),
        ),
        "io-error" | "guest-panicked" | "internal-error" | "watchdog" => (
            ExitStatus::Moved,
            Holder::Destination,
            format!(
                "the guest is here, with all of its pages, and has run here (its state is \
                 {state}): there is nothing to resume"
            ),
        ),
        _ => (
            ExitStatus::Unfinished,
            Holder::Unknown,
            format!(
                "QEMU's state is {state}, and no page is missing: either the guest arrived \
                 paused, or its migration was cancelled before it ran here. 'hikkoshi migrate \
                 --resume' at the source shows which"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(state: &str, has_userfault: bool, migration: LastMigration) -> GuestState {
        GuestState {
            state: state.to_owned(),
            running: state == "running",
            has_userfault,
            migration,
        }
    }

    /// Memory is written, and a userfaultfd created, long before a guest is loaded.
    #[test]
    fn a_qemu_that_was_only_written_to_has_no_guest() {
        use LastMigration::{InProgress, None, Over};
        for (has_userfault, migration, text) in [
            (
                false,
                None,
                "this QEMU waits for a guest: none was handed over",
            ),
            (true, None, "no guest was handed over to this QEMU"),
            (true, Over, "Restart this QEMU before the next try"),
            (false, Over, "Restart this QEMU before the next try"),
        ] {
            let (status, holder, next) =
                at_destination(&destination("inmigrate", has_userfault, migration));
            assert_eq!(status, ExitStatus::AtSource, "{next}");
            assert_eq!(holder, Holder::Source, "{next}");
            assert!(next.contains(text), "{next}");
        }
        let loading = at_destination(&destination("inmigrate", true, InProgress));
        assert_eq!(
            (loading.0, loading.1),
            (ExitStatus::Unfinished, Holder::Undecided)
        );
    }

    #[test]
    fn a_qemu_that_has_loaded_a_guest_may_have_it() {
        let runs = at_destination(&destination("running", true, LastMigration::Over));
        assert_eq!(
            (runs.0, runs.1),
            (ExitStatus::Unfinished, Holder::Destination)
        );
        let paused = at_destination(&destination("paused", true, LastMigration::Over));
        assert_eq!(
            (paused.0, paused.1),
            (ExitStatus::Unfinished, Holder::Undecided)
        );
        let whole = at_destination(&destination("running", false, LastMigration::Over));
        assert_eq!((whole.0, whole.1), (ExitStatus::Moved, Holder::Destination));
        let unknown = at_destination(&destination("paused", false, LastMigration::Over));
        assert_eq!(
            (unknown.0, unknown.1),
            (ExitStatus::Unfinished, Holder::Unknown)
        );
    }

    #[test]
    fn a_guest_that_has_run_here_was_handed_over() {
        for (state, status, holder, text) in [
            (
                "shutdown",
                ExitStatus::ShutDown,
                Holder::Nobody,
                "has run here and has shut down: there is nothing to resume",
            ),
            (
                "io-error",
                ExitStatus::Moved,
                Holder::Destination,
                "has run here (its state is io-error): there is nothing to resume",
            ),
        ] {
            let ended = at_destination(&destination(state, false, LastMigration::Over));
            assert_eq!((ended.0, ended.1), (status, holder), "{state}");
            assert!(ended.2.contains(text), "{}", ended.2);
        }
    }

    /// It may have shut down at its destination.
    #[test]
    fn a_guest_that_has_moved_is_not_said_to_be_anywhere() {
        let moved = at_source(&destination(MOVED_STATE, false, LastMigration::None));
        assert_eq!(moved.0, ExitStatus::Moved);
        assert!(
            moved.2.contains("needs nothing more from here"),
            "{}",
            moved.2
        );
    }
}
