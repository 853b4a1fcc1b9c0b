//! A destination whose QEMU has ended.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_engine::{CancelFlag, DestinationGuest, DestinationProcess, GuestError};
use hikkoshi_memory::{GuestRam, RamFile};
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::GuestDescription;

use crate::destination::DestinationReattachInfo;
use crate::identity::QemuExitedError;
use crate::identity::ReattachError;
use crate::qmp::Monitor;

/// A destination whose QEMU ended before the guest ran there, or when it had all of its pages. The
/// engine can only report this to the source.
#[derive(Debug)]
pub struct ExitedDestination {
    pid: u32,
    description: GuestDescription,
    ram: Arc<GuestRam>,
    monitor: Arc<dyn Monitor>,
    why: Option<String>,
}

impl ExitedDestination {
    /// The recorded one. `monitor` is that of the identity: QEMU is gone, but not its owner.
    ///
    /// # Errors
    ///
    /// See [`ReattachError`]: the information is damaged.
    pub fn new(
        reattach_info: &DestinationReattachInfo,
        monitor: Arc<dyn Monitor>,
    ) -> Result<Self, ReattachError> {
        let identity = &reattach_info.identity;
        let layout = identity.description.layout()?;
        let blocks = layout.blocks().len();
        // The files are neither read nor written.
        let nothing = || File::open("/dev/null").map(|file| RamFile::new(file, 0));
        let files = (0..blocks)
            .map(|_| nothing())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| ReattachError::Open {
                id: "none".to_owned(),
                path: "/dev/null".into(),
                source,
            })?;
        let files =
            GuestRam::new(layout, files).ok_or(ReattachError::Files { blocks, files: 0 })?;
        Ok(Self {
            pid: identity.pid,
            description: identity.description.clone(),
            ram: Arc::new(files),
            monitor,
            why: reattach_info.why_ended(),
        })
    }

    fn cannot<T>(&self, doing: &'static str) -> Result<T, GuestError> {
        let pid = self.pid;
        Err(GuestError::new(QemuExitedError { doing, pid }))
    }
}

impl DestinationGuest for ExitedDestination {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    fn process(&mut self) -> Option<&mut dyn DestinationProcess> {
        Some(self)
    }

    fn prepare(&mut self) -> Result<(), GuestError> {
        self.cannot("preparing QEMU for the incoming guest")
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        self.cannot("taking over the userfaultfd of the interrupted migration in QEMU")
    }

    fn load_device_state(&mut self, _: Vec<u8>) -> Result<(), GuestError> {
        self.cannot("loading the device state")
    }

    fn resume(&mut self, _: bool, _: &CancelFlag) -> Result<Instant, GuestError> {
        self.cannot("resuming the guest at the destination")
    }

    fn has_ended(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    fn abandon_userfault(&mut self) {}

    fn release(&mut self) -> Result<(), GuestError> {
        Ok(())
    }
}

impl DestinationProcess for ExitedDestination {
    fn why_ended(&mut self) -> Option<String> {
        self.why.clone()
    }

    fn complete(&mut self) -> Option<String> {
        self.monitor.complete()
    }
}
