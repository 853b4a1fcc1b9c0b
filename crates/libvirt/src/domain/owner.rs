//! QEMU's monitor, as libvirt lends it, and the owner's part in a move.

use std::io;
use std::time::Duration;
#[cfg(feature = "libvirt")]
use std::time::SystemTime;

use hikkoshi_linux::Process;
use hikkoshi_qemu::QmpListener;
use hikkoshi_qemu::qmp::{Client, ConnectError, Monitor, MonitorAddress, QmpError};

use super::Domain;
use crate::DomainError;
use crate::incoming;
#[cfg(feature = "libvirt")]
use crate::monitor::own_socket;

/// How long to wait for a daemon that is being restarted.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(60);

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
        if self.options.undefine {
            self.check_no_checkpoints().map_err(owner)?;
        }
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
        match self
            .watch
            .get()
            .and_then(crate::watch::DomainWatch::take_harm)
        {
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
