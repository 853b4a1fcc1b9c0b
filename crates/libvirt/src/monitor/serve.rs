//! The threads of a session.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_linux::Process;

use super::command;
use super::events::Subscription;
use super::qmp::{self, Request};
use super::received::Received;
use crate::daemon::{AWAY_TIMEOUT, Daemon, OpenDomain, RETRY_INTERVAL};

/// Lines that wait to be written: answers, of which there is one at a time, and events.
const LINES: usize = 1024;

const QUERY_VERSION: &str = r#"{"execute":"query-version"}"#;

/// The one command that is not repeated when its answer was lost with the daemon: QEMU may have
/// written the state already, and would append it.
const NOT_REPEATED: &str = "xen-save-devices-state";

/// QEMU's monitor, as libvirt lends it. The daemon may be restarted.
#[derive(Debug)]
struct LentMonitor {
    daemon: Daemon,
    process: Arc<Process>,
    open: OpenDomain,
    /// The domain's events, over that connection.
    events: Subscription,
    lines: SyncSender<String>,
}

/// Serves a session on one end of a pair of sockets, and returns the other end.
///
/// # Errors
///
/// Why the session cannot be served, as text.
pub(crate) fn start(
    daemon: &Daemon,
    open: OpenDomain,
    process: &Arc<Process>,
) -> Result<UnixStream, String> {
    let text = |error: io::Error| error.to_string();
    let (client, server) = UnixStream::pair().map_err(text)?;
    let (lines, to_write) = sync_channel(LINES);
    // Before the greeting, so that no event of the session is missed.
    let events = Subscription::new(&open.connection, &open.domain, lines.clone())?;
    let version = command::execute(&open.domain, QUERY_VERSION, &[])?;
    let greeting = qmp::greeting(&version).ok_or("QEMU did not tell its version")?;
    let write_end = server.try_clone().map_err(text)?;
    thread::Builder::new()
        .name("libvirt-answers".to_owned())
        .spawn(move || write(&greeting, &to_write, write_end))
        .map_err(text)?;
    let monitor = LentMonitor {
        daemon: daemon.clone(),
        process: Arc::clone(process),
        open,
        events,
        lines,
    };
    thread::Builder::new()
        .name("libvirt-commands".to_owned())
        // With the last senders, in `monitor`, the other thread ends, and closes the socket.
        .spawn(move || serve(monitor, &server))
        .map_err(text)?;
    Ok(client)
}

/// Executes commands until the client closes the socket, or QEMU has ended.
fn serve(mut monitor: LentMonitor, socket: &UnixStream) {
    let mut received = Received::default();
    loop {
        let (line, descriptors) = match received.next(socket) {
            Ok(Some(next)) => next,
            Ok(None) => return,
            // It has closed the socket without reading the last events.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
            Err(error) => {
                tracing::warn!(%error, "reading a domain's monitor session");
                return;
            }
        };
        let answer = match qmp::request(&line) {
            None => {
                tracing::warn!("a domain's monitor session sent a line that is not a command");
                return;
            }
            Some(Request::Capabilities { id }) => qmp::empty_answer(id),
            Some(Request::Command { id, json }) => match monitor.execute(&json, &descriptors) {
                Ok(returned) => qmp::answer(id, &returned),
                Err(error) => qmp::error(id, &format!("libvirt: {error}")),
            },
        };
        if monitor.lines.send(answer).is_err() {
            return;
        }
    }
}

impl LentMonitor {
    /// Lets libvirt execute a command. If the daemon is being restarted, waits until it is back,
    /// and repeats the command: that changes nothing, or the same again.
    fn execute(&mut self, json: &str, descriptors: &[OwnedFd]) -> Result<String, String> {
        let deadline = Instant::now() + AWAY_TIMEOUT;
        loop {
            let error = match command::execute(&self.open.domain, json, descriptors) {
                Err(error) if !self.open.connection.is_alive() => error,
                executed => return executed,
            };
            self.reopen(deadline, &error)?;
            if json.contains(NOT_REPEATED) {
                return Err(format!(
                    "the daemon was restarted while QEMU executed a command: {error}"
                ));
            }
        }
    }

    /// Waits until the daemon is back and has found the domain.
    fn reopen(&mut self, deadline: Instant, lost: &str) -> Result<(), String> {
        tracing::info!(error = lost, "libvirt's daemon is away: waiting for it");
        loop {
            let error = match self.try_reopen() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if Instant::now() > deadline || !self.process.is_alive() {
                return Err(error);
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn try_reopen(&mut self) -> Result<(), String> {
        let open = self
            .daemon
            .connect()
            .map_err(|e| Report::new(&e).to_string())?;
        let events = Subscription::new(&open.connection, &open.domain, self.lines.clone())?;
        // It may still be connecting to QEMU.
        command::execute(&open.domain, QUERY_VERSION, &[])?;
        (self.open, self.events) = (open, events);
        Ok(())
    }
}

/// Writes lines until no thread sends them any more, or the client does not read them.
fn write(greeting: &str, lines: &Receiver<String>, mut socket: UnixStream) {
    let mut written = socket.write_all(greeting.as_bytes());
    while written.is_ok() {
        match lines.recv() {
            Ok(line) => written = socket.write_all(line.as_bytes()),
            Err(_) => break,
        }
    }
    // The client has to notice that no more answers come.
    let _ = socket.shutdown(std::net::Shutdown::Both);
}
