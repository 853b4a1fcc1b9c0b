//! The engine's interface to a source.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_account::{AsynchronousFaults, DiskCopy};
use hikkoshi_dirty::DirtyLog;
use hikkoshi_engine::{
    CancelFlag, DiskConnection, DiskContent, FrameCapture, GuestError, Hardware, SourceDisks,
    SourceGuest, SourceProcess,
};
use hikkoshi_memory::GuestRam;
use hikkoshi_wire::{Domain, GuestDescription, GuestDisks};

use super::QemuSource;
use crate::network;
use crate::process::oom_kills;
use crate::qmp::reconnect::connected;
use crate::source::drain;

impl SourceGuest for QemuSource {
    fn describe(&self) -> &GuestDescription {
        &self.qemu.description
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            processors: self.qemu.processors.clone(),
            machine: self.machine.clone(),
        }
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.qemu.ram)
    }

    fn capture_frames(&mut self) -> Result<Option<Box<dyn FrameCapture>>, GuestError> {
        let client = connected(&mut self.client).map_err(GuestError::new)?;
        network::capture(client, &self.qemu.process).map_err(GuestError::new)
    }

    fn disks(&mut self) -> Option<&mut dyn SourceDisks> {
        Some(self)
    }

    fn process(&mut self) -> Option<&mut dyn SourceProcess> {
        Some(self)
    }

    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
        self.start_log().map_err(GuestError::new)
    }

    fn needs_drain(&self) -> bool {
        self.needs_drain
    }

    fn drain(&mut self, cancel: &CancelFlag) -> Result<(), GuestError> {
        let client = connected(&mut self.client).map_err(GuestError::new)?;
        drain::drain(client, cancel).map_err(GuestError::new)
    }

    /// QEMU writes each flash memory that is not read-only to its image.
    fn read_at_resume(&self) -> Vec<usize> {
        let blocks = self.qemu.ram.layout().blocks().enumerate();
        let is_flash = |id: &str| id.starts_with("system.flash");
        blocks
            .filter(|(_, (block, _))| is_flash(&block.id))
            .map(|(number, _)| number)
            .collect()
    }

    fn prepare_pause(&mut self) -> Result<(), GuestError> {
        self.prepare_stop().map_err(GuestError::new)
    }

    fn pause(&mut self) -> Result<Instant, GuestError> {
        self.stop_guest().map_err(GuestError::new)
    }

    fn save_device_state(
        &mut self,
        sink: &mut dyn Write,
        give_up: &CancelFlag,
    ) -> Result<(), GuestError> {
        self.save(sink, give_up).map_err(GuestError::new)
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        // First of all: they cannot be ended while the guest runs.
        self.remove_copies_after_failure();
        self.resume_guest().map_err(GuestError::new)
    }

    fn has_ended(&self) -> bool {
        self.has_exited()
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.release_qemu().map_err(GuestError::new)
    }
}

impl SourceDisks for QemuSource {
    fn offered(&self) -> GuestDisks {
        self.offered_disks.disks.clone()
    }

    fn compared(&mut self) {
        self.offered_disks.marks = None;
    }

    fn connect(&mut self, number: usize) -> Result<DiskConnection, GuestError> {
        self.connect_copy(number).map_err(GuestError::new)
    }

    fn open(&mut self, number: usize, cancel: &CancelFlag) -> Result<(), GuestError> {
        self.open_copy(number, cancel).map_err(GuestError::new)
    }

    fn copy(&mut self, number: usize, cancel: &CancelFlag) -> Result<(), GuestError> {
        self.start_copy(number, cancel).map_err(GuestError::new)
    }

    fn limit(&mut self, bytes_per_second: Option<u64>) {
        self.limit_copies(bytes_per_second);
    }

    fn content(&mut self) -> Result<DiskContent, GuestError> {
        self.copied_content().map_err(GuestError::new)
    }

    fn progress(&mut self) -> Result<Vec<DiskCopy>, GuestError> {
        self.copy_progress().map_err(GuestError::new)
    }

    fn complete(&mut self, give_up: &CancelFlag) -> Result<(), GuestError> {
        self.complete_copies(give_up).map_err(GuestError::new)
    }
}

impl SourceProcess for QemuSource {
    fn domain(&self) -> Option<Domain> {
        self.domain.clone()
    }

    fn check_device_state(&mut self) -> Result<(), GuestError> {
        self.check_saved().map_err(GuestError::new)
    }

    fn check_paused(&mut self) -> Result<(), GuestError> {
        self.check_not_harmed()
    }

    fn handing_over(&mut self) {
        self.monitor.handing_over(self.paused_at);
    }

    fn check_handed_over(&mut self) -> Result<(), GuestError> {
        let harm = self.monitor.check_handed_over();
        if harm.is_err() {
            self.note_reported();
        }
        harm.map_err(GuestError::new)
    }

    fn why_ended(&mut self) -> Option<String> {
        let why = self.monitor.why_ended();
        why.or_else(|| oom_kills::since(self.oom_kills.as_ref()))
    }

    fn asynchronous_faults(&mut self) -> Option<AsynchronousFaults> {
        Some(Self::asynchronous_faults(self))
    }

    fn leave(&mut self) {
        self.detached = true;
    }
}
