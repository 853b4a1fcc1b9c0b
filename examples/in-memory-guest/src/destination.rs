//! The machine that a guest arrives at.

use std::sync::Arc;
use std::time::Instant;

use hikkoshi_engine::{CancelFlag, DestinationGuest, GuestError};
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::{Features, Userfault};
use hikkoshi_wire::GuestDescription;

use crate::guest::{Cpu, Machine};

#[derive(Debug)]
pub(crate) struct Destination {
    machine: Machine,
    description: GuestDescription,
    userfault: Option<Arc<Userfault>>,
}

impl Destination {
    pub(crate) fn new(machine: Machine) -> Self {
        let description = machine.describe(false);
        Self {
            machine,
            description,
            userfault: None,
        }
    }

    pub(crate) fn into_machine(self) -> Machine {
        self.machine
    }
}

impl DestinationGuest for Destination {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<GuestRam> {
        self.machine.memory().ram()
    }

    // The machine has no processor yet, so it cannot run.
    fn prepare(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        let userfault =
            Userfault::create_for_self(Features::FOR_MISSING).map_err(GuestError::new)?;
        let userfault = self.userfault.insert(Arc::new(userfault));
        Ok((
            Arc::clone(userfault),
            vec![self.machine.memory().host_address()],
        ))
    }

    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError> {
        let cpu = Cpu::load(&state).ok_or_else(|| GuestError::new("the state is malformed"))?;
        self.machine.set_cpu(cpu);
        Ok(())
    }

    fn resume(&mut self, running: bool, _: &CancelFlag) -> Result<Instant, GuestError> {
        if running {
            self.machine.run().map_err(GuestError::new)?;
        }
        Ok(Instant::now())
    }

    // The guest's thread may wait for a page that never comes: only the process can end it.
    fn kill(&mut self) -> Result<(), GuestError> {
        std::process::abort()
    }

    // Missing pages must not read as zeros: the userfaultfd stays open as long as the process.
    fn abandon_userfault(&mut self) {
        std::mem::forget(self.userfault.take());
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.userfault = None;
        Ok(())
    }
}
