//! The threads of a session.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::Process;

use super::command;
use super::events::Subscription;
use super::own_socket::{self, Executed, NotExecuted};
use super::qmp::{self, Request};
use super::received::Received;
use crate::DomainError;
use crate::connection::PING_TIMEOUT;
use crate::daemon::{ATTEMPT_TIMEOUT, AWAY_TIMEOUT, Daemon, OpenDomain, RETRY_INTERVAL};

/// Lines that wait to be written: answers, of which there is one at a time, and events.
const LINES: usize = 1024;

/// How long to wait for a daemon that was waited for already. One that was restarted needs some
/// time until it has reached QEMU.
const SHORT_TIMEOUT: Duration = Duration::from_secs(10);

const QUERY_VERSION: &str = r#"{"execute":"query-version"}"#;

/// The one command that is not repeated when its answer was lost with the daemon: QEMU may have
/// written the state already, and would append it.
const NOT_REPEATED: &str = "xen-save-devices-state";

/// QEMU's monitor, as libvirt lends it. The daemon may be restarted.
#[derive(Debug)]
struct LentMonitor {
    daemon: Daemon,
    process: Arc<Process>,
    /// `None`: the daemon is away.
    lent: Option<Lent>,
    /// The daemon was waited for, and has not come back.
    given_up: bool,
    lines: SyncSender<String>,
}

/// A connection to the daemon.
#[derive(Debug)]
struct Lent {
    open: OpenDomain,
    /// The domain's events, over that connection.
    _events: Subscription,
}

/// Serves a session on one end of a pair of sockets, and returns the other end. Waits as long as
/// QEMU needs to tell its version.
///
/// # Errors
///
/// The daemon does not know the domain, or is away, and QEMU does not answer.
pub(crate) fn start(daemon: &Daemon, process: &Arc<Process>) -> Result<UnixStream, DomainError> {
    let failed = |what: String| daemon.not_lent(what);
    let text = |error: io::Error| failed(error.to_string());
    let (client, server) = UnixStream::pair().map_err(text)?;
    let (lines, to_write) = sync_channel(LINES);
    let mut monitor = LentMonitor {
        daemon: daemon.clone(),
        process: Arc::clone(process),
        lent: None,
        given_up: false,
        lines,
    };
    let version = match daemon.connect(ATTEMPT_TIMEOUT) {
        Ok(open) => {
            // Before the greeting, so that no event of the session is missed.
            let lent = monitor.subscribe(open).map_err(failed)?;
            let version = command::execute(&lent.open.domain, QUERY_VERSION, &[]);
            monitor.lent = Some(lent);
            version.map_err(failed)?
        }
        Err(away @ DomainError::Connect { .. }) => {
            match own_socket::execute(process, QUERY_VERSION, &[]) {
                Ok(executed) => executed.answer,
                Err(error) => {
                    tracing::debug!(?error, "using QEMU's own monitor socket");
                    return Err(away);
                }
            }
        }
        Err(error) => return Err(error),
    };
    let greeting = qmp::greeting(&version);
    let greeting = greeting.ok_or_else(|| failed("QEMU did not tell its version".to_owned()))?;
    let write_end = server.try_clone().map_err(text)?;
    thread::Builder::new()
        .name("libvirt-answers".to_owned())
        .spawn(move || write(&greeting, &to_write, write_end))
        .map_err(text)?;
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
    /// Lets QEMU execute a command: through libvirt, or by its own socket while the daemon is away.
    /// A command whose answer was lost is repeated: that changes nothing, or the same again.
    fn execute(&mut self, json: &str, descriptors: &[OwnedFd]) -> Result<String, String> {
        let began = Instant::now();
        let patience = match self.given_up {
            true => SHORT_TIMEOUT,
            false => AWAY_TIMEOUT,
        };
        let not_repeated = |error: &str| {
            json.contains(NOT_REPEATED)
                .then(|| format!("the daemon was restarted while QEMU executed a command: {error}"))
        };
        loop {
            if let Some(lent) = &self.lent {
                let error = match command::execute(&lent.open.domain, json, descriptors) {
                    Err(error) if !lent.open.connection.is_alive() => error,
                    executed => {
                        self.given_up = false;
                        return executed;
                    }
                };
                tracing::info!(error, "libvirt's daemon is away");
                self.lent = None;
                if let Some(error) = not_repeated(&error) {
                    return Err(error);
                }
            }
            // First, because to connect to the daemon can take as long as it needs to start.
            match own_socket::execute(&self.process, json, descriptors) {
                Ok(Executed { answer, events }) => {
                    for event in events {
                        // As from libvirt, if the client does not read.
                        let _ = self.lines.try_send(event);
                    }
                    self.given_up = false;
                    return Ok(answer);
                }
                Err(NotExecuted::NotSent(why)) => {
                    tracing::debug!(why, "using QEMU's own monitor socket");
                }
                Err(NotExecuted::NotAnswered(error)) => {
                    if let Some(error) = not_repeated(&error) {
                        return Err(error);
                    }
                }
            }
            let left = patience.saturating_sub(began.elapsed());
            let Err(error) = self.reopen(left.clamp(PING_TIMEOUT, ATTEMPT_TIMEOUT)) else {
                continue;
            };
            if began.elapsed() > patience || !self.process.is_alive() {
                self.given_up = true;
                return Err(error);
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Connects to the daemon again within `limit`, if it is back and has found the domain.
    fn reopen(&mut self, limit: Duration) -> Result<(), String> {
        let open = self.daemon.connect(limit);
        let open = open.map_err(|error| Report::new(&error).to_string())?;
        let lent = self.subscribe(open)?;
        // It may still be connecting to QEMU.
        command::execute(&lent.open.domain, QUERY_VERSION, &[])?;
        self.lent = Some(lent);
        Ok(())
    }

    fn subscribe(&self, open: OpenDomain) -> Result<Lent, String> {
        let events = Subscription::new(&open.connection, &open.domain, self.lines.clone())?;
        Ok(Lent {
            open,
            _events: events,
        })
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
