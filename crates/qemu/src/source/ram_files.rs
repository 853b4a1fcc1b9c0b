//! What is left of a guest whose QEMU is gone: at the source its memory, in
//! files; at the destination nothing.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_engine::{Cancel, DestinationGuest, GuestError, SourceGuest};
use hikkoshi_memory::{RamFile, RamFiles};
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::GuestDescription;
use thiserror::Error;

use crate::attach::reopen::FileAccess;
use crate::destination::DestinationNotes;
use crate::identity::ReattachError;
use crate::source::SourceNotes;

/// Something that only a QEMU can do.
#[derive(Debug, Error)]
#[error("{doing}: QEMU (process {pid}) has ended")]
pub struct QemuExitedError {
    doing: &'static str,
    pid: u32,
}

/// The memory of a guest that was handed over before its QEMU ended: enough to
/// send what the destination lacks.
#[derive(Debug)]
pub struct RamFileSource {
    pid: u32,
    description: GuestDescription,
    ram: Arc<RamFiles>,
}

impl RamFileSource {
    /// Opens the files that were noted.
    ///
    /// # Errors
    ///
    /// See [`ReattachError`]: they are gone, too, or somebody else's now.
    pub fn open(notes: &SourceNotes) -> Result<Self, ReattachError> {
        let ram = notes.identity.open_ram_files(None, FileAccess::Read)?;
        notes.identity.check_unused()?;
        Ok(Self {
            pid: notes.identity.pid,
            description: notes.identity.description.clone(),
            ram: Arc::new(ram),
        })
    }

    fn cannot<T>(&self, doing: &'static str) -> Result<T, GuestError> {
        let pid = self.pid;
        Err(GuestError::new(QemuExitedError { doing, pid }))
    }
}

impl SourceGuest for RamFileSource {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<RamFiles> {
        Arc::clone(&self.ram)
    }

    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
        self.cannot("tracking the guest's writes")
    }

    fn needs_drain(&self) -> bool {
        false
    }

    fn drain(&mut self, _: &Cancel) -> Result<(), GuestError> {
        self.cannot("draining the guest's disks")
    }

    fn pause(&mut self) -> Result<Instant, GuestError> {
        self.cannot("stopping the guest")
    }

    fn save_device_state(&mut self, _: &mut dyn Write, _: &Cancel) -> Result<(), GuestError> {
        self.cannot("saving the device state")
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.cannot("resuming the guest at the source")
    }

    fn release(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    fn has_ended(&self) -> bool {
        true
    }
}

/// A QEMU that has ended before it ran the guest that it had: all there is to
/// do is to tell the source.
#[derive(Debug)]
pub struct ExitedDestination {
    pid: u32,
    description: GuestDescription,
    ram: Arc<RamFiles>,
}

impl ExitedDestination {
    /// The one that was noted.
    ///
    /// # Errors
    ///
    /// See [`ReattachError`]: the notes make no sense.
    pub fn new(notes: &DestinationNotes) -> Result<Self, ReattachError> {
        let identity = &notes.identity;
        let layout = identity.description.layout()?;
        let blocks = layout.blocks().len();
        // Nobody reads or writes them.
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
            RamFiles::new(layout, files).ok_or(ReattachError::Files { blocks, files: 0 })?;
        Ok(Self {
            pid: identity.pid,
            description: identity.description.clone(),
            ram: Arc::new(files),
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

    fn ram(&self) -> Arc<RamFiles> {
        Arc::clone(&self.ram)
    }

    fn prepare(&mut self) -> Result<(), GuestError> {
        self.cannot("readying QEMU to take in a guest")
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        self.cannot("taking over what the engine before left in QEMU")
    }

    fn load_device_state(&mut self, _: Vec<u8>) -> Result<(), GuestError> {
        self.cannot("loading the device state")
    }

    fn resume(&mut self, _: bool, _: &Cancel) -> Result<Instant, GuestError> {
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
