//! A running domain.

use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::Client;

use crate::DomainError;

/// The daemon that is used if none is named: the system's, for QEMU.
pub const DEFAULT_URI: &str = "qemu:///system";

/// A running domain, and the connection to its daemon.
#[derive(Debug)]
pub struct Domain {
    name: String,
    uri: String,
    process: Arc<Process>,
    #[cfg(feature = "libvirt")]
    lent: crate::session::Lender,
}

impl Domain {
    /// The running domain `name` of the daemon `uri`, and its QEMU process. `name` may also be its
    /// UUID.
    ///
    /// # Errors
    ///
    /// See [`DomainError`]. [`DomainError::NotBuilt`] always, without the feature `libvirt`.
    #[cfg(feature = "libvirt")]
    pub fn open(uri: &str, name: &str) -> Result<Self, DomainError> {
        let run_folder = crate::process::run_folder(uri)?;
        let lent = crate::session::Lender::find(uri, name)?;
        let name = lent.name()?;
        let process = crate::process::find(&run_folder, &name, &lent.uuid()?)?;
        Ok(Self {
            name,
            uri: uri.to_owned(),
            process: Arc::new(process),
            lent,
        })
    }

    /// The running domain `name` of the daemon `uri`, and its QEMU process. `name` may also be its
    /// UUID.
    ///
    /// # Errors
    ///
    /// [`DomainError::NotBuilt`].
    #[cfg(not(feature = "libvirt"))]
    pub fn open(uri: &str, name: &str) -> Result<Self, DomainError> {
        let _ = (uri, name);
        Err(DomainError::NotBuilt)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The daemon that owns it.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// QEMU's process.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Opens a session on the domain's monitor. There can be several; libvirt executes their
    /// commands one after the other.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn monitor(&self) -> Result<Client, DomainError> {
        #[cfg(feature = "libvirt")]
        return self.lent.session(&self.name, &self.uri, &self.process);
        #[cfg(not(feature = "libvirt"))]
        Err(DomainError::NotBuilt)
    }
}
