//! Which migration `--resume` means.

use std::path::{Path, PathBuf};

use hikkoshi_link::Address;
use hikkoshi_qemu::{FindProcessError, GuestState, QemuIdentity, QmpListener};

use crate::args::Common;
use crate::journal::{self, Entry, JournalFile, SourceEntry};
use crate::output::exit::{Exit, Status};
use crate::output::reason::{Holder, Reason};

/// The QMP socket.
pub fn qmp(common: &Common) -> Result<&Path, Exit> {
    common.qmp.as_deref().ok_or_else(|| {
        // Clap asks for it.
        Exit::new(Status::Usage, Reason::Usage, "--qmp PATH is missing")
    })
}

/// Whether `given` is on the host of `recorded`, by the same name, or is not given.
///
/// `--plaintext` in a journal holds for that host only: the path to another host may lead through
/// networks that the user does not trust. Another port of the same host has the same path.
pub fn is_same_host(given: Option<&Address>, recorded: &Address) -> bool {
    given.is_none_or(|given| {
        journal::absolute_address(given) == *recorded
            || (recorded.host().is_some() && recorded.host() == given.host())
    })
}

/// Takes hold of the journal in `file`, or the one that `--qmp` and
/// `--journal` lead to.
pub fn find<E: Entry>(common: &Common, file: Option<&Path>) -> Result<(JournalFile, E), Exit> {
    let cannot = |error: &dyn std::fmt::Display| {
        Exit::new(
            Status::Usage,
            Reason::Journal,
            format!("reading the journal: {error}"),
        )
    };
    let path = match file {
        Some(path) => path.to_owned(),
        None => search::<E>(common)?,
    };
    if !path.exists() {
        return Err(nothing::<E>(
            common,
            &format!("there is no journal at {}", path.display()),
        ));
    }
    let page = JournalFile::lock(&path).map_err(|error| cannot(&error))?;
    match page.read().map_err(|error| cannot(&error))? {
        Some(entry) => Ok((page, entry)),
        None => {
            let what = format!("the journal at {} has just been removed", path.display());
            Err(nothing::<E>(common, &what))
        }
    }
}

fn search<E: Entry>(common: &Common) -> Result<PathBuf, Exit> {
    let folder = journal::folder(common.journal.as_deref());
    let found = journal::find::<E>(&folder, common.qmp.as_deref()).map_err(|error| {
        Exit::new(
            Status::Usage,
            Reason::Journal,
            format!("looking for a migration to go on with: {error}"),
        )
    })?;
    let found = match &common.qmp {
        None => found,
        Some(qmp) => found
            .into_iter()
            .filter(|(_, entry)| may_listen(qmp, entry.identity()))
            .collect(),
    };
    // Those whose QEMU has ended are only to be looked at, unless there are no
    // others.
    let lives = |(_, entry): &(PathBuf, E)| may_live(entry.identity()).unwrap_or(true);
    let (living, dead): (Vec<_>, Vec<_>) = found.into_iter().partition(lives);
    let found = if living.is_empty() { dead } else { living };
    match &found[..] {
        [] => {
            let what = format!(
                "there is no journal of an unfinished migration ({}) in {}",
                E::SIDE,
                folder.display()
            );
            Err(nothing::<E>(common, &what))
        }
        [(path, _)] => Ok(path.clone()),
        _ => {
            let all = found.iter().map(|(path, entry)| {
                format!(
                    "--resume={} ({})",
                    quoted(path),
                    entry.identity().qmp.display()
                )
            });
            let all = all.collect::<Vec<_>>().join(", ");
            let what = format!("there are several to go on with: {all}");
            Err(Exit::new(Status::Usage, Reason::JournalAmbiguous, what).with("name one of them"))
        }
    }
}

/// Whether the QEMU that a journal names may be the one behind the socket `qmp`: it
/// has to be the process that listens there now. Where nobody listens it may be any
/// that has ended.
pub fn may_listen(qmp: &Path, place: &QemuIdentity) -> bool {
    let listener = match QmpListener::at(qmp) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::debug!(%error, "looking who listens at the QMP socket");
            return true;
        }
    };
    match listener {
        QmpListener::Process(pid) => pid == place.pid && may_live(place).unwrap_or(true),
        // It cannot be seen from here, or does not answer: it lives.
        QmpListener::Unknown => may_live(place).unwrap_or(true),
        QmpListener::None => true,
    }
}

/// There is nothing to resume: says who has the guest, as far as QEMU tells.
fn nothing<E: Entry>(common: &Common, what: &str) -> Exit {
    let asked = match &common.qmp {
        Some(qmp) => GuestState::query(qmp),
        None => Err("which QEMU is meant was not said: name it with --qmp".to_owned()),
    };
    let there = match asked {
        Ok(there) => there,
        Err(why) => {
            let next = format!(
                "whether the guest was handed over cannot be told from here ({why}). Nothing was \
                 changed"
            );
            return Exit::new(Status::Usage, Reason::NoJournal, what).with(next);
        }
    };
    let (status, holder, next) = if E::COMMAND == SourceEntry::COMMAND {
        source_there(&there)
    } else {
        destination_there(&there)
    };
    Exit::new(status, Reason::NoJournal, what)
        .with(next)
        .held_by(holder)
}

/// Who has the guest of a source that has no journal.
fn source_there(there: &GuestState) -> (Status, Holder, String) {
    let state = &there.state;
    match state.as_str() {
        _ if there.running => (
            Status::AtSource,
            Holder::Source,
            "the guest runs here: nothing is left to be resumed".to_owned(),
        ),
        "paused" | "prelaunch" | "suspended" | "io-error" | "debug" | "guest-panicked"
        | "internal-error" | "shutdown" | "watchdog" => (
            Status::AtSource,
            Holder::Source,
            format!("the guest is here (its state is {state}): nothing is left to be resumed"),
        ),
        _ => (
            Status::Paused,
            Holder::Unknown,
            format!(
                "QEMU's state is {state}: its guest was moved or saved before, by hikkoshi or by \
                 another program. Never continue it here unless you know that it runs nowhere \
                 else; 'query-status' at the destination's QEMU says whether it runs there. If a \
                 journal was kept elsewhere, name its folder with --journal"
            ),
        ),
    }
}

/// Who has the guest of a destination that has no journal.
fn destination_there(there: &GuestState) -> (Status, Holder, String) {
    let state = &there.state;
    if there.misses_pages {
        let next = "the guest was handed over to this QEMU, and pages of it are missing: its \
                    journal is elsewhere. Name its folder with --journal";
        return (Status::Paused, Holder::Destination, next.to_owned());
    }
    match state.as_str() {
        "inmigrate" => (
            Status::AtSource,
            Holder::Source,
            "this QEMU waits for a guest: none was handed over to it".to_owned(),
        ),
        _ if there.running => (
            Status::Moved,
            Holder::Destination,
            "the guest runs here, with all of its pages: nothing is left to be resumed".to_owned(),
        ),
        _ => (
            Status::Paused,
            Holder::Unknown,
            format!(
                "QEMU's state is {state}, and no page of it is missing: either its guest arrived \
                 paused, or its migration was called off before it ran here. 'hikkoshi migrate \
                 --resume' at the source says which"
            ),
        ),
    }
}

/// Whether what a journal tells of may be a QEMU that is there still: one that
/// was found here, on this boot of this machine.
pub fn may_live(place: &QemuIdentity) -> Result<bool, FindProcessError> {
    match place.process() {
        Ok(process) => Ok(process.is_some()),
        Err(FindProcessError::AnotherBoot { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What there is besides going on, for whoever has nobody to go on with.
pub const GIVE_UP: &str = "(If the other side is lost for good, --give-up with the command below \
                           says what that means.)";

/// It cannot be gone on with now.
pub fn cannot<E: Entry>(reason: Reason, error: &dyn std::fmt::Display, journal: &Path) -> Exit {
    let again = command::<E>(journal);
    let next =
        format!("nothing was changed, and the journal is as it was. Once that is mended: {again}");
    Exit::new(Status::Paused, reason, error)
        .with(next)
        .resumed_by(again)
}

/// The command that goes on with what `journal` tells of: what else it takes is
/// written there.
pub fn command<E: Entry>(journal: &Path) -> String {
    format!("hikkoshi {} --resume={}", E::COMMAND, quoted(journal))
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_is_the_same_host() {
        let address = |text: &str| text.parse::<Address>().unwrap();
        let is_same =
            |given: &str, recorded: &str| is_same_host(Some(&address(given)), &address(recorded));
        assert!(is_same_host(None, &address("h:1")));
        assert!(is_same("h:1", "h:1") && is_same("h:2", "h:1"));
        assert!(is_same("unix:/s", "unix:/s"));
        for (given, recorded) in [
            ("other:1", "h:1"),
            ("unix:/s", "unix:/t"),
            ("unix:/s", "h:1"),
            ("h:1", "unix:/s"),
        ] {
            assert!(!is_same(given, recorded), "{given} {recorded}");
        }
    }

    #[test]
    fn paths_are_quoted_where_a_shell_wants_it() {
        for (path, expected) in [
            ("/run/hikkoshi/a.json", "/run/hikkoshi/a.json"),
            ("/a b", "'/a b'"),
            ("/it's", "'/it'\\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }
}
