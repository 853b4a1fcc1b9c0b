//! QEMU's monitor socket, by which libvirt's daemon reaches QEMU.
//!
//! QEMU serves one client at a time. So this works only while the daemon is away, and only for a
//! moment: the daemon needs the socket when it is back. A guest that is paused for its move does
//! not have to wait for the daemon then.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, QmpError, QmpEvent};
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
    let found =
        path(process).map_err(|error| format!("looking for QEMU's monitor socket: {error}"))?;
    let path = found.ok_or("QEMU's monitor socket was not found")?;
    Client::connect(&path, timeout).map_err(|error| Report::new(&error).to_string())
}

/// Whether the daemon has sent something on its connection that QEMU has not read yet.
pub(crate) fn has_unread(process: &Process) -> bool {
    let is_unread = |number: &i32| {
        let link = std::fs::read_link(format!("/proc/{}/fd/{number}", process.pid()));
        if !link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:")) {
            return false;
        }
        let Ok(socket) = process.descriptor(*number).map(UnixStream::from) else {
            return false;
        };
        // A connection has the path of the socket on which it was accepted.
        let is_monitor = socket.local_addr().is_ok_and(|address| {
            let path = address.as_pathname();
            path.is_some_and(|path| path.file_name() == Some(OsStr::new(NAME)))
        });
        // The listening socket has nothing to be read: an error.
        is_monitor && rustix::io::ioctl_fionread(&socket).is_ok_and(|unread| unread > 0)
    };
    let numbers = process.descriptors().unwrap_or_default();
    numbers.iter().any(is_unread)
}

fn line(event: &QmpEvent) -> String {
    let details = (!event.data.is_null()).then(|| event.data.to_string());
    // The client uses the time at which it receives the event.
    qmp::event(&event.name, 0, 0, details.as_deref())
}

/// The path of the socket, on which QEMU listens.
fn path(process: &Process) -> io::Result<Option<PathBuf>> {
    let mut sockets = HashSet::new();
    for number in process.descriptors()? {
        let link = std::fs::read_link(format!("/proc/{}/fd/{number}", process.pid()));
        let link = link.unwrap_or_default();
        let inode = link.to_str().and_then(|link| {
            let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse::<u64>().ok()
        });
        sockets.extend(inode);
    }
    let table = std::fs::read_to_string(format!("/proc/{}/net/unix", process.pid()))?;
    Ok(listening(&table, &sockets))
}

/// The path of the first listening socket with our name, in a table as in `/proc/net/unix`:
/// `Num RefCount Protocol Flags Type St Inode Path`.
fn listening(table: &str, sockets: &HashSet<u64>) -> Option<PathBuf> {
    /// `SO_ACCEPTCON` (`linux/net.h`).
    const LISTENING: u32 = 1 << 16;
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let inode = words.nth(2)?.parse().ok()?;
        let path = Path::new(words.next()?);
        let is_it = flags & LISTENING != 0
            && sockets.contains(&inode)
            && path.is_absolute()
            && path.file_name()? == NAME;
        is_it.then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
ffff0: 00000002 00000000 00010000 0001 01 100 /run/other/monitor.sock
ffff1: 00000003 00000000 00000000 0001 03 200 /var/lib/libvirt/qemu/domain-1-guest/monitor.sock
ffff2: 00000002 00000000 00010000 0001 01 201 /var/lib/libvirt/qemu/domain-1-guest/other.sock
ffff3: 00000002 00000000 00010000 0001 01 202 /var/lib/libvirt/qemu/domain-1-guest/monitor.sock
ffff4: 00000002 00000000 00010000 0001 01 203
";

    #[test]
    fn the_listening_socket_of_the_process_is_found() {
        let found = |sockets: &[u64]| listening(TABLE, &sockets.iter().copied().collect());
        let expected = Path::new("/var/lib/libvirt/qemu/domain-1-guest/monitor.sock");
        assert_eq!(found(&[200, 201, 202, 203]).as_deref(), Some(expected));
        assert_eq!(found(&[200, 201, 203]), None);
        assert_eq!(found(&[]), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read(table: String) {
            let _ = listening(&table, &HashSet::from([1]));
        }
    }
}
