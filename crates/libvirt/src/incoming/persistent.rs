//! The configuration that a persistent domain gets when its guest is here.
//!
//! It is kept in a file until then, because another program may be the one that completes the move.
//! If libvirt does not take it, it stays in another file, for a person.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use virt::domain::Domain;
use virt::error::ErrorNumber;

use super::LeftToDo;
use crate::connection::Connection;
use crate::daemon::{AWAY_TIMEOUT, RETRY_INTERVAL};

/// Whether the domain is to be started when the host boots, too.
const KINDS: [bool; 2] = [false, true];

fn file(folder: &Path, uuid: &str, autostart: bool) -> PathBuf {
    let kind = if autostart { "autostart" } else { "persistent" };
    folder.join(format!("domain-{uuid}.{kind}.xml"))
}

/// A configuration that libvirt has not taken. Only a person removes it.
fn not_defined(folder: &Path, uuid: &str) -> PathBuf {
    folder.join(format!("domain-{uuid}.not-defined.xml"))
}

/// Keeps the configuration of the domain that is being created; `None`: it is to be transient.
pub(super) fn keep(
    folder: &Path,
    uuid: &str,
    xml: Option<&str>,
    autostart: bool,
) -> io::Result<()> {
    remove(folder, uuid);
    // Of an earlier move: this one brings the configuration.
    let _ = std::fs::remove_file(not_defined(folder, uuid));
    let Some(xml) = xml else {
        return Ok(());
    };
    // It may have passwords.
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(file(folder, uuid, autostart))?;
    file.write_all(xml.as_bytes())
}

/// Defines the domain, if it is to be persistent.
pub(super) fn define(uri: &str, folder: &Path, uuid: &str) -> Result<(), LeftToDo> {
    let kept = KINDS.map(|autostart| (file(folder, uuid, autostart), autostart));
    let Some((path, autostart)) = kept.into_iter().find(|(path, _)| path.exists()) else {
        // An engine that was killed may not have reported it.
        let file = not_defined(folder, uuid);
        return match file.exists() {
            true => Err(LeftToDo::NotDefined {
                what: "libvirt did not take its configuration from another engine".to_owned(),
                is_dropped: false,
                file,
                autostart: false,
            }),
            false => Ok(()),
        };
    };
    let made = std::fs::read_to_string(&path)
        .map_err(|error| NotMade::Defined(error.to_string()))
        .and_then(|xml| make(uri, uuid, &xml, autostart));
    let Err(not_made) = made else {
        remove(folder, uuid);
        return Ok(());
    };
    let is_dropped = matches!(not_made, NotMade::Dropped(_));
    Err(match not_made {
        NotMade::Started(what) => {
            remove(folder, uuid);
            LeftToDo::NotStarted { what }
        }
        NotMade::Defined(what) | NotMade::Dropped(what) | NotMade::Away(what) => {
            let for_a_person = not_defined(folder, uuid);
            let file = match std::fs::rename(&path, &for_a_person) {
                Ok(()) => for_a_person,
                Err(_) => path,
            };
            LeftToDo::NotDefined {
                what,
                is_dropped,
                file,
                autostart,
            }
        }
    })
}

/// Why a domain is not what it was to be.
enum NotMade {
    /// Persistent; libvirt's message.
    Defined(String),
    /// The same, and the daemon does not know the domain any more.
    Dropped(String),
    /// Started when the host boots; libvirt's message.
    Started(String),
    /// The daemon is not there.
    Away(String),
}

/// Where the system's daemon keeps the configurations of domains.
const CONFIGURATIONS: &str = "/etc/libvirt/qemu";

/// Writes a file of this size where the daemon would write the configuration, and removes it.
///
/// If libvirt 9.0 cannot write the configuration of a running domain that was transient, it drops
/// the domain from its list, as if it were a new one (`qemuDomainDefineXMLFlags`), until its daemon
/// is started again. So it is not asked to if that would fail.
fn check_writable(bytes: usize) -> io::Result<()> {
    let folder = Path::new(CONFIGURATIONS);
    if !folder.exists() {
        return Ok(());
    }
    let mut file = tempfile_in(folder)?;
    let written = file
        .0
        .write_all(&vec![b' '; bytes])
        .and_then(|()| file.0.sync_all());
    std::fs::remove_file(&file.1)?;
    written
}

/// A new file. (libvirt reads only those that end with `.xml`.)
fn tempfile_in(folder: &Path) -> io::Result<(File, PathBuf)> {
    let path = folder.join(format!("hikkoshi-{}.tmp", std::process::id()));
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    Ok((file.open(&path)?, path))
}

/// Makes the domain persistent. Waits for a daemon that is being restarted.
fn make(uri: &str, uuid: &str, xml: &str, autostart: bool) -> Result<(), NotMade> {
    let deadline = Instant::now() + AWAY_TIMEOUT;
    loop {
        match try_to_make(uri, uuid, xml, autostart) {
            Err(NotMade::Away(_)) if Instant::now() < deadline => thread::sleep(RETRY_INTERVAL),
            made => return made,
        }
    }
}

fn try_to_make(uri: &str, uuid: &str, xml: &str, autostart: bool) -> Result<(), NotMade> {
    check_writable(xml.len())
        .map_err(|error| NotMade::Defined(format!("writing to {CONFIGURATIONS}: {error}")))?;
    let connection = Connection::open(uri).map_err(|error| NotMade::Away(error.to_string()))?;
    let failed = |not_made: fn(String) -> NotMade| {
        let connection = &connection;
        move |error: virt::error::Error| {
            let what = format!("libvirt: {}", error.message());
            match connection.is_alive() {
                true => not_made(what),
                false => NotMade::Away(what),
            }
        }
    };
    let defined = Domain::define_xml(&connection, xml).map_err(failed(NotMade::Defined));
    let domain = defined.map_err(|not_made| match not_made {
        NotMade::Defined(what) if is_dropped(&connection, uuid) => NotMade::Dropped(what),
        other => other,
    })?;
    if autostart {
        domain
            .set_autostart(true)
            .map_err(failed(NotMade::Started))?;
    }
    Ok(())
}

/// Whether the daemon does not know the domain any more, which runs.
fn is_dropped(connection: &Connection, uuid: &str) -> bool {
    let found = Domain::lookup_by_uuid_string(connection, uuid);
    found.is_err_and(|error| error.code() == ErrorNumber::NoDomain)
}

/// Removes what was kept for a move that is not completed.
pub(super) fn remove(folder: &Path, uuid: &str) {
    for autostart in KINDS {
        let _ = std::fs::remove_file(file(folder, uuid, autostart));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "8a2c61a1-0c5f-4f1e-9d1b-3f4f0a6c5b7e";

    #[test]
    fn what_was_not_defined_is_reported_again_until_the_next_move() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        // No daemon is asked.
        let define = || define("qemu:///none", folder, UUID);
        assert_eq!(define(), Ok(()));
        keep(folder, UUID, Some("<domain/>"), false).unwrap();
        // The engine was killed after libvirt had refused the configuration.
        std::fs::rename(file(folder, UUID, false), not_defined(folder, UUID)).unwrap();
        for _ in 0..2 {
            let Err(LeftToDo::NotDefined { file, .. }) = define() else {
                panic!("not reported");
            };
            assert_eq!(std::fs::read_to_string(file).unwrap(), "<domain/>");
        }
        keep(folder, UUID, None, false).unwrap();
        assert_eq!(define(), Ok(()));
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }
}
