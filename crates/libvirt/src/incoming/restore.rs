//! The call by which libvirt restores a domain from a pipe. It returns when the guest runs.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::CancelFlag;
use hikkoshi_qemu::{LoadedGuest, MachineOwner, NotRun, OwnedCard, StreamPipe};
use hikkoshi_wire::Domain as DomainOffer;
use virt::domain::Domain;
use virt::error::{Error, ErrorDomain};
use virt::sys;

use super::error::{IncomingError, pipe_error};
use super::qemu_log;
use super::resumed::{Asked, DAEMON_TIMEOUT, Resumed, cards, unknown};
use crate::DomainError;
use crate::connection::Connection;
use crate::monitor::own_socket;
use crate::process;

/// How long libvirt may take to notice that a machine was ended.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How long QEMU may take to greet. It may be waiting for pages, to complete what it has loaded.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to find out whether the daemon still answers, while it is to run the guest: it does
/// that within milliseconds, unless QEMU waits for pages.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// How often to look.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// When the call has returned, or libvirt's error.
type Returned = Result<Instant, RestoreError>;

/// libvirt's error.
#[derive(Debug, Clone)]
struct RestoreError {
    message: String,
    /// Whether QEMU has refused the command that runs the guest.
    refused: bool,
    /// Whether the daemon has not answered keep-alive messages.
    hangs: bool,
}

impl RestoreError {
    /// The daemon's messages may be translated, but not the name of the command in
    /// `unable to execute QEMU command 'cont': …`. Those of the library are not: this program sets
    /// no locale.
    fn of_error(error: &Error) -> Self {
        let message = error.message().to_owned();
        let (before, _) = message.split_once("': ").unwrap_or_default();
        Self {
            refused: error.domain() == ErrorDomain::Qemu && before.ends_with("'cont"),
            hangs: message.contains("keepalive timeout"),
            message,
        }
    }

    fn thread_ended() -> Self {
        Self {
            message: "the thread that restores the domain has ended".to_owned(),
            refused: false,
            hangs: false,
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
                let restored = restored.map_err(|error| RestoreError::of_error(&error));
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
                Err(TryRecvError::Disconnected) => Some(Err(RestoreError::thread_ended())),
            };
        }
        self.returned.as_ref()
    }
}

impl Restore {
    /// Asks QEMU itself whether it has ever run the guest, now that the daemon is away, and ends it
    /// if not: no other program runs it then.
    fn end_unless_it_ran(&self, loaded: &LoadedGuest) -> Asked {
        let Resumed { uri, uuid, .. } = &self.resumed;
        let found = process::run_folder(uri)
            .and_then(|run_folder| process::find(&run_folder, &self.name, uuid));
        let asked = found
            .map_err(|error| error.to_string())
            .and_then(|process| {
                // As long as it is open, the daemon does not reach QEMU.
                let mut monitor = own_socket::connect(&process, GREETING_TIMEOUT)?;
                let never_ran = loaded.has_never_run(&mut monitor);
                if !never_ran.map_err(|error| Report::new(&error).to_string())? {
                    return Ok(Asked::MayHaveRun);
                }
                process.kill().map_err(|error| error.to_string())?;
                Ok(Asked::Ended)
            });
        asked.unwrap_or_else(|error| {
            tracing::debug!(error, "asking QEMU itself whether it has run the guest");
            Asked::NotReached
        })
    }

    /// Waits until libvirt has restored the domain.
    fn returned(&mut self, give_up: &CancelFlag) -> Result<Returned, NotRun> {
        let mut next_ping = Instant::now() + PING_INTERVAL;
        let mut silent_since = None;
        loop {
            match self.call.recv_timeout(POLL_INTERVAL) {
                Ok(returned) => return Ok(returned),
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Err(RestoreError::thread_ended()));
                }
                Err(RecvTimeoutError::Timeout) if give_up.is_cancelled() => {
                    return Err(unknown(
                        "cancelled while libvirt was about to run the guest",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() < next_ping {
                continue;
            }
            // QEMU may wait for pages, as long as the links need. The daemon may not.
            match self.questions.ping() {
                Err(error @ DomainError::NoAnswer { .. }) => {
                    let since = *silent_since.get_or_insert(next_ping);
                    if since.elapsed() > DAEMON_TIMEOUT {
                        return Err(unknown(&error.to_string()));
                    }
                }
                _ => silent_since = None,
            }
            next_ping = Instant::now() + PING_INTERVAL;
        }
    }
}

impl MachineOwner for Restore {
    fn failure(&mut self) -> Option<String> {
        let error = self.poll()?.as_ref().err()?.clone();
        let message = error.message;
        Some(match self.connection.is_alive() {
            true => format!("libvirt: {message}"),
            false => format!(
                "libvirt's daemon {} while it restored the domain, which it does not continue when \
                 it is started again: {message}",
                match error.hangs {
                    true => "has not answered for 15 s",
                    false => "has ended",
                }
            ),
        })
    }

    fn cards(&self) -> Vec<OwnedCard> {
        cards(&self.questions, &self.resumed.uuid)
    }

    fn log(&self) -> Option<File> {
        qemu_log::open(&self.resumed.uri, &self.name)
    }

    fn check_answers(&mut self) -> Result<(), String> {
        self.questions.ping().map_err(|error| error.to_string())
    }

    fn finish(&mut self, loaded: &LoadedGuest, give_up: &CancelFlag) -> Result<Instant, NotRun> {
        let returned = self.returned(give_up)?;
        self.returned = Some(returned.clone());
        match returned {
            Ok(at) => Ok(at),
            // The daemon has ended, or hangs, before it answered, and may have run the guest.
            Err(error) if !error.refused && !self.connection.is_alive() => {
                tracing::warn!(error = error.message, "waiting for libvirt's daemon");
                let ask = || self.end_unless_it_ran(loaded);
                // One that hangs keeps QEMU's monitor.
                let asks = self.resumed.running && !error.hangs;
                self.resumed.wait(give_up, asks, &ask)
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
