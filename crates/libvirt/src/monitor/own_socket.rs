//! QEMU's monitor socket, by which libvirt's daemon reaches QEMU.
//!
//! QEMU serves one client at a time. So this works only while the daemon is away, and only for a
//! moment: the daemon needs the socket when it is back. A guest that is paused for its move does
//! not have to wait for the daemon then.
//!
//! The socket is not looked for by its path: a QEMU that an attacker controls could put a link to
//! another guest's monitor there. It is the one that QEMU's process has, whose descriptor is
//! copied. The process that listens, as the kernel reports it (`SO_PEERCRED`), would not tell:
//! libvirt's daemon has opened the socket, and passed it to QEMU.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::{Process, socket_file};
use hikkoshi_qemu::qmp::{Client, MonitorAddress, QmpError, QmpEvent};
use serde_json::{Value, json};

use super::qmp;

/// How long a command waits for QEMU's greeting, which comes at once unless the daemon is
/// connected.
const GREETING_TIMEOUT: Duration = Duration::from_millis(100);

/// libvirt's name for the socket (`qemuDomainSetPrivatePaths` and `qemuProcessPrepareMonitorChr`).
const NAME: &str = "monitor.sock";

/// A command was not executed.
#[derive(Debug)]
pub(crate) enum NotExecuted {
    /// QEMU has not seen it.
    NotSent(String),
    /// QEMU may have executed it.
    NotAnswered(String),
}

/// What QEMU has answered, and the events before that, as lines.
pub(crate) struct Executed {
    pub(crate) answer: String,
    pub(crate) events: Vec<String>,
}

/// Lets QEMU execute a command (JSON, without an identifier), and passes it copies of the
/// descriptors.
pub(crate) fn execute(
    process: &Process,
    json: &str,
    descriptors: &[OwnedFd],
) -> Result<Executed, NotExecuted> {
    let not_sent =
        |what: &dyn std::error::Error| NotExecuted::NotSent(Report::new(what).to_string());
    let request: Value = serde_json::from_str(json).map_err(|error| not_sent(&error))?;
    let command = request.get("execute").and_then(Value::as_str);
    let command = command.ok_or_else(|| NotExecuted::NotSent("not a command".to_owned()))?;
    let arguments = request.get("arguments").cloned().unwrap_or(json!({}));
    let mut client = connect(process, GREETING_TIMEOUT).map_err(NotExecuted::NotSent)?;
    let executed = match descriptors.first() {
        Some(descriptor) => client.execute_with_fd(command, arguments, descriptor.as_fd()),
        None => client.execute(command, arguments),
    };
    let answer = match executed {
        Ok(value) => json!({ "return": value }),
        Err(QmpError::Refused {
            class, description, ..
        }) => json!({ "error": { "class": class, "desc": description } }),
        Err(error) => return Err(NotExecuted::NotAnswered(Report::new(&error).to_string())),
    };
    let mut events = Vec::new();
    let drained: Result<Option<()>, _> = client.wait_event("events", Instant::now(), |event| {
        events.push(line(event));
        None
    });
    if let Err(error) = drained {
        tracing::debug!(error = %Report::new(&error), "reading the events of QEMU's own monitor socket");
    }
    Ok(Executed {
        answer: answer.to_string(),
        events,
    })
}

/// Whether QEMU serves us: no daemon has the socket, also none that hangs.
pub(crate) fn is_free(process: &Process) -> bool {
    connect(process, GREETING_TIMEOUT).is_ok()
}

/// Opens a session on the socket, within `timeout`.
pub(crate) fn connect(process: &Process, timeout: Duration) -> Result<Client, String> {
    let failed =
        |error: io::Error| format!("looking for QEMU's monitor socket: {}", Report::new(&error));
    let sockets = sockets(process).map_err(failed)?;
    let mut listening = sockets.iter().filter(|socket| listens(socket));
    let socket = listening
        .next()
        .ok_or("QEMU's monitor socket was not found")?;
    let file = socket_file(socket).map_err(failed)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let address = socket.local_addr().map_err(failed)?;
    let named = address.as_pathname().unwrap_or(&path).to_owned();
    Client::connect_by(&path, &MonitorAddress::Socket(named), timeout).map_err(|error| {
        let pid = process.pid();
        format!(
            "the monitor of QEMU (process {pid}): {}",
            Report::new(&error)
        )
    })
}

/// Whether the daemon has sent something on its connection that QEMU has not read yet.
pub(crate) fn has_unread(process: &Process) -> bool {
    let is_unread = |socket: &UnixStream| {
        // The listening socket has nothing to be read: an error.
        rustix::io::ioctl_fionread(socket).is_ok_and(|unread| unread > 0)
    };
    sockets(process).is_ok_and(|sockets| sockets.iter().any(is_unread))
}

/// Copies of QEMU's descriptors of the monitor socket, and of connections that were accepted on it,
/// which have its path.
fn sockets(process: &Process) -> io::Result<Vec<UnixStream>> {
    let is_socket = |number: &i32| {
        let link = std::fs::read_link(format!("/proc/{}/fd/{number}", process.pid()));
        link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    let is_monitors = |socket: &UnixStream| {
        socket.local_addr().is_ok_and(|address| {
            let path = address.as_pathname();
            path.is_some_and(|path| path.file_name() == Some(OsStr::new(NAME)))
        })
    };
    let numbers = process.descriptors()?.into_iter().filter(is_socket);
    let copies = numbers.filter_map(|number| process.descriptor(number).ok());
    Ok(copies.map(UnixStream::from).filter(is_monitors).collect())
}

fn listens(socket: &UnixStream) -> bool {
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false)
}

fn line(event: &QmpEvent) -> String {
    let details = (!event.data.is_null()).then(|| event.data.to_string());
    // The client uses the time at which it receives the event.
    qmp::event(&event.name, 0, 0, details.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    /// A process that has this socket as libvirt's QEMU has it: it got it from its parent.
    struct Qemu(Child);

    impl Qemu {
        fn with(listener: &UnixListener) -> Self {
            let mut command = Command::new("sleep");
            let input = Stdio::from(listener.as_fd().try_clone_to_owned().unwrap());
            Self(command.arg("1000").stdin(input).spawn().unwrap())
        }
    }

    impl Drop for Qemu {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn listen(path: &Path) -> UnixListener {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    #[test]
    fn a_link_to_another_guests_monitor_is_not_followed() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs CAP_NET_ADMIN");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let other = listen(&folder.path().join("other.sock"));
        let path = folder.path().join(NAME);
        let own = listen(&path);
        let qemu = Qemu::with(&own);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other.sock"), &path).unwrap();
        let process = Process::open(qemu.0.id()).unwrap();
        // It does not greet.
        let error = connect(&process, GREETING_TIMEOUT).unwrap_err();
        assert!(error.contains("no greeting"), "{error}");
        let named = [
            format!("process {}", process.pid()),
            path.display().to_string(),
        ];
        assert!(named.iter().all(|name| error.contains(name)), "{error}");
        own.accept().unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!has_unread(&process));
    }

    #[test]
    fn only_the_monitors_socket_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let other = listen(&folder.path().join("other.sock"));
        let qemu = Qemu::with(&other);
        let process = Process::open(qemu.0.id()).unwrap();
        let error = connect(&process, GREETING_TIMEOUT).unwrap_err();
        assert!(error.contains("was not found"), "{error}");
        assert_eq!(other.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
