//! A domain of a libvirt daemon. The daemon may be restarted at any time; its domains run on.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, MonitorAddress};
use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};

use crate::DomainError;
use crate::connection::Connection;
use crate::monitor::serve;

/// How long to wait until a session is open.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for a daemon that is being restarted. Less than the adapter waits for the
/// answer to a command, so that the reason is reported.
pub(crate) const AWAY_TIMEOUT: Duration = Duration::from_secs(25);

/// The time between two attempts to reach it.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A domain, by one connection to its daemon, open.
#[derive(Debug)]
pub(crate) struct OpenDomain {
    pub(crate) connection: Connection,
    pub(crate) domain: Domain,
}

/// A domain of a daemon. One connection, kept open, and opened again if the daemon was restarted.
#[derive(Debug, Clone)]
pub(crate) struct Daemon(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    uri: String,
    uuid: String,
    name: String,
    /// By the connection that was used last.
    open: Mutex<Option<Arc<OpenDomain>>>,
}

impl Daemon {
    /// Connects to the daemon `uri` and looks for the running domain of this name or UUID. Returns
    /// its name and its UUID, too.
    pub(crate) fn find(uri: &str, name: &str) -> Result<(String, String, Self), DomainError> {
        let connection = Connection::open(uri)?;
        let lookup = |error: Error| DomainError::Lookup {
            name: name.to_owned(),
            uri: uri.to_owned(),
            what: error.message().to_owned(),
        };
        let domain = Domain::lookup_by_name(&connection, name)
            .or_else(|error| Domain::lookup_by_uuid_string(&connection, name).map_err(|_| error))
            .map_err(lookup)?;
        if !domain.is_active().map_err(lookup)? {
            return Err(DomainError::NotRunning {
                name: name.to_owned(),
                uri: uri.to_owned(),
            });
        }
        let name = domain.get_name().map_err(lookup)?;
        let uuid = domain.get_uuid_string().map_err(lookup)?;
        let daemon = Self::new(uri, &uuid, &name);
        daemon.keep(&Arc::new(OpenDomain { connection, domain }));
        Ok((name, uuid, daemon))
    }

    /// The domain with this UUID. Does not connect yet.
    pub(crate) fn new(uri: &str, uuid: &str, name: &str) -> Self {
        Self(Arc::new(Shared {
            uri: uri.to_owned(),
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            open: Mutex::new(None),
        }))
    }

    fn keep(&self, open: &Arc<OpenDomain>) {
        let mut kept = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(Arc::clone(open));
    }

    /// The connection, if there is one and the daemon was not restarted.
    fn kept(&self) -> Option<Arc<OpenDomain>> {
        let kept = {
            let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.clone()
        };
        kept.filter(|open| open.connection.is_alive())
    }

    /// The connection. Opens one if there is none, or the daemon was restarted.
    pub(crate) fn open(&self) -> Result<Arc<OpenDomain>, DomainError> {
        if let Some(open) = self.kept() {
            return Ok(open);
        }
        let open = Arc::new(self.connect()?);
        self.keep(&open);
        Ok(open)
    }

    /// Opens another connection. A session has one of its own: libvirt lets a connection receive
    /// the events of a domain's monitor once only.
    pub(crate) fn connect(&self) -> Result<OpenDomain, DomainError> {
        let connection = Connection::open(&self.0.uri)?;
        let domain = Domain::lookup_by_uuid_string(&connection, &self.0.uuid)
            .map_err(|error| self.failed("its UUID", &error))?;
        Ok(OpenDomain { connection, domain })
    }

    /// Lets libvirt answer a question about the domain, or change it: `what`. If the daemon is
    /// being restarted, waits until it is back.
    ///
    /// `question` may be asked twice: a daemon that is killed may have done what it was asked to.
    pub(crate) fn ask<T>(
        &self,
        what: &str,
        question: impl Fn(&Domain) -> Result<T, Error>,
    ) -> Result<T, DomainError> {
        self.ask_or(what, AWAY_TIMEOUT, question, || None)
    }

    /// The same, within this time; zero: only by the connection that there is. If there is none,
    /// `otherwise` may answer instead. (To connect can take as long as the daemon needs to start:
    /// systemd listens for it.)
    pub(crate) fn ask_or<T>(
        &self,
        what: &str,
        patience: Duration,
        question: impl Fn(&Domain) -> Result<T, Error>,
        otherwise: impl Fn() -> Option<T>,
    ) -> Result<T, DomainError> {
        let deadline = Instant::now() + patience;
        loop {
            let open = match self.kept() {
                Some(open) => Ok(open),
                None => match otherwise() {
                    Some(answer) => return Ok(answer),
                    None if patience.is_zero() => Err(self.away()),
                    None => self.open(),
                },
            };
            let error = match open {
                Ok(open) => match question(&open.domain) {
                    Ok(answer) => return Ok(answer),
                    Err(error) if open.connection.is_alive() => {
                        return Err(self.failed(what, &error));
                    }
                    Err(error) => self.failed(what, &error),
                },
                Err(error @ DomainError::Connect { .. }) => error,
                Err(error) => return Err(error),
            };
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn away(&self) -> DomainError {
        DomainError::Connect {
            uri: self.0.uri.clone(),
            what: "the connection was lost, and a paused guest does not wait for the daemon"
                .to_owned(),
        }
    }

    /// The domain's XML.
    pub(crate) fn xml(&self, flags: u32) -> Result<String, DomainError> {
        self.ask("its XML", |domain| domain.get_xml_desc(flags))
    }

    fn failed(&self, what: &str, error: &Error) -> DomainError {
        if error.code() == ErrorNumber::NoDomain {
            return DomainError::Gone {
                name: self.0.name.clone(),
                uri: self.0.uri.clone(),
            };
        }
        DomainError::Asked {
            name: self.0.name.clone(),
            uri: self.0.uri.clone(),
            asked: what.to_owned(),
            what: error.message().to_owned(),
        }
    }

    /// No session was opened on the domain's monitor.
    pub(crate) fn not_lent(&self, what: String) -> DomainError {
        DomainError::Lookup {
            name: self.0.name.clone(),
            uri: self.0.uri.clone(),
            what: format!("opening its monitor: {what}"),
        }
    }

    /// Opens a session on the monitor.
    pub(crate) fn session(
        &self,
        monitor: &MonitorAddress,
        process: &Arc<Process>,
    ) -> Result<Client, DomainError> {
        let stream = serve::start(self, process)?;
        Ok(Client::over(stream, monitor, Arc::clone(process), TIMEOUT)?)
    }
}
