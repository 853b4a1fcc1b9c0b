//! A running domain.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "libvirt")]
use std::time::SystemTime;

use hikkoshi_linux::Process;
use hikkoshi_qemu::QmpListener;
use hikkoshi_qemu::qmp::{Client, ConnectError, Monitor, MonitorAddress, QmpError};
#[cfg(feature = "libvirt")]
use hikkoshi_wire::{DomainSnapshot, MAX_DOMAIN_XML, MAX_SNAPSHOTS};

use crate::DomainError;
use crate::incoming;
#[cfg(feature = "libvirt")]
use crate::monitor::own_socket;
use crate::process;

/// The daemon that is used if none is named: the system's, for QEMU.
pub const DEFAULT_URI: &str = "qemu:///system";

/// How long to wait for a daemon that is being restarted.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most bytes that the descriptions of a domain's snapshots may have: they are in one message
/// with two of the domain.
#[cfg(feature = "libvirt")]
const MAX_SNAPSHOT_BYTES: usize = 384 << 10;

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

/// A running domain, and the connection to its daemon: a [`Monitor`] that libvirt lends.
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
    watch: std::sync::OnceLock<crate::watch::Watch>,
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

    /// What libvirt knows of its snapshots, each behind the one that it is based on.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    fn snapshots(&self) -> Result<Vec<DomainSnapshot>, DomainError> {
        let snapshots = self.daemon.ask("its snapshots", |domain| {
            let found =
                domain.list_all_snapshots(virt::sys::VIR_DOMAIN_SNAPSHOT_LIST_TOPOLOGICAL)?;
            let describe = |snapshot: &virt::domain_snapshot::DomainSnapshot| {
                let xml = snapshot.get_xml_desc(virt::sys::VIR_DOMAIN_SNAPSHOT_XML_SECURE)?;
                Ok(DomainSnapshot {
                    xml: xml.into_bytes(),
                    current: snapshot.is_current(0)?,
                })
            };
            found.iter().map(describe).collect::<Result<Vec<_>, _>>()
        })?;
        check_snapshots(&self.name, &snapshots)?;
        Ok(snapshots)
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
        let resumed = own_socket::execute(&process, r#"{"execute":"cont"}"#, &[]);
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
    fn watched(&self) -> &crate::watch::Watch {
        self.watch
            .get_or_init(|| crate::watch::Watch::start(&self.daemon, &self.name))
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

/// Checks that these snapshots of the domain `name` can be described to another host.
#[cfg(feature = "libvirt")]
fn check_snapshots(name: &str, snapshots: &[DomainSnapshot]) -> Result<(), DomainError> {
    let lengths = || snapshots.iter().map(|snapshot| snapshot.xml.len());
    let bytes = lengths().sum();
    if snapshots.len() > MAX_SNAPSHOTS
        || bytes > MAX_SNAPSHOT_BYTES
        || lengths().any(|length| length > MAX_DOMAIN_XML)
    {
        return Err(DomainError::Snapshots {
            name: name.to_owned(),
            snapshots: snapshots.len(),
            bytes,
        });
    }
    for snapshot in snapshots {
        if let Some((snapshot, file)) = incoming::external_memory(&snapshot.xml) {
            return Err(DomainError::SnapshotMemory {
                name: name.to_owned(),
                snapshot,
                file,
            });
        }
    }
    Ok(())
}

fn address(uri: &str, uuid: &str, name: &str) -> MonitorAddress {
    MonitorAddress::Domain {
        uri: uri.to_owned(),
        uuid: uuid.to_owned(),
        name: name.to_owned(),
    }
}

impl Monitor for Domain {
    fn address(&self) -> &MonitorAddress {
        &self.address
    }

    fn open(&self, _timeout: Duration) -> Result<Client, ConnectError> {
        self.monitor().map_err(|error| match error {
            DomainError::Monitor(error) => error,
            error => ConnectError::Owner(error.into()),
        })
    }

    fn listener(&self) -> io::Result<QmpListener> {
        match self.process() {
            Ok(process) => Ok(QmpListener::Process(process.pid())),
            Err(DomainError::NoProcess { .. }) => Ok(QmpListener::None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    #[cfg(feature = "libvirt")]
    fn domain(&self) -> Result<Option<hikkoshi_wire::Domain>, QmpError> {
        let owner = |error: DomainError| QmpError::Owner(error.into());
        let xml = self.migratable_xml().map_err(owner)?;
        let persistent = match self.options.persistent {
            false => String::new(),
            // As `virsh migrate --persistent`: that of a transient domain is the one it runs with.
            true => self
                .inactive_xml()
                .map_err(owner)?
                .unwrap_or_else(|| xml.clone()),
        };
        Ok(Some(hikkoshi_wire::Domain {
            name: self.name.clone(),
            uuid: self.uuid.clone(),
            xml: xml.into_bytes(),
            persistent: persistent.into_bytes(),
            autostart: self.options.autostart,
            snapshots: self.snapshots().map_err(owner)?,
        }))
    }

    fn reopen_timeout(&self) -> Duration {
        REOPEN_TIMEOUT
    }

    fn complete(&self) -> Option<String> {
        let folder = self.folder.as_ref()?;
        let left = incoming::complete(&self.uri, &self.uuid, &self.name, folder);
        let texts = left.iter().map(|left| left.text(&self.name, &self.uri));
        let texts: Vec<_> = texts.collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    #[cfg(feature = "libvirt")]
    fn wait_until_reachable(&self) -> Result<(), QmpError> {
        let is_free = || match self.process() {
            Ok(process) => own_socket::is_free(&process),
            // There is nothing to wait for: what uses the monitor next reports it.
            Err(_) => true,
        };
        let reachable = self.daemon.wait_until_reachable(is_free);
        reachable.map_err(|error| QmpError::Owner(error.into()))
    }

    #[cfg(feature = "libvirt")]
    fn resume(&self, _client: &mut Client) -> Result<(), QmpError> {
        Self::resume(self).map_err(|error| QmpError::Owner(error.into()))
    }

    #[cfg(feature = "libvirt")]
    fn end(&self, _client: &mut Client, process: &Process) -> Result<(), QmpError> {
        self.destroy(process)
            .map_err(|error| QmpError::Owner(error.into()))
    }

    #[cfg(feature = "libvirt")]
    fn forget(&self) -> Result<(), QmpError> {
        if !self.options.undefine {
            return Ok(());
        }
        match self.undefine() {
            // A transient one that has ended, or it was undefined before.
            Err(DomainError::Gone { .. }) => Ok(()),
            undefined => undefined.map_err(|error| QmpError::Owner(error.into())),
        }
    }

    #[cfg(feature = "libvirt")]
    fn check_unchanged(&self, paused: Option<SystemTime>) -> Result<(), QmpError> {
        let patience = match paused {
            // The guest is resumed instead.
            Some(_) => Duration::ZERO,
            None => crate::daemon::AWAY_TIMEOUT,
        };
        let checked = self.unchanged.check(&self.daemon, &self.name, patience);
        // After a question to the daemon, whose answer comes after the events before it.
        let checked = checked.and_then(|()| match (paused, self.watch.get()) {
            (Some(paused), Some(watch)) => watch.check_untouched(paused),
            _ => Ok(()),
        });
        checked.map_err(|error| QmpError::Owner(error.into()))
    }

    fn is_shared(&self) -> bool {
        true
    }

    #[cfg(feature = "libvirt")]
    fn watch_owner(&self) {
        self.watched();
    }

    #[cfg(feature = "libvirt")]
    fn handing_over(&self, paused: Option<SystemTime>) {
        self.watched().handing_over(paused);
    }

    #[cfg(feature = "libvirt")]
    fn taken_back(&self) {
        if let Some(watch) = self.watch.get() {
            watch.taken_back();
        }
    }

    #[cfg(feature = "libvirt")]
    fn check_handed_over(&self) -> Result<(), QmpError> {
        match self.watch.get().and_then(crate::watch::Watch::take_harm) {
            Some(harm) => Err(QmpError::Owner(harm.into())),
            None => Ok(()),
        }
    }

    #[cfg(feature = "libvirt")]
    fn why_ended(&self) -> Option<String> {
        self.watch.get()?.why_ended()
    }

    #[cfg(not(feature = "libvirt"))]
    fn resume(&self, _client: &mut Client) -> Result<(), QmpError> {
        Err(QmpError::Owner(DomainError::NotBuilt.into()))
    }

    #[cfg(not(feature = "libvirt"))]
    fn end(&self, _client: &mut Client, _process: &Process) -> Result<(), QmpError> {
        Err(QmpError::Owner(DomainError::NotBuilt.into()))
    }
}

#[cfg(all(test, feature = "libvirt"))]
mod tests {
    use super::*;

    #[test]
    fn snapshots_that_cannot_be_described_to_another_host() {
        let snapshot = |xml: &str| DomainSnapshot {
            xml: xml.as_bytes().to_vec(),
            current: false,
        };
        let check = |snapshots: &[DomainSnapshot]| {
            check_snapshots("guest", snapshots).map_err(|error| error.to_string())
        };
        let memory = |attributes: &str| {
            snapshot(&format!(
                "<domainsnapshot><name>before</name><memory {attributes}/></domainsnapshot>"
            ))
        };
        for attributes in ["", "snapshot='no'", "snapshot='internal'"] {
            assert_eq!(check(&[memory(attributes)]), Ok(()), "{attributes}");
        }
        let external = "snapshot='external' file='/var/before.mem'";
        let error = check(&[memory(""), memory(external)]).unwrap_err();
        for part in [
            "before of the domain guest",
            "/var/before.mem",
            "--drop-snapshots",
            "--metadata",
        ] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        // Below the limit of all together, and above that of one.
        let long = " ".repeat(MAX_DOMAIN_XML + 1);
        let error = check(&[snapshot(&long)]).unwrap_err();
        assert!(error.contains("too much for one move"), "{error}");
        let many = vec![memory(""); MAX_SNAPSHOTS + 1];
        assert!(check(&many).unwrap_err().contains("129"));
    }
}
