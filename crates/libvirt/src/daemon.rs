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
const AWAY_TIMEOUT: Duration = Duration::from_secs(25);

/// The time between two attempts to reach it.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A domain, by one connection to its daemon.
#[derive(Debug)]
pub(crate) struct Link {
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
    /// The connection that was used last.
    link: Mutex<Option<Arc<Link>>>,
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
        daemon.keep(&Arc::new(Link { connection, domain }));
        Ok((name, uuid, daemon))
    }

    /// The domain with this UUID. Does not connect yet.
    pub(crate) fn new(uri: &str, uuid: &str, name: &str) -> Self {
        Self(Arc::new(Shared {
            uri: uri.to_owned(),
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            link: Mutex::new(None),
        }))
    }

    fn keep(&self, link: &Arc<Link>) {
        let mut kept = self.0.link.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(Arc::clone(link));
    }

    /// The connection. Opens one if there is none, or the daemon was restarted.
    pub(crate) fn link(&self) -> Result<Arc<Link>, DomainError> {
        let kept = {
            let link = self.0.link.lock().unwrap_or_else(PoisonError::into_inner);
            link.clone()
        };
        if let Some(link) = kept
            && link.connection.is_alive()
        {
            return Ok(link);
        }
        let link = Arc::new(self.connect()?);
        self.keep(&link);
        Ok(link)
    }

    /// Opens another connection. A session has one of its own: libvirt lets a connection receive
    /// the events of a domain's monitor once only.
    pub(crate) fn connect(&self) -> Result<Link, DomainError> {
        let connection = Connection::open(&self.0.uri)?;
        let domain = Domain::lookup_by_uuid_string(&connection, &self.0.uuid)
            .map_err(|error| self.failed("its UUID", &error))?;
        Ok(Link { connection, domain })
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
        let deadline = Instant::now() + AWAY_TIMEOUT;
        loop {
            let error = match self.link() {
                Ok(link) => match question(&link.domain) {
                    Ok(answer) => return Ok(answer),
                    Err(error) if link.connection.is_alive() => {
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

    /// Opens a session on the monitor.
    pub(crate) fn session(
        &self,
        monitor: &MonitorAddress,
        process: &Arc<Process>,
    ) -> Result<Client, DomainError> {
        let link = self.connect()?;
        let stream = serve::start(self, link, process).map_err(|what| DomainError::Lookup {
            name: self.0.name.clone(),
            uri: self.0.uri.clone(),
            what: format!("opening its monitor: {what}"),
        })?;
        Ok(Client::over(stream, monitor, Arc::clone(process), TIMEOUT)?)
    }
}
