//! The call by which libvirt restores a domain from a pipe. It returns when the guest runs.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::CancelFlag;
use hikkoshi_qemu::{MachineOwner, NotRun, OwnedCard, StreamPipe};
use hikkoshi_wire::Domain as DomainOffer;
use serde_json::{Value, json};
use virt::domain::Domain;
use virt::error::{Error, ErrorDomain, ErrorNumber};
use virt::sys;

use super::{IncomingError, description, persistent, pipe_error};
use crate::connection::Connection;
use crate::job;
use crate::monitor::own_socket;
use crate::process;

/// How long libvirt may take to notice that a machine was ended.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a daemon that is being restarted may take until it has the domain again.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);

/// How long QEMU may take to greet. It may be waiting for pages, to complete what it has loaded.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// QEMU's names for the states of a guest that libvirt's restore has not run yet. (While it
/// restores, no other client pauses it.)
const NEVER_RAN: [&str; 3] = ["inmigrate", "paused", "prelaunch"];

/// How often to look.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// When the call has returned, or libvirt's error.
type Returned = Result<Instant, CallError>;

/// libvirt's error.
#[derive(Debug, Clone)]
struct CallError {
    message: String,
    /// Whether QEMU has refused the command that runs the guest.
    refused: bool,
}

impl CallError {
    /// libvirt's messages may be translated, but not the name of the command in
    /// `unable to execute QEMU command 'cont': …`.
    fn of(error: &Error) -> Self {
        let message = error.message().to_owned();
        let (before, _) = message.split_once("': ").unwrap_or_default();
        Self {
            refused: error.domain() == ErrorDomain::Qemu && before.ends_with("'cont"),
            message,
        }
    }

    fn thread_ended() -> Self {
        Self {
            message: "the thread that restores the domain has ended".to_owned(),
            refused: false,
        }
    }
}

/// A domain that is being restored.
#[derive(Debug)]
pub(super) struct Restore {
    /// The call's own connection: libvirt's library delays other calls on it, now and then until
    /// the next keep-alive message (measured: 3 s).
    connection: Connection,
    /// For everything else.
    questions: Connection,
    call: Receiver<Returned>,
    returned: Option<Returned>,
    /// The domain's name.
    name: String,
    /// What to do if the daemon ends before it answers.
    resumed: Resumed,
}

impl Restore {
    /// Makes the pipe at `path`, and lets libvirt restore a domain with this description from it.
    pub(super) fn start(
        uri: &str,
        offer: &DomainOffer,
        path: &Path,
        xml: &str,
        running: bool,
    ) -> Result<Self, IncomingError> {
        let failed = |source| pipe_error(path, source);
        let connection = Connection::open(uri)?;
        let questions = Connection::open(uri)?;
        StreamPipe::make(path).map_err(failed)?;
        let flags = if running {
            sys::VIR_DOMAIN_SAVE_RUNNING
        } else {
            sys::VIR_DOMAIN_SAVE_PAUSED
        };
        let (sender, call) = sync_channel(1);
        let (of_call, shown, xml) = (
            connection.clone(),
            path.display().to_string(),
            xml.to_owned(),
        );
        thread::Builder::new()
            .name("libvirt-restore".to_owned())
            .spawn(move || {
                let restored = Domain::domain_restore_flags(&of_call, &shown, Some(&xml), flags);
                let at = Instant::now();
                let restored = restored.map_err(|error| CallError::of(&error));
                // If the program ends, nothing receives it.
                let _ = sender.send(restored.map(|()| at));
            })
            .map_err(failed)?;
        Ok(Self {
            connection,
            questions,
            call,
            returned: None,
            name: offer.name.clone(),
            resumed: Resumed::new(uri, &offer.uuid, path, running),
        })
    }

    /// What the call has returned, if it has.
    fn poll(&mut self) -> Option<&Returned> {
        if self.returned.is_none() {
            self.returned = match self.call.try_recv() {
                Ok(returned) => Some(returned),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(CallError::thread_ended())),
            };
        }
        self.returned.as_ref()
    }
}

impl Restore {
    /// Asks QEMU itself whether it runs the guest, now that the daemon is away, and ends it if not:
    /// no other program runs it then. Returns whether it was ended.
    fn end_unless_it_runs(&self) -> bool {
        let Resumed { uri, uuid, .. } = &self.resumed;
        let found = process::run_folder(uri)
            .and_then(|run_folder| process::find(&run_folder, &self.name, uuid));
        let ended = found
            .map_err(|error| error.to_string())
            .and_then(|process| {
                // As long as it is open, the daemon does not reach QEMU.
                let mut monitor = own_socket::connect(&process, GREETING_TIMEOUT)?;
                let status = monitor.execute("query-status", json!({}));
                let status = status.map_err(|error| error.to_string())?;
                let status = status.get("status").and_then(Value::as_str);
                if !status.is_some_and(|status| NEVER_RAN.contains(&status)) {
                    return Ok(false);
                }
                process.kill().map_err(|error| error.to_string())?;
                Ok(true)
            });
        ended.unwrap_or_else(|error| {
            tracing::warn!(error, "asking QEMU itself whether it runs the guest");
            false
        })
    }
}

impl MachineOwner for Restore {
    fn failure(&mut self) -> Option<String> {
        let message = self.poll()?.as_ref().err()?.message.clone();
        Some(match self.connection.is_alive() {
            true => format!("libvirt: {message}"),
            false => format!(
                "libvirt's daemon has ended while it restored the domain, which it does not \
                 continue when it is started again: {message}"
            ),
        })
    }

    fn cards(&self) -> Vec<OwnedCard> {
        cards(&self.questions, &self.resumed.uuid)
    }

    fn finish(&mut self, give_up: &CancelFlag) -> Result<Instant, NotRun> {
        let returned = loop {
            match self.call.recv_timeout(POLL_INTERVAL) {
                Ok(returned) => break returned,
                Err(RecvTimeoutError::Timeout) if give_up.is_cancelled() => {
                    return Err(unknown(
                        "cancelled while libvirt was about to run the guest",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Err(CallError::thread_ended()),
            }
        };
        self.returned = Some(returned.clone());
        match returned {
            Ok(at) => Ok(at),
            // The daemon has ended before it answered, and may have run the guest.
            Err(error) if !error.refused && !self.connection.is_alive() => {
                if self.resumed.running && self.end_unless_it_runs() {
                    return Err(NotRun {
                        what:
                            "libvirt's daemon has ended before it ran the guest, and ends such a \
                               domain when it is started again"
                                .to_owned(),
                        never_ran: true,
                    });
                }
                tracing::warn!(error = error.message, "waiting for libvirt's daemon");
                self.resumed.finish(give_up)
            }
            Err(error) => Err(NotRun {
                what: format!("libvirt: {}", error.message),
                never_ran: error.refused,
            }),
        }
    }

    fn forget(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        self.resumed.forget();
        while self.poll().is_none() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A domain that another program has begun to restore, or another daemon.
#[derive(Debug)]
pub(super) struct Resumed {
    uri: String,
    uuid: String,
    pipe: PathBuf,
    /// Whether the guest is to run.
    running: bool,
}

impl Resumed {
    pub(super) fn new(uri: &str, uuid: &str, pipe: &Path, running: bool) -> Self {
        Self {
            uri: uri.to_owned(),
            uuid: uuid.to_owned(),
            pipe: pipe.to_owned(),
            running,
        }
    }

    /// What has become of the domain.
    fn look(&self, connection: &Connection) -> Result<Seen, Error> {
        let found = Domain::lookup_by_uuid_string(connection, &self.uuid);
        let seen = found.and_then(|domain| {
            let (state, _) = domain.get_state()?;
            Ok(match state {
                sys::VIR_DOMAIN_SHUTOFF | sys::VIR_DOMAIN_CRASHED => Seen::Ended,
                sys::VIR_DOMAIN_RUNNING if self.running => Seen::Restored,
                sys::VIR_DOMAIN_PAUSED if !self.running && !job::is_under_way(&domain)? => {
                    Seen::Restored
                }
                _ => Seen::Restoring,
            })
        });
        match seen {
            Err(error) if error.code() == ErrorNumber::NoDomain => Ok(Seen::Ended),
            seen => seen,
        }
    }
}

/// A domain that was being restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Restoring,
    Restored,
    Ended,
}

impl MachineOwner for Resumed {
    fn failure(&mut self) -> Option<String> {
        None
    }

    fn cards(&self) -> Vec<OwnedCard> {
        let connection = Connection::open(&self.uri);
        connection.map_or_else(|_| Vec::new(), |connection| cards(&connection, &self.uuid))
    }

    fn finish(&mut self, give_up: &CancelFlag) -> Result<Instant, NotRun> {
        let deadline = Instant::now() + DAEMON_TIMEOUT;
        let mut connection = None;
        loop {
            if connection.is_none() {
                connection = Connection::open(&self.uri).ok();
            }
            match connection.as_ref().map(|open| self.look(open)) {
                Some(Ok(Seen::Restored)) => return Ok(Instant::now()),
                Some(Ok(Seen::Ended)) => {
                    return Err(unknown(
                        "libvirt has ended the domain: its daemon was started again before it had \
                         recorded that it runs the guest",
                    ));
                }
                // The daemon was restarted, or has not yet found the domain's QEMU.
                Some(Err(error)) => {
                    tracing::debug!(error = error.message(), "waiting for the domain");
                    connection = connection.filter(Connection::is_alive);
                }
                Some(Ok(Seen::Restoring)) | None => {}
            }
            if give_up.is_cancelled() || Instant::now() > deadline {
                return Err(unknown("libvirt does not run the domain"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn forget(&mut self) {
        if let Some(folder) = self.pipe.parent() {
            persistent::remove(folder, &self.uuid);
        }
        // A daemon that still waits until the pipe is opened for writing goes on, and fails.
        let opened = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&self.pipe);
        let _ = std::fs::remove_file(&self.pipe);
        drop(opened);
    }
}

fn unknown(what: &str) -> NotRun {
    NotRun {
        what: what.to_owned(),
        never_ran: false,
    }
}

fn cards(connection: &Connection, uuid: &str) -> Vec<OwnedCard> {
    let xml = Domain::lookup_by_uuid_string(connection, uuid)
        .and_then(|domain| domain.get_xml_desc(0))
        .map_err(|error| tracing::debug!(error = error.message(), "reading the domain's XML"));
    xml.map_or_else(|()| Vec::new(), |xml| description::cards(&xml))
}
