//! A running domain: what it is, and what libvirt knows of it and does with it.

#[cfg(feature = "libvirt")]
mod checkpoints;
mod owner;
#[cfg(feature = "libvirt")]
mod snapshots;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, MonitorAddress};

use crate::DomainError;
use crate::process;

/// The daemon that is used if none is named: the system's, for QEMU.
pub const DEFAULT_URI: &str = "qemu:///system";

/// What happens to a domain whose guest moves away, and at its destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveOptions {
    /// Its persistent configuration is removed at the source.
    pub undefine: bool,
    /// It becomes persistent at the destination.
    pub persistent: bool,
    /// It is started when the destination's host boots.
    pub autostart: bool,
}

/// A running domain, and the connection to its daemon: a
/// [`Monitor`](hikkoshi_qemu::qmp::Monitor) that libvirt lends.
#[derive(Debug)]
pub struct Domain {
    name: String,
    uri: String,
    uuid: String,
    address: MonitorAddress,
    options: MoveOptions,
    /// Of a domain that is received: where its files are.
    folder: Option<PathBuf>,
    #[cfg(feature = "libvirt")]
    daemon: crate::daemon::Daemon,
    #[cfg(feature = "libvirt")]
    unchanged: crate::unchanged::Unchanged,
    /// From the beginning of its move.
    #[cfg(feature = "libvirt")]
    watch: std::sync::OnceLock<crate::watch::DomainWatch>,
}

impl Domain {
    /// The running domain `name` of the daemon `uri`. `name` may also be its UUID.
    ///
    /// # Errors
    ///
    /// See [`DomainError`]. [`DomainError::NotBuilt`] always, without the feature `libvirt`.
    #[cfg(feature = "libvirt")]
    pub fn open(uri: &str, name: &str) -> Result<Self, DomainError> {
        process::run_folder(uri)?;
        let (name, uuid, daemon) = crate::daemon::Daemon::find(uri, name)?;
        Ok(Self {
            address: address(uri, &uuid, &name),
            name,
            uri: uri.to_owned(),
            uuid,
            options: MoveOptions::default(),
            folder: None,
            daemon,
            unchanged: crate::unchanged::Unchanged::default(),
            watch: std::sync::OnceLock::new(),
        })
    }

    /// The running domain `name` of the daemon `uri`. `name` may also be its UUID.
    ///
    /// # Errors
    ///
    /// [`DomainError::NotBuilt`].
    #[cfg(not(feature = "libvirt"))]
    pub fn open(uri: &str, name: &str) -> Result<Self, DomainError> {
        let _ = (uri, name);
        Err(DomainError::NotBuilt)
    }

    /// The names of the domains that run at the daemon `uri`, sorted.
    ///
    /// # Errors
    ///
    /// See [`DomainError`]. [`DomainError::NotBuilt`] always, without the feature `libvirt`.
    #[cfg(feature = "libvirt")]
    pub fn running(uri: &str) -> Result<Vec<String>, DomainError> {
        process::run_folder(uri)?;
        crate::daemon::running_domains(uri)
    }

    /// The names of the domains that run at the daemon `uri`.
    ///
    /// # Errors
    ///
    /// [`DomainError::NotBuilt`].
    #[cfg(not(feature = "libvirt"))]
    pub fn running(uri: &str) -> Result<Vec<String>, DomainError> {
        let _ = uri;
        Err(DomainError::NotBuilt)
    }

    /// A domain that was opened before, perhaps by another program. Does not connect to its daemon
    /// yet: much can be done while that is being restarted.
    #[must_use]
    pub fn known(uri: &str, uuid: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            uri: uri.to_owned(),
            uuid: uuid.to_owned(),
            address: address(uri, uuid, name),
            #[cfg(feature = "libvirt")]
            daemon: crate::daemon::Daemon::new(uri, uuid, name),
            options: MoveOptions::default(),
            folder: None,
            #[cfg(feature = "libvirt")]
            unchanged: crate::unchanged::Unchanged::default(),
            #[cfg(feature = "libvirt")]
            watch: std::sync::OnceLock::new(),
        }
    }

    /// What else happens to it when its guest moves away.
    #[must_use]
    pub fn with(mut self, options: MoveOptions) -> Self {
        self.options = options;
        self
    }

    /// That it is received here, with its files in `folder`, that of
    /// [`IncomingOptions::start`](crate::IncomingOptions::start).
    #[must_use]
    pub fn received_in(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its UUID, as libvirt writes it.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The daemon that owns it.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// QEMU's process. Does not need the daemon.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn process(&self) -> Result<Process, DomainError> {
        process::find(&process::run_folder(&self.uri)?, &self.name, &self.uuid)
    }

    /// Opens a session on the domain's monitor. There can be several; libvirt executes their
    /// commands one after the other.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn monitor(&self) -> Result<Client, DomainError> {
        let process = Arc::new(self.process()?);
        #[cfg(feature = "libvirt")]
        return self.daemon.session(&self.address, &process);
        #[cfg(not(feature = "libvirt"))]
        {
            drop(process);
            Err(DomainError::NotBuilt)
        }
    }
}

/// What libvirt knows of the domain, and does with it. If the daemon is being restarted, each of
/// these waits until it is back, for some time.
#[cfg(feature = "libvirt")]
impl Domain {
    /// The XML that describes the running domain to another host (`virsh dumpxml --migratable
    /// --security-info`).
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn migratable_xml(&self) -> Result<String, DomainError> {
        self.daemon
            .xml(virt::sys::VIR_DOMAIN_XML_MIGRATABLE | virt::sys::VIR_DOMAIN_XML_SECURE)
    }

    /// The XML that the domain would be started with: its persistent configuration. `None`: it has
    /// none (a transient domain).
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn inactive_xml(&self) -> Result<Option<String>, DomainError> {
        if !self.daemon.ask(
            "whether it is persistent",
            virt::domain::Domain::is_persistent,
        )? {
            return Ok(None);
        }
        let flags = virt::sys::VIR_DOMAIN_XML_INACTIVE | virt::sys::VIR_DOMAIN_XML_SECURE;
        self.daemon.xml(flags).map(Some)
    }

    /// Whether libvirt has it as paused.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn is_paused(&self) -> Result<bool, DomainError> {
        let (state, _) = self
            .daemon
            .ask("its state", virt::domain::Domain::get_state)?;
        Ok(state == virt::sys::VIR_DOMAIN_PAUSED)
    }

    /// Lets the paused domain run. libvirt takes its locks on disks again.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn resume(&self) -> Result<(), DomainError> {
        let resumed = self.daemon.ask_or(
            "to resume it",
            crate::daemon::PAUSED_TIMEOUT,
            |domain| domain.resume().map(drop),
            || self.resume_by_qemu(),
        );
        match resumed {
            // The daemon may have been restarted in between.
            Err(_) if !self.is_paused()? => Ok(()),
            resumed => resumed,
        }
    }

    /// Removes the persistent configuration of a domain whose guest runs on another host, with what
    /// belongs to it there: a saved state, and what libvirt knows of snapshots. The file of its
    /// firmware's variables stays, as for `virsh migrate --undefinesource`: the destination may use
    /// the same.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn undefine(&self) -> Result<(), DomainError> {
        let flags = virt::sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | virt::sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            | virt::sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            | virt::sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM;
        self.daemon.ask("to undefine it", move |domain| {
            // A transient domain has none. (It is transient afterwards, until it ends.)
            if domain.is_persistent()? {
                domain.undefine_flags(flags)?;
            }
            Ok(())
        })
    }

    /// Lets QEMU run the guest, while the daemon is away: the guest must not wait for it. `None`:
    /// QEMU did not do it.
    fn resume_by_qemu(&self) -> Option<()> {
        let process = self.process().ok()?;
        let resumed = crate::monitor::own_socket::execute(&process, r#"{"execute":"cont"}"#, &[]);
        match resumed {
            Ok(executed) if executed.answer.starts_with(r#"{"return""#) => {
                tracing::warn!(
                    domain = self.name,
                    "libvirt's daemon is away, so QEMU was asked to run the guest; libvirt notices that \
                     when it is back"
                );
                Some(())
            }
            Ok(executed) => {
                tracing::warn!(answer = executed.answer, "QEMU does not run the guest");
                None
            }
            Err(error) => {
                tracing::debug!(?error, "using QEMU's own monitor socket");
                None
            }
        }
    }

    /// What watches the domain, which is started now if it was not before.
    fn watched(&self) -> &crate::watch::DomainWatch {
        self.watch
            .get_or_init(|| crate::watch::DomainWatch::start(&self.daemon, &self.name))
    }

    /// Ends the domain, whose QEMU is `process` and whose guest runs on another host. QEMU writes
    /// nothing to its images.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub fn destroy(&self, process: &Process) -> Result<(), DomainError> {
        if let Some(watch) = self.watch.get() {
            watch.ending();
        }
        crate::end::destroy(&self.daemon, &self.name, process)
    }
}

fn address(uri: &str, uuid: &str, name: &str) -> MonitorAddress {
    MonitorAddress::Domain {
        uri: uri.to_owned(),
        uuid: uuid.to_owned(),
        name: name.to_owned(),
    }
}
