//! A QEMU with an unfinished migration does not take part in another one. What both sides, and
//! `check`, share.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use error_reporter::Report;
use hikkoshi_qemu::qmp::Monitor;
use hikkoshi_qemu::{FindProcessError, QemuIdentity};

use crate::args::NamedGuest;
use crate::commands::find_journal::{may_exist, may_listen};
use crate::journal::{self, JournalEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Why a guest is not migrated again.
pub(super) const HANDED_OVER: &str =
    "this guest was handed over by an earlier migration, which is not finished";

/// Why a guest that has moved is not migrated again. Its journal exists because its QEMU was to be
/// ended.
pub(super) const MOVED: &str =
    "this guest has moved away and needs nothing more from here; only its QEMU was not ended";

/// The QEMU whose journals are searched for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Searched<'a> {
    /// The one behind this monitor.
    Behind(&'a dyn Monitor),
    /// This process.
    Process(u32),
}

/// A journal whose QEMU may exist or not.
#[derive(Debug)]
pub(super) struct Undecided {
    /// The journal.
    pub path: PathBuf,
    /// Why that cannot be found out.
    pub error: FindProcessError,
}

/// The journals in `folder` of unfinished migrations of that QEMU, if it exists. Nothing is locked.
///
/// # Errors
/// When the folder cannot be searched.
pub(super) fn find<'a, E: JournalEntry + 'a>(
    folder: &Path,
    qemu: Searched<'a>,
) -> io::Result<impl Iterator<Item = Result<(PathBuf, E), Undecided>> + 'a> {
    let guest = match qemu {
        Searched::Behind(monitor) => Some(NamedGuest::at(monitor.address())),
        // It may have had a socket of another name then.
        Searched::Process(_) => None,
    };
    let entries = if journal::is_hidden(folder) {
        // A user without the right to read it cannot attach to QEMU either, which is reported then.
        Vec::new()
    } else {
        journal::find::<E>(folder, guest.as_ref())?
    };
    Ok(entries.into_iter().filter_map(move |(path, entry)| {
        let identity = entry.identity();
        if matches!(qemu, Searched::Process(pid) if pid != identity.pid) {
            return None;
        }
        match may_exist(identity) {
            Ok(exists) => (exists && is_behind(qemu, identity)).then_some(Ok((path, entry))),
            Err(error) => Some(Err(Undecided { path, error })),
        }
    }))
}

fn is_behind(qemu: Searched<'_>, identity: &QemuIdentity) -> bool {
    match qemu {
        Searched::Behind(monitor) => may_listen(monitor, identity),
        Searched::Process(_) => true,
    }
}

/// The folder with the journals cannot be searched. `subject`: what was to be migrated.
pub(super) fn cannot_search(subject: &str, error: &io::Error) -> String {
    format!(
        "looking for an earlier migration {subject}: {}",
        Report::new(error)
    )
}

/// The folder with the journals cannot be searched, which ends the command.
pub(super) fn unreadable(subject: &str) -> impl Fn(io::Error) -> Exit {
    move |error| {
        let what = cannot_search(subject, &error);
        Exit::new(ExitStatus::AtSource, Reason::Journal, what).with("nothing was changed")
    }
}

/// The guest of a source's journal at `path` is not known to be this one.
pub(super) fn may_be_handed_over(path: &Path) -> impl fmt::Display {
    format!(
        "according to {} this guest may have been handed over already",
        path.display()
    )
}

/// Refuses a migration because of an unfinished one, which the command `again` resumes.
pub(super) fn refuse(what: &str, next: String, again: String) -> Exit {
    Exit::new(ExitStatus::Unfinished, Reason::Unfinished, what)
        .with(next)
        .resumed_by(again)
}
