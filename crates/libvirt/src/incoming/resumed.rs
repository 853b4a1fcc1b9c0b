//! A domain that another program, or another daemon, has begun to restore.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::CancelFlag;
use hikkoshi_qemu::{LoadedGuest, MachineOwner, NotRun, OwnedCard};
use virt::domain::Domain;
use virt::sys;

use super::{description, persistent};
use crate::DomainError;
use crate::call::CallError;
use crate::connection::{Connection, PING_TIMEOUT};
use crate::daemon::ATTEMPT_TIMEOUT;
use crate::job;

/// How long a daemon that is being restarted may take until it has the domain again.
pub(super) const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to look.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What has become of a QEMU that was asked whether it has run its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// It has never run it, and was ended.
    Ended,
    /// It has run it, or does not say so.
    MayHaveRun,
    /// It was not reached.
    NotReached,
}

/// A domain that another program has begun to restore, or another daemon.
#[derive(Debug)]
pub(super) struct Resumed {
    pub(super) uri: String,
    pub(super) uuid: String,
    pipe: PathBuf,
    /// Whether the guest is to run.
    pub(super) running: bool,
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
    fn look(&self, connection: &Connection) -> Result<Seen, CallError> {
        let (uuid, running) = (self.uuid.clone(), self.running);
        let seen = connection.ask(PING_TIMEOUT, move |connection| {
            let domain = Domain::lookup_by_uuid_string(connection, &uuid)?;
            let (state, _) = domain.get_state()?;
            Ok(match state {
                sys::VIR_DOMAIN_SHUTOFF | sys::VIR_DOMAIN_CRASHED => Seen::Ended,
                sys::VIR_DOMAIN_RUNNING if running => Seen::Restored,
                sys::VIR_DOMAIN_PAUSED if !running && !job::is_under_way(&domain)? => {
                    Seen::Restored
                }
                _ => Seen::Restoring,
            })
        });
        match seen {
            Err(error) if error.is_no_domain() => Ok(Seen::Ended),
            seen => seen,
        }
    }

    /// Waits until the daemon, which may be restarted or hang, runs the guest. While no daemon is
    /// there, `ask` asks QEMU itself: first of all if it `is_away`.
    pub(super) fn wait(
        &self,
        give_up: &CancelFlag,
        mut is_away: bool,
        ask: &dyn Fn() -> Asked,
    ) -> Result<Instant, NotRun> {
        let began = Instant::now();
        let mut connection = None;
        let mut may_have_run = !self.running;
        loop {
            if is_away && !may_have_run {
                match ask() {
                    Asked::Ended => {
                        return Err(NotRun {
                            what:
                                "libvirt's daemon has ended before it ran the guest, and ends such \
                                   a domain when it is started again"
                                    .to_owned(),
                            never_ran: true,
                        });
                    }
                    Asked::MayHaveRun => may_have_run = true,
                    Asked::NotReached => {}
                }
            }
            is_away = false;
            let mut why = "libvirt does not run the domain".to_owned();
            if connection.is_none() {
                match Connection::open_within(&self.uri, ATTEMPT_TIMEOUT) {
                    Ok(open) => connection = Some(open),
                    Err(error) => {
                        is_away = !matches!(error, DomainError::NoAnswer { .. });
                        why = error.after(began.elapsed()).to_string();
                    }
                }
            }
            match connection.as_ref().map(|open| self.look(open)) {
                Some(Ok(Seen::Restored)) => return Ok(Instant::now()),
                Some(Ok(Seen::Ended)) => {
                    return Err(unknown(
                        "libvirt has ended the domain: its daemon was started again before it had \
                         recorded that it runs the guest",
                    ));
                }
                // The daemon was restarted, or has not yet found the domain's QEMU, or hangs.
                Some(Err(error)) => {
                    why = format!("libvirt: {}", error.text());
                    tracing::debug!(why, "waiting for the domain");
                    let hangs = matches!(error, CallError::NoAnswer(_));
                    connection = connection.filter(|open| !hangs && open.is_alive());
                }
                Some(Ok(Seen::Restoring)) | None => {}
            }
            if give_up.is_cancelled() || began.elapsed() > DAEMON_TIMEOUT {
                return Err(unknown(&why));
            }
            thread::sleep(POLL_INTERVAL);
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
        let connection = Connection::open_within(&self.uri, ATTEMPT_TIMEOUT);
        connection.map_or_else(|_| Vec::new(), |connection| cards(&connection, &self.uuid))
    }

    fn check_answers(&mut self) -> Result<(), String> {
        Connection::open_within(&self.uri, ATTEMPT_TIMEOUT)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn finish(&mut self, _: &LoadedGuest, give_up: &CancelFlag) -> Result<Instant, NotRun> {
        // Another program has loaded the guest.
        self.wait(give_up, false, &|| Asked::MayHaveRun)
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

pub(super) fn unknown(what: &str) -> NotRun {
    NotRun {
        what: what.to_owned(),
        never_ran: false,
    }
}

pub(super) fn cards(connection: &Connection, uuid: &str) -> Vec<OwnedCard> {
    let uuid = uuid.to_owned();
    let xml = connection.ask(ATTEMPT_TIMEOUT, move |connection| {
        Domain::lookup_by_uuid_string(connection, &uuid)?.get_xml_desc(0)
    });
    let xml =
        xml.map_err(|error| tracing::debug!(error = error.text(), "reading the domain's XML"));
    xml.map_or_else(|()| Vec::new(), |xml| description::cards(&xml))
}
