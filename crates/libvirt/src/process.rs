//! The QEMU process of a domain.
//!
//! libvirt's library does not tell it. Its daemon writes the process ID to a file in its run
//! folder, which only the daemon's user can write to.

use std::io;
use std::path::{Path, PathBuf};

use hikkoshi_linux::Process;

use crate::DomainError;

/// The folder in which the daemon at `uri` keeps the files of running domains.
pub(crate) fn run_folder(uri: &str) -> Result<PathBuf, DomainError> {
    let not_qemu = || DomainError::NotQemu {
        uri: uri.to_owned(),
    };
    let (scheme, rest) = uri.split_once("://").ok_or_else(not_qemu)?;
    let (driver, transport) = scheme.split_once('+').unwrap_or((scheme, "unix"));
    if driver != "qemu" {
        return Err(not_qemu());
    }
    let (host, path) = rest.split_once('/').ok_or_else(not_qemu)?;
    if !host.is_empty() || transport != "unix" {
        return Err(DomainError::Remote {
            uri: uri.to_owned(),
        });
    }
    match path.split('?').next() {
        Some("system") => Ok("/run/libvirt/qemu".into()),
        Some("session") => {
            let runtime =
                std::env::var_os("XDG_RUNTIME_DIR").ok_or_else(|| DomainError::Connect {
                    uri: uri.to_owned(),
                    what: "XDG_RUNTIME_DIR is not set, which says where the user's daemon is (as root: \
                           set it to that of the user, and name the daemon's socket, \
                           $XDG_RUNTIME_DIR/libvirt/libvirt-sock, by '?socket=' in the URI)"
                        .to_owned(),
                })?;
            Ok(Path::new(&runtime).join("libvirt/qemu/run"))
        }
        _ => Err(not_qemu()),
    }
}

/// Whether this is the URI of a user's own daemon.
pub(crate) fn is_session(uri: &str) -> bool {
    let after_host = uri
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let path = after_host.and_then(|(_, path)| path.split('?').next());
    path == Some("session")
}

/// Opens the process of the domain `name`, whose UUID is `uuid`.
pub(crate) fn find(run_folder: &Path, name: &str, uuid: &str) -> Result<Process, DomainError> {
    let failed = |what: String| DomainError::Process {
        name: name.to_owned(),
        what,
    };
    // libvirt refuses such names, too.
    if name.contains('/') {
        return Err(failed("its name has a '/'".to_owned()));
    }
    let path = run_folder.join(format!("{name}.pid"));
    let shown = path.display();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = name.to_owned();
            return Err(DomainError::NoProcess { name, path });
        }
        Err(error) => return Err(failed(format!("reading {shown}: {error}"))),
    };
    let pid = text
        .trim()
        .parse()
        .map_err(|_| failed(format!("{shown} does not contain a process ID")))?;
    let process =
        Process::open(pid).map_err(|error| failed(format!("opening process {pid}: {error}")))?;
    // A file that was left behind may name a process that has the number now.
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|error| {
        failed(format!(
            "reading the command line of process {pid}: {error}"
        ))
    })?;
    if !is_of_domain(&line, uuid) {
        return Err(failed(format!(
            "process {pid}, which {shown} names, is not a QEMU with -uuid {uuid}"
        )));
    }
    Ok(process)
}

/// Whether this command line, with a zero byte after each word, is that of the domain's QEMU.
fn is_of_domain(line: &[u8], uuid: &str) -> bool {
    let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    words
        .windows(2)
        .any(|pair| *pair == [b"-uuid", uuid.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";

    /// A process with this last argument after `-uuid`.
    struct Qemu(Child);

    impl Qemu {
        fn start(uuid: &str) -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", "read line; true", "-uuid", uuid]);
            Self(command.stdin(Stdio::piped()).spawn().unwrap())
        }
    }

    impl Drop for Qemu {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn the_process_must_have_the_domains_uuid() {
        let folder = tempfile::tempdir().unwrap();
        let qemu = Qemu::start(UUID);
        let pid = qemu.0.id();
        let found = || find(folder.path(), "guest", UUID);
        let error = found().unwrap_err().to_string();
        assert!(error.contains("guest.pid does not exist"), "{error}");
        std::fs::write(folder.path().join("guest.pid"), format!("{pid}\n")).unwrap();
        // The shell may not have started yet.
        while !std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap()
            .contains(UUID)
        {}
        assert_eq!(found().unwrap().pid(), pid);
        let other = Qemu::start("other");
        let other_pid = other.0.id();
        std::fs::write(folder.path().join("guest.pid"), other_pid.to_string()).unwrap();
        let error = found().unwrap_err().to_string();
        assert!(error.contains("is not a QEMU with -uuid"), "{error}");
        std::fs::write(folder.path().join("guest.pid"), "x").unwrap();
        let error = found().unwrap_err().to_string();
        assert!(error.contains("does not contain a process ID"), "{error}");
        let error = find(folder.path(), "../guest", UUID).unwrap_err();
        assert!(error.to_string().contains("has a '/'"), "{error}");
    }

    #[test]
    fn a_users_own_daemon_is_known_by_its_uri() {
        for (uri, expected) in [
            ("qemu:///session", true),
            (
                "qemu+unix:///session?socket=/run/user/1000/libvirt/libvirt-sock",
                true,
            ),
            ("qemu:///system", false),
            ("qemu:///system?socket=/run/session", false),
            ("qemu:///embed?root=/session", false),
            ("session", false),
        ] {
            assert_eq!(is_session(uri), expected, "{uri}");
        }
    }

    #[test]
    fn only_daemons_on_this_host_are_used() {
        let folder = |uri| run_folder(uri).unwrap();
        assert_eq!(folder("qemu:///system"), Path::new("/run/libvirt/qemu"));
        assert_eq!(
            folder("qemu+unix:///system?socket=/run/x"),
            Path::new("/run/libvirt/qemu")
        );
        for uri in [
            "qemu://host/system",
            "qemu+ssh:///system",
            "qemu+tls://h/system",
        ] {
            assert!(
                matches!(run_folder(uri), Err(DomainError::Remote { .. })),
                "{uri}"
            );
        }
        for uri in ["xen:///system", "system", "qemu:///other", "qemu:"] {
            assert!(
                matches!(run_folder(uri), Err(DomainError::NotQemu { .. })),
                "{uri}"
            );
        }
    }
}
