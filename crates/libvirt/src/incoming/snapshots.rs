//! What libvirt knows of a domain's snapshots, at the destination.
//!
//! The content of snapshots is in the images of the domain's disks, which both hosts have: one with
//! memory in another file is refused at the source, and one of copied disks is not described. What
//! libvirt knows of them (`virsh snapshot-list`) is not: it is described to the destination's
//! libvirt, as its documents say (`VIR_DOMAIN_SNAPSHOT_CREATE_REDEFINE`), when the guest is there.
//! Until then it is kept in files, because another program may be the one that completes the move.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use virt::domain::Domain;
use virt::domain_snapshot::DomainSnapshot;
use virt::sys;

use super::descriptions::Snapshot;
use super::left_to_do::LeftToDo;
use crate::call::CallError;
use crate::connection::Connection;
use crate::daemon::{ATTEMPT_TIMEOUT, AWAY_TIMEOUT, RETRY_INTERVAL};

/// The end of the names of their files; the second is that of the one that the domain is based on.
const KINDS: [&str; 2] = [".snapshot.xml", ".current-snapshot.xml"];

/// Keeps the descriptions of the snapshots of a domain that is being created, and none of an
/// earlier move.
pub(super) fn keep(folder: &Path, uuid: &str, snapshots: &[Snapshot]) -> io::Result<()> {
    remove(folder, uuid);
    for (number, snapshot) in snapshots.iter().enumerate() {
        let kind = KINDS[usize::from(snapshot.current)];
        // It may have passwords.
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let path = folder.join(format!("{}{number:03}{kind}", prefix(uuid)));
        options.open(path)?.write_all(snapshot.xml.as_bytes())?;
    }
    Ok(())
}

/// Describes the kept snapshots to libvirt.
///
/// # Errors
///
/// What was not done. The files stay: it can be tried again, also by a person.
pub(super) fn define(uri: &str, folder: &Path, uuid: &str) -> Result<(), LeftToDo> {
    let files = files(folder, uuid);
    if files.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    let mut waited = false;
    let defined = files.iter().try_for_each(|path| {
        loop {
            let error = match define_one(uri, uuid, path) {
                Ok(()) => return Ok(()),
                Err(Failed::Refused(what)) => return Err(what),
                Err(Failed::Away(what)) => what,
            };
            if waited && began.elapsed() >= AWAY_TIMEOUT {
                return Err(error);
            }
            waited = true;
            thread::sleep(RETRY_INTERVAL);
        }
    });
    match defined {
        Ok(()) => {
            remove(folder, uuid);
            Ok(())
        }
        Err(what) => Err(LeftToDo::Snapshots { what, files }),
    }
}

/// Why a snapshot was not described.
enum Failed {
    /// libvirt does not take it.
    Refused(String),
    /// The daemon is not there, or hangs.
    Away(String),
}

fn define_one(uri: &str, uuid: &str, path: &Path) -> Result<(), Failed> {
    let xml = std::fs::read_to_string(path).map_err(|error| Failed::Refused(error.to_string()))?;
    let is_current = path.to_string_lossy().ends_with(KINDS[1]);
    let connection = Connection::open_within(uri, ATTEMPT_TIMEOUT);
    let connection = connection.map_err(|error| Failed::Away(error.to_string()))?;
    let uuid = uuid.to_owned();
    let defined = connection.ask(ATTEMPT_TIMEOUT, move |connection| {
        let domain = Domain::lookup_by_uuid_string(connection, &uuid)?;
        let current = match is_current {
            true => sys::VIR_DOMAIN_SNAPSHOT_CREATE_CURRENT,
            false => 0,
        };
        let flags = sys::VIR_DOMAIN_SNAPSHOT_CREATE_REDEFINE | current;
        DomainSnapshot::create_xml(&domain, &xml, flags).map(drop)
    });
    defined.map_err(|error| match error {
        CallError::Libvirt(_) if connection.is_alive() => {
            Failed::Refused(format!("libvirt: {}", error.text()))
        }
        error => Failed::Away(error.text()),
    })
}

/// Removes what was kept for a move that is not completed.
pub(super) fn remove(folder: &Path, uuid: &str) {
    for path in files(folder, uuid) {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::debug!(%error, path = %path.display(), "removing a snapshot's description");
        }
    }
}

fn prefix(uuid: &str) -> String {
    format!("domain-{uuid}.")
}

/// The files, in the order in which the snapshots are described.
fn files(folder: &Path, uuid: &str) -> Vec<PathBuf> {
    let prefix = prefix(uuid);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<_> = paths
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            let rest = name.and_then(|name| name.strip_prefix(&prefix));
            rest.is_some_and(|rest| KINDS.iter().any(|kind| rest.ends_with(kind)))
        })
        .collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming::LeftToDo;

    const UUID: &str = "8a2c61a1-0c5f-4f1e-9d1b-3f4f0a6c5b7e";

    fn snapshots(names: &[&str]) -> Vec<Snapshot> {
        let snapshot = |(number, name): (usize, &&str)| Snapshot {
            xml: (*name).to_owned(),
            current: number + 1 == names.len(),
        };
        names.iter().enumerate().map(snapshot).collect()
    }

    #[test]
    fn what_libvirt_did_not_take_is_reported_again_until_the_next_move() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let define = || define("test:///default", folder, UUID);
        assert_eq!(define(), Ok(()));
        keep(folder, UUID, &snapshots(&["<first/>", "<second/>"])).unwrap();
        for _ in 0..2 {
            let Err(LeftToDo::Snapshots { what, files }) = define() else {
                panic!("not reported");
            };
            // There is no such domain.
            assert!(what.starts_with("libvirt: "), "{what}");
            let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
            let kept: Vec<_> = files.iter().map(read).collect();
            assert_eq!(kept, ["<first/>", "<second/>"]);
            assert!(files[1].to_string_lossy().ends_with(KINDS[1]));
        }
        keep(folder, UUID, &[]).unwrap();
        assert_eq!(define(), Ok(()));
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }
}
