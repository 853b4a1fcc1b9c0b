//! The machine that a guest leaves.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_engine::{CancelFlag, GuestError, SourceGuest};
use hikkoshi_linux::HostAddr;
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::{Features, Userfault};
use hikkoshi_wire::GuestDescription;

use crate::guest::{Machine, Memory};

#[derive(Debug)]
pub(crate) struct Source {
    machine: Machine,
    description: GuestDescription,
    log: Option<Arc<dyn DirtyLog>>,
}

impl Source {
    pub(crate) fn new(machine: Machine) -> Self {
        let description = machine.describe(true);
        Self {
            machine,
            description,
            log: None,
        }
    }
}

impl SourceGuest for Source {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<GuestRam> {
        self.machine.memory().ram()
    }

    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
        let log = pagemap_log(self.machine.memory())?;
        self.log = Some(Arc::clone(&log));
        Ok(log)
    }

    // No device writes to this guest's memory.
    fn needs_drain(&self) -> bool {
        false
    }

    fn drain(&mut self, _: &CancelFlag) -> Result<(), GuestError> {
        Ok(())
    }

    fn pause(&mut self) -> Result<Instant, GuestError> {
        self.machine.pause().map_err(GuestError::new)?;
        Ok(Instant::now())
    }

    fn save_device_state(
        &mut self,
        sink: &mut dyn Write,
        _: &CancelFlag,
    ) -> Result<(), GuestError> {
        let cpu = self
            .machine
            .cpu()
            .ok_or_else(|| GuestError::new("the guest is not paused"))?;
        sink.write_all(&cpu.save()).map_err(GuestError::new)
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.machine.run().map_err(GuestError::new)
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.log
            .take()
            .map_or(Ok(()), |log| log.stop().map_err(GuestError::new))
    }
}

fn pagemap_log(memory: &Memory) -> Result<Arc<dyn DirtyLog>, GuestError> {
    let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG).map_err(GuestError::new)?;
    let hosts = [HostAddr(memory.host_address())];
    let log = PagemapLog::start(Arc::new(userfault), memory.ram().layout(), &hosts);
    Ok(Arc::new(log.map_err(GuestError::new)?))
}
