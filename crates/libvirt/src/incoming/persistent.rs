//! The configuration that a persistent domain gets when its guest is here.
//!
//! It is kept in a file until then, because another program may be the one that completes the move.
//! If libvirt does not take it, it stays in another file, for a person.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};
use virt::sys;

use super::left_to_do::{DomainNow, LeftToDo};
use crate::DomainError;
use crate::call::Call;
use crate::connection::{Connection, PING_TIMEOUT};
use crate::daemon::{ATTEMPT_TIMEOUT, AWAY_TIMEOUT, RETRY_INTERVAL};

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

/// Defines the domain with this UUID and name, if it is to be persistent.
pub(super) fn define(uri: &str, folder: &Path, uuid: &str, name: &str) -> Result<(), LeftToDo> {
    let kept = KINDS.map(|autostart| (file(folder, uuid, autostart), autostart));
    let Some((path, autostart)) = kept.into_iter().find(|(path, _)| path.exists()) else {
        // An engine that was killed may not have reported it.
        let file = not_defined(folder, uuid);
        return match file.exists() {
            true => Err(LeftToDo::NotDefined {
                what: "libvirt did not take its configuration from another engine".to_owned(),
                now: DomainNow::Transient,
                file,
                autostart: false,
            }),
            false => Ok(()),
        };
    };
    let made = std::fs::read_to_string(&path)
        .map_err(|error| NotMade::Defined(DomainNow::Transient, error.to_string()))
        .and_then(|xml| {
            let wanted = Wanted {
                uuid: uuid.to_owned(),
                name: name.to_owned(),
                xml,
                autostart,
            };
            make(uri, &wanted)
        });
    let Err(not_made) = made else {
        remove(folder, uuid);
        return Ok(());
    };
    Err(match not_made {
        NotMade::Started(what) => {
            remove(folder, uuid);
            LeftToDo::NotStarted { what }
        }
        NotMade::Defined(now, what) => {
            let for_a_person = not_defined(folder, uuid);
            let file = match std::fs::rename(&path, &for_a_person) {
                Ok(()) => for_a_person,
                Err(_) => path,
            };
            LeftToDo::NotDefined {
                what,
                now,
                file,
                autostart,
            }
        }
    })
}

/// A domain that is to be persistent.
#[derive(Debug, Clone)]
struct Wanted {
    uuid: String,
    name: String,
    xml: String,
    autostart: bool,
}

/// Why a domain is not what it was to be.
#[derive(Debug)]
enum NotMade {
    /// Persistent; what it is, and why.
    Defined(DomainNow, String),
    /// Started when the host boots; libvirt's message.
    Started(String),
}

/// Why an attempt has failed.
#[derive(Debug)]
enum Failed {
    /// libvirt cannot do it.
    NotMade(NotMade),
    /// The daemon is not there, or hangs.
    Away(DomainError),
}

/// Where the system's daemon keeps the configurations of domains.
const CONFIGURATIONS: &str = "etc/libvirt/qemu";

/// Writes a file of this size where the daemon would write the configuration, and removes it.
/// `root` is the root of the daemon's file system.
///
/// If libvirt 9.0 cannot write the configuration of a running domain that was transient, it drops
/// the domain from its list, as if it were a new one (`qemuDomainDefineXMLFlags`), until its daemon
/// is started again. So it is not asked to if that would fail.
fn check_writable(root: &Path, bytes: usize) -> io::Result<()> {
    let folder = root.join(CONFIGURATIONS);
    if !folder.exists() {
        return Ok(());
    }
    let mut file = tempfile_in(&folder)?;
    let written = file
        .0
        .write_all(&vec![b' '; bytes])
        .and_then(|()| file.0.sync_all());
    std::fs::remove_file(&file.1)?;
    written
}

/// The root of the daemon's file system. This program's own mounts say nothing about the daemon's:
/// its systemd unit makes `/etc` read-only for it alone (`ProtectSystem=strict`).
///
/// `None`: as for [`daemon_process`].
fn daemon_root(run: &Path) -> Option<PathBuf> {
    daemon_process(run).map(|pid| PathBuf::from(format!("/proc/{pid}/root")))
}

/// The daemon's process; `run` is the folder with its file.
///
/// `None`: it was not found, for example because it has another PID namespace.
pub(super) fn daemon_process(run: &Path) -> Option<u32> {
    ["libvirtd", "virtqemud"].iter().find_map(|name| {
        let pid = std::fs::read_to_string(run.join(format!("{name}.pid"))).ok()?;
        let pid: u32 = pid.trim().parse().ok()?;
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (program.trim() == *name).then_some(pid)
    })
}

/// A new file. (libvirt reads only those that end with `.xml`.)
fn tempfile_in(folder: &Path) -> io::Result<(File, PathBuf)> {
    let path = folder.join(format!("hikkoshi-{}.tmp", std::process::id()));
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    Ok((file.open(&path)?, path))
}

/// Makes the domain persistent. Waits for a daemon that is being restarted, or hangs.
fn make(uri: &str, wanted: &Wanted) -> Result<(), NotMade> {
    let began = Instant::now();
    loop {
        let left = AWAY_TIMEOUT.saturating_sub(began.elapsed());
        let error = match try_to_make(uri, wanted, left) {
            Ok(()) => return Ok(()),
            Err(Failed::NotMade(not_made)) => return Err(not_made),
            Err(Failed::Away(error)) => error,
        };
        let waited = began.elapsed();
        if waited >= AWAY_TIMEOUT {
            let what = error.after(waited);
            return Err(NotMade::Defined(DomainNow::Transient, what.to_string()));
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Tries it within about `limit`. libvirt may still do it afterwards.
fn try_to_make(uri: &str, wanted: &Wanted, limit: Duration) -> Result<(), Failed> {
    let opening = limit.clamp(PING_TIMEOUT, ATTEMPT_TIMEOUT);
    let connection = Connection::open_within(uri, opening).map_err(Failed::Away)?;
    let wanted = wanted.clone();
    let making = Call::start(move || make_by(&connection, &wanted));
    let failed = |what: String| Failed::NotMade(NotMade::Defined(DomainNow::Transient, what));
    let making = making.map_err(|error| failed(format!("starting a thread: {error}")))?;
    match making.wait(limit.max(PING_TIMEOUT)) {
        Ok(made) => made,
        Err(RecvTimeoutError::Timeout) => Err(Failed::Away(DomainError::NoAnswer {
            uri: uri.to_owned(),
            asked: "to make the domain persistent".to_owned(),
            after: limit,
        })),
        Err(RecvTimeoutError::Disconnected) => Err(failed("the thread has ended".to_owned())),
    }
}

fn make_by(connection: &Connection, wanted: &Wanted) -> Result<(), Failed> {
    let Wanted { uuid, xml, .. } = wanted;
    let found = Domain::lookup_by_uuid_string(connection, uuid);
    let is_persistent = found.is_ok_and(|domain| domain.is_persistent().unwrap_or(false));
    // libvirt keeps one that was persistent before.
    let root = daemon_root(Path::new("/run")).filter(|_| !is_persistent);
    if let Some(root) = root {
        check_writable(&root, xml.len()).map_err(|error| {
            let what =
                format!("writing to /{CONFIGURATIONS}, as libvirt's daemon sees it: {error}");
            Failed::NotMade(NotMade::Defined(DomainNow::Transient, what))
        })?;
    }
    let failed = |error: Error, not_made: fn(DomainNow, String) -> NotMade| {
        let what = format!("libvirt: {}", error.message());
        if !connection.is_alive() {
            let uri = connection.uri().to_owned();
            return Failed::Away(DomainError::Connect { uri, what });
        }
        let now = match is_persistent {
            true => DomainNow::Older,
            false if is_dropped(connection, uuid) => DomainNow::Dropped,
            false => DomainNow::Transient,
        };
        Failed::NotMade(not_made(now, what))
    };
    let before = persistent_domains(connection);
    let before = before.map_err(|error| failed(error, NotMade::Defined))?;
    let domain =
        Domain::define_xml(connection, xml).map_err(|error| failed(error, NotMade::Defined))?;
    if let Some(what) = undo_if_other(&domain, wanted, &before) {
        let now = match is_persistent {
            true => DomainNow::Older,
            false => DomainNow::Transient,
        };
        return Err(Failed::NotMade(NotMade::Defined(now, what)));
    }
    if wanted.autostart {
        let started = domain.set_autostart(true);
        started.map_err(|error| failed(error, |_, what| NotMade::Started(what)))?;
    }
    Ok(())
}

/// The UUIDs of the domains that the daemon has a configuration of.
fn persistent_domains(connection: &Connection) -> Result<Vec<String>, Error> {
    let domains = connection.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_PERSISTENT)?;
    domains.iter().map(Domain::get_uuid_string).collect()
}

/// Removes the configuration that libvirt has made if it is not that of the wanted domain: the
/// source may move that one only. Says what libvirt has done then.
fn undo_if_other(domain: &Domain, wanted: &Wanted, before: &[String]) -> Option<String> {
    let asked = domain
        .get_name()
        .and_then(|name| Ok((name, domain.get_uuid_string()?)));
    let (name, uuid) = match asked {
        Ok(defined) if defined == (wanted.name.clone(), wanted.uuid.clone()) => return None,
        Ok(defined) => defined,
        Err(error) => return Some(format!("libvirt: {}", error.message())),
    };
    let undefine = || {
        let kept = domain.undefine_flags(sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM);
        // libvirt's driver for tests does not know the flag.
        kept.or_else(|_| domain.undefine())
    };
    let undone = match before.contains(&uuid) {
        true => "whose configuration is replaced by that".to_owned(),
        false => match undefine() {
            Ok(()) => "which was undefined again".to_owned(),
            Err(error) => format!("and does not undefine it: {}", error.message()),
        },
    };
    Some(format!(
        "libvirt has read its configuration as that of the domain {name:?} ({uuid}), {undone}"
    ))
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
        let define = || define("qemu:///none", folder, UUID, "guest");
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

    /// By libvirt's driver for tests, which is part of its library.
    #[test]
    fn a_configuration_that_is_another_domains_is_undone() {
        let connection = Connection::open("test:///default").unwrap();
        let xml = |name: &str, uuid: &str| {
            format!(
                "<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory>\
                 <os><type>hvm</type></os></domain>"
            )
        };
        let wanted = Wanted {
            uuid: UUID.to_owned(),
            name: "undo-web".to_owned(),
            xml: String::new(),
            autostart: false,
        };
        let other_uuid = UUID.replace("8a2c", "8a2d");
        let define = |name, uuid| {
            let before = persistent_domains(&connection).unwrap();
            let domain = Domain::define_xml(&connection, &xml(name, uuid)).unwrap();
            undo_if_other(&domain, &wanted, &before)
        };
        let known = |name| Domain::lookup_by_name(&connection, name).is_ok();
        for (name, uuid) in [("undo-db", UUID), ("undo-web", other_uuid.as_str())] {
            let what = define(name, uuid).unwrap();
            assert!(
                what.contains(name) && what.contains("undefined again"),
                "{what}"
            );
            assert!(!known(name), "{name}");
        }
        Domain::define_xml(&connection, &xml("undo-db", &other_uuid)).unwrap();
        let what = define("undo-db", &other_uuid).unwrap();
        assert!(
            what.contains("is replaced by that") && known("undo-db"),
            "{what}"
        );
        assert_eq!(define("undo-web", UUID), None);
        for name in ["undo-db", "undo-web"] {
            let domain = Domain::lookup_by_name(&connection, name).unwrap();
            domain.undefine_flags(0).unwrap();
        }
    }

    /// The roots of the mounts of this process and of the daemon differ.
    #[test]
    fn the_daemons_file_system_is_that_of_its_process() {
        let run = tempfile::tempdir().unwrap();
        let of = || daemon_root(run.path());
        assert_eq!(of(), None, "no daemon");
        let program = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_ne!(program.trim(), "virtqemud");
        let own = std::process::id();
        std::fs::write(run.path().join("virtqemud.pid"), format!("{own}\n")).unwrap();
        assert_eq!(of(), None, "the number belongs to another program");
        let mut child = daemon(run.path(), "virtqemud");
        let pid = child.id();
        std::fs::write(run.path().join("virtqemud.pid"), format!("{pid}\n")).unwrap();
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        // The child may not have executed its program yet.
        while of().is_none() {
            assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        }
        assert_eq!(of(), Some(root));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of(), None, "it has ended");
    }

    /// A process with this name.
    fn daemon(folder: &Path, name: &str) -> std::process::Child {
        let program = folder.join(name);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        std::process::Command::new(program)
            .arg("1000")
            .spawn()
            .unwrap()
    }

    #[test]
    fn the_folder_of_the_configurations_is_tried() {
        let root = tempfile::tempdir().unwrap();
        check_writable(root.path(), 1000).unwrap();
        let folder = root.path().join(CONFIGURATIONS);
        std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
        std::fs::write(&folder, "not a folder").unwrap();
        check_writable(root.path(), 1000).unwrap_err();
        std::fs::remove_file(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        check_writable(root.path(), 1000).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "removed");
    }
}
