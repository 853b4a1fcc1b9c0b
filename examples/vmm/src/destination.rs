//! The machine that a guest arrives at.

use std::sync::Arc;
use std::time::Instant;

use hikkoshi_engine::report::FaultKind;
use hikkoshi_engine::{CancelFlag, DestinationGuest, GuestError, ThreadName};
use hikkoshi_linux::{is_kernel_worker, kernel_thread_name};
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::{Features, Userfault};
use hikkoshi_wire::GuestDescription;

use crate::monitor::machine::Machine;

/// The error of a destination that [refuses](Destination::refuse_state) the device state.
pub(crate) const REFUSED: &str = "this destination refuses every device state";

#[derive(Debug)]
pub(crate) struct Destination {
    machine: Machine,
    description: GuestDescription,
    userfault: Option<Arc<Userfault>>,
    refuses_state: bool,
}

impl Destination {
    pub(crate) fn new(machine: Machine) -> Self {
        let description = machine.describe(false);
        Self {
            machine,
            description,
            userfault: None,
            refuses_state: false,
        }
    }

    /// Makes the move fail, for a test of what the source does then.
    pub(crate) fn refuse_state(&mut self) {
        self.refuses_state = true;
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

    // The processors have no threads yet, so they cannot run.
    fn prepare(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    // It must report faults of the kernel, too: those of the guest are KVM's.
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
        if self.refuses_state {
            return Err(GuestError::new(REFUSED));
        }
        let saved = postcard::from_bytes(&state).map_err(GuestError::new)?;
        self.machine.load(saved).map_err(GuestError::new)
    }

    fn resume(&mut self, running: bool, _: &CancelFlag) -> Result<Instant, GuestError> {
        if running {
            self.machine.run().map_err(GuestError::new)?;
        }
        Ok(Instant::now())
    }

    // The processor may wait for a page that never comes: only the process can end it.
    fn kill(&mut self) -> Result<(), GuestError> {
        std::process::abort()
    }

    fn has_ended(&self) -> bool {
        self.machine.has_ended()
    }

    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        if let Some(vcpu) = self.machine.vcpu_of_thread(thread) {
            return Some(ThreadName {
                name: format!("vcpu{vcpu}"),
                kind: FaultKind::Vcpu(vcpu),
            });
        }
        // KVM's worker: the guest's task waits, and the processor may run another one.
        let name = kernel_thread_name(thread)?;
        let kind = match is_kernel_worker(&name) {
            true => FaultKind::Asynchronous,
            false => FaultKind::Other,
        };
        Some(ThreadName { name, kind })
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
