//! The machine that a guest leaves.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use clap::ValueEnum;
use hikkoshi_dirty::{DirtyLog, KvmLog, PagemapLog};
use hikkoshi_engine::{CancelFlag, GuestError, SourceGuest};
use hikkoshi_linux::HostAddr;
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::{Features, Userfault};
use hikkoshi_wire::GuestDescription;

use crate::Result;
use crate::monitor::machine::Machine;

/// What the engine's trait returns.
type EngineResult<T> = std::result::Result<T, GuestError>;

/// Which dirty log tells what the guest has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tracker {
    /// KVM's, one bit a page, cleared and protected by the slot.
    Bitmap,
    /// KVM's, one bit a page, cleared and protected by ranges.
    ManualProtect,
    /// KVM's, a list of pages for each processor.
    Ring,
    /// The kernel's log of this process.
    Pagemap,
}

#[derive(Debug)]
pub(crate) struct Source {
    log: Option<Arc<dyn DirtyLog>>,
    machine: Machine,
    description: GuestDescription,
    tracker: Tracker,
}

impl Source {
    pub(crate) fn new(machine: Machine, tracker: Tracker) -> Self {
        let description = machine.describe(true);
        Self {
            log: None,
            machine,
            description,
            tracker,
        }
    }

    pub(crate) fn into_machine(self) -> Machine {
        self.machine
    }

    fn start_log(&self) -> Result<Arc<dyn DirtyLog>> {
        let slots = self.machine.memory_slots()?;
        Ok(match self.tracker {
            Tracker::Bitmap => Arc::new(KvmLog::bitmap(slots)?),
            Tracker::ManualProtect => Arc::new(KvmLog::manual_protect(slots)?),
            Tracker::Ring => {
                let rings = self
                    .machine
                    .rings()
                    .ok_or("the machine has no dirty ring")?;
                let log = Arc::new(KvmLog::ring(slots, Arc::clone(rings))?);
                self.machine.set_ring_log(Arc::clone(&log));
                log
            }
            Tracker::Pagemap => {
                let memory = self.machine.memory();
                let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG)?;
                let hosts = [HostAddr(memory.host_address())];
                let log = PagemapLog::start(Arc::new(userfault), memory.ram().layout(), &hosts)?;
                Arc::new(log)
            }
        })
    }
}

impl SourceGuest for Source {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<GuestRam> {
        self.machine.memory().ram()
    }

    fn start_dirty_log(&mut self) -> EngineResult<Arc<dyn DirtyLog>> {
        let log = self.start_log().map_err(GuestError::new)?;
        self.log = Some(Arc::clone(&log));
        Ok(log)
    }

    // No device writes to this guest's memory.
    fn needs_drain(&self) -> bool {
        false
    }

    fn drain(&mut self, _: &CancelFlag) -> EngineResult<()> {
        Ok(())
    }

    fn pause(&mut self) -> EngineResult<Instant> {
        let paused = Instant::now();
        self.machine.pause().map_err(GuestError::new)?;
        Ok(paused)
    }

    fn save_device_state(&mut self, sink: &mut dyn Write, _: &CancelFlag) -> EngineResult<()> {
        let saved = self.machine.save().map_err(GuestError::new)?;
        let bytes = postcard::to_allocvec(&saved).map_err(GuestError::new)?;
        sink.write_all(&bytes).map_err(GuestError::new)
    }

    fn resume(&mut self) -> EngineResult<()> {
        self.machine.run().map_err(GuestError::new)
    }

    fn release(&mut self) -> EngineResult<()> {
        let Some(log) = self.log.take() else {
            return Ok(());
        };
        log.stop().map_err(GuestError::new)
    }

    fn has_ended(&self) -> bool {
        self.machine.has_ended()
    }
}
