//! A domain of a libvirt daemon. The daemon may be restarted at any time; its domains run on. It
//! may also hang, at any time.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use virt::domain::Domain;
use virt::error::Error;

use crate::DomainError;
use crate::call::{Call, CallError};
use crate::connection::{Connection, OPEN_TIMEOUT, PING_TIMEOUT};

/// How long one attempt to reach the daemon may take, if there is another one afterwards.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long libvirt may work on an answer. It waits up to 30 s for what else changes the domain,
/// and then for the end of QEMU, if it is to end it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for a daemon, if only that can resume a paused guest.
pub(crate) const PAUSED_TIMEOUT: Duration = Duration::from_secs(300);

/// How often to report that a paused guest waits for the daemon.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// How long to wait for a daemon that is being restarted. Less than the adapter waits for the
/// answer to a command, so that the reason is reported.
pub(crate) const AWAY_TIMEOUT: Duration = OPEN_TIMEOUT;

/// The time between two attempts to reach it.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A domain, by one connection to its daemon, open.
#[derive(Debug)]
pub(crate) struct OpenDomain {
    // Dropped first: the last reference closes the connection.
    pub(crate) domain: Domain,
    pub(crate) connection: Connection,
}

impl OpenDomain {
    /// Lets libvirt answer a question about the domain, or change it, within `limit`.
    pub(crate) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        question: impl FnOnce(&Domain) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, CallError> {
        let open = Arc::clone(self);
        self.connection.ask(limit, move |_| question(&open.domain))
    }
}

/// A session that is beginning, of the QEMU with this process ID.
pub(crate) type Beginning = (u32, Call<Result<UnixStream, DomainError>>);

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
    /// One that was not waited for any longer: QEMU has not answered.
    beginning: Mutex<Option<Beginning>>,
}

/// The names of the domains that run at the daemon `uri`, sorted.
pub(crate) fn running_domains(uri: &str) -> Result<Vec<String>, DomainError> {
    let connection = Connection::open(uri)?;
    let found = connection.ask(ANSWER_TIMEOUT, |connection| {
        let domains = connection.list_all_domains(virt::sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE)?;
        domains.iter().map(Domain::get_name).collect()
    });
    let mut names: Vec<String> = found.map_err(|error| match error {
        CallError::NoAnswer(after) => DomainError::NoAnswer {
            uri: uri.to_owned(),
            asked: "for its domains".to_owned(),
            after,
        },
        error => DomainError::Connect {
            uri: uri.to_owned(),
            what: error.text(),
        },
    })?;
    names.sort_unstable();
    Ok(names)
}

impl Daemon {
    /// Connects to the daemon `uri` and looks for the running domain of this name or UUID. Returns
    /// its name and its UUID, too.
    pub(crate) fn find(uri: &str, name: &str) -> Result<(String, String, Self), DomainError> {
        let connection = Connection::open(uri)?;
        let wanted = name.to_owned();
        let found = connection.ask(ANSWER_TIMEOUT, move |connection| {
            let domain = Domain::lookup_by_name(connection, &wanted).or_else(|error| {
                Domain::lookup_by_uuid_string(connection, &wanted).map_err(|_| error)
            })?;
            let (name, uuid) = (domain.get_name()?, domain.get_uuid_string()?);
            Ok((name, uuid, domain.is_active()?, domain))
        });
        let (name, uuid, is_active, domain) = found.map_err(|error| match error {
            CallError::NoAnswer(after) => DomainError::NoAnswer {
                uri: uri.to_owned(),
                asked: format!("for the domain {name}"),
                after,
            },
            error => DomainError::Lookup {
                name: name.to_owned(),
                uri: uri.to_owned(),
                what: error.text(),
            },
        })?;
        if !is_active {
            return Err(DomainError::NotRunning {
                name,
                uri: uri.to_owned(),
            });
        }
        let daemon = Self::new(uri, &uuid, &name);
        daemon.keep(&Arc::new(OpenDomain { domain, connection }));
        Ok((name, uuid, daemon))
    }

    /// The domain with this UUID. Does not connect yet.
    pub(crate) fn new(uri: &str, uuid: &str, name: &str) -> Self {
        Self(Arc::new(Shared {
            uri: uri.to_owned(),
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            open: Mutex::new(None),
            beginning: Mutex::new(None),
        }))
    }

    /// The session that is beginning, if one is.
    pub(crate) fn beginning(&self) -> MutexGuard<'_, Option<Beginning>> {
        let beginning = self.0.beginning.lock();
        beginning.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OpenDomain>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, open: &Arc<OpenDomain>) {
        *self.lock() = Some(Arc::clone(open));
    }

    /// The daemon does not answer by this connection.
    fn discard(&self, open: &Arc<OpenDomain>) {
        let mut kept = self.lock();
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, open)) {
            *kept = None;
        }
    }

    /// The connection, if there is one and the daemon was not restarted.
    fn kept(&self) -> Option<Arc<OpenDomain>> {
        let kept = self.lock().clone();
        kept.filter(|open| open.connection.is_alive())
    }

    /// The connection. Opens one if there is none, or the daemon was restarted.
    fn open(&self, limit: Duration) -> Result<Arc<OpenDomain>, DomainError> {
        if let Some(open) = self.kept() {
            return Ok(open);
        }
        let open = Arc::new(self.connect(limit)?);
        self.keep(&open);
        Ok(open)
    }

    /// Opens another connection within `limit`. A session has one of its own: libvirt lets a
    /// connection receive the events of a domain's monitor once only.
    pub(crate) fn connect(&self, limit: Duration) -> Result<OpenDomain, DomainError> {
        let connection = Connection::open_within(&self.0.uri, limit)?;
        let uuid = self.0.uuid.clone();
        // The daemon has just answered.
        let found = connection.ask(limit.max(PING_TIMEOUT), move |connection| {
            Domain::lookup_by_uuid_string(connection, &uuid)
        });
        let domain = found.map_err(|error| self.failed("its UUID", &error))?;
        Ok(OpenDomain { domain, connection })
    }

    /// Lets libvirt answer a question about the domain, or change it: `what`. If the daemon is
    /// being restarted, waits until it is back.
    ///
    /// `question` may be asked twice: a daemon that is killed may have done what it was asked to.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        what: &str,
        question: impl Fn(&Domain) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, DomainError> {
        self.ask_or(what, AWAY_TIMEOUT, question, || None)
    }

    /// Lets libvirt answer within this time; zero: only by the connection that there is. If there
    /// is none, `otherwise` may answer instead. (To connect can take as long as the daemon needs to
    /// start: systemd listens for it.)
    pub(crate) fn ask_or<T: Send + 'static>(
        &self,
        what: &str,
        patience: Duration,
        question: impl Fn(&Domain) -> Result<T, Error> + Send + Sync + 'static,
        otherwise: impl Fn() -> Option<T>,
    ) -> Result<T, DomainError> {
        let question = Arc::new(question);
        let answer_timeout = match patience.is_zero() {
            true => PING_TIMEOUT,
            false => ANSWER_TIMEOUT,
        };
        let began = Instant::now();
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let open = match self.kept() {
                Some(open) => Ok(open),
                None => match otherwise() {
                    Some(answer) => return Ok(answer),
                    None if patience.is_zero() => Err(self.away()),
                    None => self.open(left.clamp(PING_TIMEOUT, ATTEMPT_TIMEOUT)),
                },
            };
            let error = match open {
                Ok(open) => {
                    let question = Arc::clone(&question);
                    match open.ask(answer_timeout, move |domain| question(domain)) {
                        Ok(answer) => return Ok(answer),
                        Err(error @ CallError::NoAnswer(_)) => {
                            self.discard(&open);
                            self.failed(what, &error)
                        }
                        Err(error) if open.connection.is_alive() => {
                            return Err(self.failed(what, &error));
                        }
                        Err(error) => self.failed(what, &error),
                    }
                }
                Err(error @ (DomainError::Connect { .. } | DomainError::NoAnswer { .. })) => error,
                Err(error) => return Err(error),
            };
            if began.elapsed() >= patience {
                return Err(self.explain(error, what, began.elapsed()));
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Waits until libvirt answers, or `is_free` says that QEMU can be reached without it: nothing
    /// else can resume a paused guest.
    pub(crate) fn wait_until_reachable(
        &self,
        is_free: impl Fn() -> bool,
    ) -> Result<(), DomainError> {
        let began = Instant::now();
        let mut next_report = ATTEMPT_TIMEOUT;
        loop {
            let open = match self.kept() {
                Some(open) => Ok(open),
                None if is_free() => return Ok(()),
                None => self.open(PING_TIMEOUT),
            };
            let error = match open {
                Ok(open) => match open.ask(PING_TIMEOUT, Domain::get_state) {
                    Err(error @ CallError::NoAnswer(_)) => {
                        self.discard(&open);
                        self.failed("its state", &error)
                    }
                    Err(error) if !open.connection.is_alive() => self.failed("its state", &error),
                    // Whatever it says.
                    _ => return Ok(()),
                },
                Err(error @ (DomainError::Connect { .. } | DomainError::NoAnswer { .. })) => error,
                Err(_) => return Ok(()),
            };
            let waited = began.elapsed();
            let error = self.explain(error, "to resume its guest", waited);
            if waited >= PAUSED_TIMEOUT {
                return Err(error);
            }
            if waited >= next_report {
                next_report += REPORT_INTERVAL;
                tracing::error!(
                    domain = self.0.name,
                    %error,
                    "the guest may be paused here, and nothing else reaches QEMU's monitor: the guest is \
                     resumed as soon as the daemon answers or has ended"
                );
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
        self.ask("its XML", move |domain| domain.get_xml_desc(flags))
    }

    fn failed(&self, what: &str, error: &CallError) -> DomainError {
        if error.is_no_domain() {
            return DomainError::Gone {
                name: self.0.name.clone(),
                uri: self.0.uri.clone(),
            };
        }
        if let CallError::NoAnswer(after) = error {
            return self.no_answer(what, *after);
        }
        DomainError::Asked {
            name: self.0.name.clone(),
            uri: self.0.uri.clone(),
            asked: what.to_owned(),
            what: error.text(),
        }
    }

    fn no_answer(&self, what: &str, after: Duration) -> DomainError {
        DomainError::NoAnswer {
            uri: self.0.uri.clone(),
            asked: format!("about the domain {}: {what}", self.0.name),
            after,
        }
    }

    /// An error of the last attempt, for all of them.
    fn explain(&self, error: DomainError, what: &str, waited: Duration) -> DomainError {
        match error {
            DomainError::NoAnswer { .. } => self.no_answer(what, waited),
            error => error,
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
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A daemon that is stopped: the kernel accepts connections for it.
    #[test]
    fn a_daemon_that_hangs_is_asked_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _daemon = UnixListener::bind(&path).unwrap();
        let uri = format!("qemu:///system?socket={}", path.display());
        let daemon = Daemon::new(&uri, "6695eb01-f6a4-8304-79aa-97f2502e193f", "guest");
        let patience = Duration::from_secs(3);
        let asked = daemon.ask_or("its state", patience, Domain::get_state, || None);
        let text = asked.unwrap_err().to_string();
        let expected = format!("libvirt's daemon at {uri} has not answered for");
        assert!(text.starts_with(&expected), "{text}");
        let asked = "about the domain guest: its state";
        assert!(text.contains(asked) && text.contains("restart"), "{text}");
        // Without the daemon.
        let state = daemon.ask_or("its state", patience, Domain::get_state, || Some((1, 1)));
        assert_eq!(state.unwrap(), (1, 1));
        daemon.wait_until_reachable(|| true).unwrap();
        // A paused guest does not wait for a connection.
        let asked = daemon.ask_or("its state", Duration::ZERO, Domain::get_state, || None);
        let error = asked.unwrap_err();
        assert!(matches!(error, DomainError::Connect { .. }), "{error}");
    }
}
