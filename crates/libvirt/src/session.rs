//! Domains of a libvirt daemon that lends their monitors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, ConnectError};
use virt::domain::Domain;
use virt::error::Error;

use crate::DomainError;
use crate::connection::Connection;
use crate::monitor::serve;

/// How long to wait until a session is open.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A domain whose daemon lends its monitor. One connection, kept open.
#[derive(Debug)]
pub(crate) struct Lender {
    connection: Connection,
    domain: Domain,
}

impl Lender {
    /// Connects to the daemon `uri` and looks for the running domain of this name or UUID.
    pub(crate) fn find(uri: &str, name: &str) -> Result<Self, DomainError> {
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
        Ok(Self { connection, domain })
    }

    pub(crate) fn name(&self) -> Result<String, DomainError> {
        self.domain.get_name().map_err(|error| self.lost(&error))
    }

    pub(crate) fn uuid(&self) -> Result<String, DomainError> {
        self.domain
            .get_uuid_string()
            .map_err(|error| self.lost(&error))
    }

    fn lost(&self, error: &Error) -> DomainError {
        DomainError::Lookup {
            name: "that was found".to_owned(),
            uri: self.connection.get_uri().unwrap_or_default(),
            what: error.message().to_owned(),
        }
    }

    /// Opens a session on the monitor.
    pub(crate) fn session(
        &self,
        name: &str,
        uri: &str,
        process: &Arc<Process>,
    ) -> Result<Client, DomainError> {
        let monitor = PathBuf::from(format!("of domain {name} at {uri}"));
        let stream =
            serve::start(&self.connection, &self.domain).map_err(|what| DomainError::Lookup {
                name: name.to_owned(),
                uri: uri.to_owned(),
                what: format!("opening its monitor: {what}"),
            })?;
        let opened: Result<Client, ConnectError> =
            Client::over(stream, &monitor, Arc::clone(process), TIMEOUT);
        Ok(opened?)
    }
}
