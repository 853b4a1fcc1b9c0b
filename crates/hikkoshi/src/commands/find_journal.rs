//! Which journal `--resume` means, and whether its QEMU process still exists.

use std::io;
use std::path::{Path, PathBuf};

use error_reporter::Report;
use hikkoshi_link::Address;
use hikkoshi_qemu::qmp::Monitor;
use hikkoshi_qemu::{FindProcessError, QemuIdentity, QmpListener};

use crate::args::NamedGuest;
use crate::args::RecoveryOptions;
use crate::commands::monitor;
use crate::commands::no_journal::no_journal;
use crate::commands::resume_command::{cannot_resume, quoted};
use crate::journal::{self, JournalEntry, JournalFile};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Whether `given` is on the host of `recorded`, by the same name, or is not given.
///
/// `--plaintext` in a journal holds for that host only: the path to another host may lead through
/// networks that the user does not trust. Another port of the same host has the same path.
pub(super) fn is_same_host(given: Option<&Address>, recorded: &Address) -> bool {
    given.is_none_or(|given| {
        journal::absolute_address(given) == *recorded
            || (recorded.host().is_some() && recorded.host() == given.host())
    })
}

/// Locks and reads the journal in `file`, or the one that the options lead to.
pub(super) fn find<E: JournalEntry>(
    guest: Option<&NamedGuest>,
    recovery: &RecoveryOptions,
    file: Option<&Path>,
) -> Result<(JournalFile, E), Exit> {
    let path = match file {
        // The lock is beside the journal, and not beside a link to it.
        Some(path) => JournalFile::resolve(path).map_err(|error| unusable::<E>(path, &error))?,
        None => search::<E>(guest, recovery)?,
    };
    if !path.exists() {
        let what = format!("there is no journal at {}", path.display());
        return Err(no_journal::<E>(guest, &what));
    }
    let cannot = |error| unusable::<E>(&path, &error);
    let file = JournalFile::lock(&path).map_err(cannot)?;
    match file.read().map_err(cannot)? {
        Some(entry) => Ok((file, entry)),
        None => {
            let what = format!("the journal at {} has just been removed", path.display());
            Err(no_journal::<E>(guest, &what))
        }
    }
}

/// A journal that cannot be used now, whatever it says: its migration is not finished.
fn unusable<E: JournalEntry>(path: &Path, error: &io::Error) -> Exit {
    let what = format!("reading the journal: {}", Report::new(error));
    let reason = match error.kind() {
        // Of the lock: files do not block.
        io::ErrorKind::WouldBlock => Reason::JournalBusy,
        _ => Reason::Journal,
    };
    cannot_resume::<E>(reason, &io::Error::other(what), path)
}

fn search<E: JournalEntry>(
    guest: Option<&NamedGuest>,
    recovery: &RecoveryOptions,
) -> Result<PathBuf, Exit> {
    let folder = recovery.journals.path();
    let found = journal::find::<E>(&folder, guest).map_err(|error| {
        let what = format!("looking for a migration to resume: {}", Report::new(&error));
        let next = "the guest may have been handed over, and nothing was changed";
        Exit::new(ExitStatus::Unfinished, Reason::Journal, what).with(next)
    })?;
    let found = match guest {
        None => found,
        Some(_) => found
            .into_iter()
            .filter(|(_, entry)| {
                let monitor = monitor::at_address(&entry.identity().monitor);
                may_listen(&*monitor, entry.identity())
            })
            .collect(),
    };
    // Journals whose QEMU has exited are used only if there are no others.
    let exists = |(_, entry): &(PathBuf, E)| may_exist(entry.identity()).unwrap_or(true);
    let (existing, exited): (Vec<_>, Vec<_>) = found.into_iter().partition(exists);
    let found = if existing.is_empty() {
        exited
    } else {
        existing
    };
    match &found[..] {
        [] => {
            let what = format!(
                "there is no journal of an unfinished migration ({}) in {}",
                E::SIDE,
                folder.display()
            );
            let exit = no_journal::<E>(guest, &what);
            let is_known = matches!(exit.status(), ExitStatus::AtSource | ExitStatus::Moved);
            match journal::unreadable::<E>(&folder) {
                // It may be the journal of this migration.
                Some((path, error)) if !is_known => Err(unusable::<E>(&path, &error)),
                _ => Err(exit),
            }
        }
        [(path, _)] => Ok(path.clone()),
        _ => {
            let all = found.iter().map(|(path, entry)| {
                let monitor = &entry.identity().monitor;
                format!("--resume={} ({monitor})", quoted(path))
            });
            let all = all.collect::<Vec<_>>().join(", ");
            let what = format!("there are several migrations to resume: {all}");
            Err(
                Exit::new(ExitStatus::Unfinished, Reason::JournalAmbiguous, what)
                    .with("name one of them; nothing was changed"),
            )
        }
    }
}

/// Whether the QEMU process in a journal may be the one behind `monitor`: it listens there now, or
/// no process does.
pub(super) fn may_listen(monitor: &dyn Monitor, identity: &QemuIdentity) -> bool {
    let listener = match monitor.listener() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::debug!(error = %Report::new(&error), "looking for the QEMU process behind a monitor");
            return true;
        }
    };
    match listener {
        QmpListener::Process(pid) => pid == identity.pid && may_exist(identity).unwrap_or(true),
        // A process that cannot be seen from here, or does not answer.
        QmpListener::Unknown => may_exist(identity).unwrap_or(true),
        QmpListener::None => true,
    }
}

/// Whether the QEMU process in a journal still exists. One of another boot does not.
///
/// # Errors
/// When that cannot be found out, such as from another namespace.
pub(super) fn may_exist(identity: &QemuIdentity) -> Result<bool, FindProcessError> {
    match identity.process() {
        Ok(process) => Ok(process.is_some()),
        Err(FindProcessError::AnotherBoot { .. }) => Ok(false),
        Err(error) => Err(error),
    }
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
}
