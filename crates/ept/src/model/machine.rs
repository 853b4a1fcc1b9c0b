//! Processors that run one guest, and a hypervisor around them that does what the crate asks for.

use alloc::vec::Vec;
use core::fmt;

use super::{Access, Counts, Cpu, Exit};
use crate::flush::Flush;
use crate::guest::{Guest, View};
use crate::log::{PML_START, Vcpu, VcpuError};
use crate::memory::Memory;
use crate::processors::Processors;
use crate::spin::SpinLock;
use crate::violation::Violation;

/// Why an access did not happen, and the crate could not see to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The violation is the hypervisor's to answer.
    Violation(Violation),
    /// The tables are broken.
    Misconfiguration(Exit),
}

/// Some virtual processors, each on a [`Cpu`] of its own. A virtual processor is *in the guest* while
/// its lock is held; to make it leave is to take the lock.
pub struct Machine<'g, M: Memory> {
    guest: &'g Guest<M>,
    cpus: Vec<(Vcpu, SpinLock<Cpu>)>,
}

impl<'g, M: Memory> Machine<'g, M> {
    /// `count` virtual processors, all in [`View::MAIN`].
    ///
    /// # Errors
    ///
    /// [`VcpuError`] if the guest has no room for them.
    pub fn new(guest: &'g Guest<M>, count: usize) -> Result<Self, VcpuError> {
        let mut machine = Self {
            guest,
            cpus: Vec::new(),
        };
        for _ in 0..count {
            machine.add_cpu()?;
        }
        Ok(machine)
    }

    /// Adds a virtual processor, logging if the others are.
    ///
    /// # Errors
    ///
    /// [`VcpuError`].
    pub fn add_cpu(&mut self) -> Result<usize, VcpuError> {
        let vcpu = self.guest.add_vcpu()?;
        let mut cpu = Cpu::new(
            View::MAIN,
            self.guest.main_eptp(),
            self.guest.capabilities(),
        );
        cpu.pml = self.guest.pml_address(vcpu);
        self.cpus.push((vcpu, SpinLock::new(cpu)));
        Ok(self.cpus.len() - 1)
    }

    /// Has processor `cpu` run in another view. False if there is no such view.
    pub fn enter_view(&self, cpu: usize, view: View) -> bool {
        let Some(eptp) = self.guest.eptp(view) else {
            return false;
        };
        let mut cpu = self.cpus[cpu].1.lock();
        cpu.view = view;
        cpu.eptp = eptp;
        true
    }

    /// Has processor `cpu` access guest-physical `address`, handles the exits that the crate knows the
    /// answer to, and calls `then` with the host-physical address while still in the guest.
    ///
    /// # Errors
    ///
    /// [`Stop`].
    pub fn access<R>(
        &self,
        cpu: usize,
        address: u64,
        access: Access,
        then: impl FnOnce(u64) -> R,
    ) -> Result<R, Stop> {
        let (vcpu, lock) = &self.cpus[cpu];
        loop {
            let mut cpu = lock.lock();
            let view = cpu.view;
            match cpu.access(self.guest.memory(), address, access) {
                Ok(host) => return Ok(then(host)),
                Err(Exit::PmlFull) => {
                    cpu.pml_index = self.guest.drain_pml(*vcpu, cpu.pml_index);
                }
                Err(Exit::Violation {
                    address,
                    qualification,
                }) => {
                    drop(cpu); // the exit is handled while others go on
                    match self.guest.violation(view, address, qualification) {
                        Violation::Resume => {}
                        other => return Err(Stop::Violation(other)),
                    }
                }
                Err(broken @ Exit::Misconfiguration { .. }) => {
                    return Err(Stop::Misconfiguration(broken));
                }
            }
        }
    }

    /// What all processors have done, together.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for (_, cpu) in &self.cpus {
            let counts = cpu.lock().counts;
            all.accesses += counts.accesses;
            all.violations += counts.violations;
            all.pml_full += counts.pml_full;
            all.walks += counts.walks;
        }
        all
    }
}

impl<M: Memory> Processors for Machine<'_, M> {
    fn invalidate(&self, flush: &Flush) {
        for (_, cpu) in &self.cpus {
            cpu.lock().invalidate(flush);
        }
    }

    fn drain(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        for (vcpu, cpu) in &self.cpus {
            let mut cpu = cpu.lock();
            cpu.pml_index = drain(*vcpu, cpu.pml_index);
        }
    }

    fn set_pml(&self, on: bool) {
        for (vcpu, cpu) in &self.cpus {
            let mut cpu = cpu.lock();
            cpu.pml = if on {
                self.guest.pml_address(*vcpu)
            } else {
                None
            };
            cpu.pml_index = PML_START;
        }
    }
}

impl<M: Memory> fmt::Debug for Machine<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("processors", &self.cpus.len())
            .finish_non_exhaustive()
    }
}
