//! A source whose QEMU has ended: the RAM files still hold the guest's memory.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_engine::{CancelFlag, GuestError, SourceGuest, SourceProcess};
use hikkoshi_memory::GuestRam;
use hikkoshi_wire::GuestDescription;

use crate::identity::QemuExitedError;
use crate::identity::ReattachError;
use crate::process::reopen::FileAccess;
use crate::source::SourceReattachInfo;

/// The RAM files of a guest that was handed over before its QEMU ended. They are
/// enough to send the missing pages.
#[derive(Debug)]
pub struct RamFileSource {
    pid: u32,
    description: GuestDescription,
    ram: Arc<GuestRam>,
    /// Why QEMU has ended.
    why: Option<String>,
}

impl RamFileSource {
    /// Opens the recorded files.
    ///
    /// # Errors
    ///
    /// See [`ReattachError`]: the files are gone, too, or another process uses them.
    pub fn open(reattach_info: &SourceReattachInfo) -> Result<Self, ReattachError> {
        let ram = reattach_info.identity.open_ram(None, FileAccess::Read)?;
        reattach_info.identity.check_unused()?;
        Ok(Self {
            pid: reattach_info.identity.pid,
            description: reattach_info.identity.description.clone(),
            ram: Arc::new(ram),
            why: reattach_info.why_ended(),
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

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    fn process(&mut self) -> Option<&mut dyn SourceProcess> {
        Some(self)
    }

    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
        self.cannot("starting the dirty log")
    }

    fn needs_drain(&self) -> bool {
        false
    }

    fn drain(&mut self, _: &CancelFlag) -> Result<(), GuestError> {
        self.cannot("draining the guest's disks")
    }

    fn pause(&mut self) -> Result<Instant, GuestError> {
        self.cannot("pausing the guest")
    }

    fn save_device_state(&mut self, _: &mut dyn Write, _: &CancelFlag) -> Result<(), GuestError> {
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

impl SourceProcess for RamFileSource {
    fn why_ended(&mut self) -> Option<String> {
        self.why.clone()
    }
}
