//! The call by which libvirt restores a domain from a pipe. It returns when the guest runs.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::CancelFlag;
use hikkoshi_qemu::{MachineOwner, NotRun, OwnedCard, StreamPipe};
use virt::domain::Domain;
use virt::sys;

use super::{IncomingError, description, persistent, pipe_error};
use crate::connection::Connection;

/// How long libvirt may take to notice that a machine was ended.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How often to look.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

type Returned = Result<Instant, String>;

/// A domain that is being restored.
#[derive(Debug)]
pub(super) struct Restore {
    connection: Connection,
    uuid: String,
    pipe: PathBuf,
    call: Receiver<Returned>,
    returned: Option<Returned>,
}

impl Restore {
    /// Makes the pipe at `path`, and lets libvirt restore a domain with this description from it.
    pub(super) fn start(
        uri: &str,
        uuid: &str,
        path: &Path,
        xml: &str,
        running: bool,
    ) -> Result<Self, IncomingError> {
        let failed = |source| pipe_error(path, source);
        let connection = Connection::open(uri)?;
        // One that a killed program has left.
        let _ = std::fs::remove_file(path);
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
                let restored = restored.map_err(|error| error.message().to_owned());
                // Nobody waits for it any more: the program ends.
                let _ = sender.send(restored.map(|()| at));
            })
            .map_err(failed)?;
        Ok(Self {
            connection,
            uuid: uuid.to_owned(),
            pipe: path.to_owned(),
            call,
            returned: None,
        })
    }

    /// What the call has returned, if it has.
    fn poll(&mut self) -> Option<&Returned> {
        if self.returned.is_none() {
            self.returned = match self.call.try_recv() {
                Ok(returned) => Some(returned),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err("its thread has ended".to_owned())),
            };
        }
        self.returned.as_ref()
    }
}

impl MachineOwner for Restore {
    fn failure(&mut self) -> Option<String> {
        Some(format!("libvirt: {}", self.poll()?.as_ref().err()?))
    }

    fn cards(&self) -> Vec<OwnedCard> {
        cards(&self.connection, &self.uuid)
    }

    fn finish(&mut self, give_up: &CancelFlag) -> Result<Instant, NotRun> {
        while self.returned.is_none() {
            self.returned = match self.call.recv_timeout(POLL_INTERVAL) {
                Ok(returned) => Some(returned),
                Err(RecvTimeoutError::Timeout) if give_up.is_cancelled() => {
                    return Err(unknown(
                        "cancelled while libvirt was about to run the guest",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Err("its thread has ended".to_owned())),
            };
        }
        match &self.returned {
            Some(Ok(at)) => {
                define(self.connection.clone(), &self.pipe);
                Ok(*at)
            }
            Some(Err(error)) => Err(NotRun {
                what: format!("libvirt: {error}"),
                refused: is_refusal(error),
            }),
            None => Err(unknown("libvirt has not answered")),
        }
    }

    fn forget(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while self.poll().is_none() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        persistent::remove(&self.pipe);
        let _ = std::fs::remove_file(&self.pipe);
    }
}

/// A domain that another program has begun to restore.
#[derive(Debug)]
pub(super) struct Resumed {
    uri: String,
    uuid: String,
    pipe: PathBuf,
}

impl Resumed {
    pub(super) fn new(uri: &str, uuid: &str, pipe: &Path) -> Self {
        Self {
            uri: uri.to_owned(),
            uuid: uuid.to_owned(),
            pipe: pipe.to_owned(),
        }
    }

    /// The connection, if the domain runs; `None`: not yet, or it is not known.
    fn running(&self) -> Option<Connection> {
        let connection = Connection::open(&self.uri).ok()?;
        let domain = Domain::lookup_by_uuid_string(&connection, &self.uuid).ok()?;
        let (state, _) = domain.get_state().ok()?;
        (state == sys::VIR_DOMAIN_RUNNING).then_some(connection)
    }
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
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            if let Some(connection) = self.running() {
                define(connection, &self.pipe);
                return Ok(Instant::now());
            }
            if give_up.is_cancelled() || Instant::now() > deadline {
                return Err(unknown("libvirt does not run the domain"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn forget(&mut self) {
        persistent::remove(&self.pipe);
        let _ = std::fs::remove_file(&self.pipe);
    }
}

/// Whether QEMU has refused the command that runs the guest. libvirt's messages may be translated;
/// the name of the command is not.
fn is_refusal(error: &str) -> bool {
    error.contains("'cont'")
}

fn unknown(what: &str) -> NotRun {
    NotRun {
        what: what.to_owned(),
        refused: false,
    }
}

fn cards(connection: &Connection, uuid: &str) -> Vec<OwnedCard> {
    let xml = Domain::lookup_by_uuid_string(connection, uuid)
        .and_then(|domain| domain.get_xml_desc(0))
        .map_err(|error| tracing::debug!(error = error.message(), "reading the domain's XML"));
    xml.map_or_else(|()| Vec::new(), |xml| description::cards(&xml))
}

/// Makes a domain persistent that is to be. Others wait for what comes next, so a thread does it.
fn define(connection: Connection, pipe: &Path) {
    let pipe = pipe.to_owned();
    let defined = thread::Builder::new()
        .name("libvirt-define".to_owned())
        .spawn(move || {
            if let Err(error) = persistent::define(&connection, &pipe) {
                tracing::error!(
                    error,
                    "the domain runs here, but was not made persistent: define it with 'virsh define'"
                );
            }
        });
    if let Err(error) = defined {
        tracing::error!(%error, "starting the thread that makes the domain persistent");
    }
}
