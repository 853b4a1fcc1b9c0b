//! `--resume` without a journal: QEMU is asked who has the guest.

use error_reporter::Report;
use hikkoshi_qemu::GuestState;

use crate::args::DomainOptions;
use crate::commands::monitor::NamedGuest;
use crate::journal::{Entry, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};

/// There is nothing to resume, because of `what`.
pub(super) fn no_journal<E: Entry>(guest: Option<&NamedGuest>, what: &str) -> Exit {
    let state = match guest.map(|guest| guest.monitor(&DomainOptions::default())) {
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
    if guest.misses_pages {
        let next = "the guest was handed over to this QEMU, and some of its pages are missing. \
                    The journal is in another folder: name it with --journal";
        return (ExitStatus::Unfinished, Holder::Destination, next.to_owned());
    }
    match state.as_str() {
        "inmigrate" => (
            ExitStatus::AtSource,
            Holder::Source,
            "this QEMU waits for a guest: none was handed over to it".to_owned(),
        ),
        _ if guest.running => (
            ExitStatus::Moved,
            Holder::Destination,
            "the guest runs here, with all of its pages: there is nothing to resume".to_owned(),
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
