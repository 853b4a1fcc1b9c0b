//! Processors that run one guest, and a hypervisor around them that does what the crate asks for.

use alloc::vec::Vec;
use core::fmt;

use super::{Access, Counts, Cpu, Exit};
use crate::dirty_log::{PML_HEAD_INDEX, Vcpu, VcpuError};
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::processors::Processors;
use crate::spinlock::SpinLock;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::violation::ViolationOutcome;

/// Why an access did not happen, and the crate could not see to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The violation is the hypervisor's to answer.
    Violation(ViolationOutcome),
    /// The tables are broken.
    Misconfiguration(Exit),
    /// There is no such virtual processor.
    NoVcpu,
}

/// Some virtual processors, each on a [`Cpu`] of its own. A virtual processor is *in the guest* while
/// its lock is held; to make it leave is to take the lock.
pub struct Machine<'g, M: HostMemory> {
    guest: &'g Guest<M>,
    /// By [`Vcpu::number`]; places of virtual processors that are not there (yet) are empty.
    cpus: Vec<SpinLock<Option<(Vcpu, Cpu)>>>,
}

impl<'g, M: HostMemory> Machine<'g, M> {
    /// `count` virtual processors, all in [`View::MAIN`], and room for as many as the guest has.
    ///
    /// # Errors
    ///
    /// [`VcpuError`] if the guest has no room for them.
    pub fn new(guest: &'g Guest<M>, count: usize) -> Result<Self, VcpuError> {
        let place = |_| SpinLock::new(None);
        let machine = Self {
            guest,
            cpus: (0..guest.max_vcpus()).map(place).collect(),
        };
        for _ in 0..count {
            machine.add_cpu()?;
        }
        Ok(machine)
    }

    /// Adds a virtual processor, logging if the others are, while they run and logs come and go: the
    /// steps of [`Guest::add_vcpu`]. Returns its number.
    ///
    /// # Errors
    ///
    /// [`VcpuError`].
    pub fn add_cpu(&self) -> Result<usize, VcpuError> {
        let vcpu = self.guest.add_vcpu()?;
        // Steps 2 and 3 under one lock, which `set_pml` takes too.
        let mut place = self.cpus[vcpu.number()].lock();
        let mut cpu = Cpu::new(
            View::MAIN,
            self.guest.main_eptp(),
            self.guest.capabilities(),
        );
        cpu.pml = self.guest.pml_address(vcpu);
        *place = Some((vcpu, cpu));
        Ok(vcpu.number())
    }

    /// Takes a virtual processor away for good. What it had logged stays in the log.
    pub fn remove_cpu(&self, cpu: usize) {
        let gone = self.cpus[cpu].lock().take();
        if let Some((vcpu, cpu)) = gone {
            self.guest.remove_vcpu(vcpu, cpu.pml_index);
        }
    }

    /// Has processor `cpu` run in another view. False if there is no such view or processor.
    pub fn enter_view(&self, cpu: usize, view: View) -> bool {
        let Some(eptp) = self.guest.eptp(view) else {
            return false;
        };
        let mut place = self.cpus[cpu].lock();
        let Some((_, cpu)) = &mut *place else {
            return false;
        };
        cpu.view = view;
        cpu.eptp = eptp;
        true
    }

    /// For each processor that is there.
    fn each(&self, mut visit: impl FnMut(Vcpu, &mut Cpu)) {
        for place in &self.cpus {
            if let Some((vcpu, cpu)) = &mut *place.lock() {
                visit(*vcpu, cpu);
            }
        }
    }

    /// Has processor `cpu` access guest-physical `address`, handles the exits that the crate knows the
    /// answer to, and calls `then` with the host-physical address while still in the guest.
    ///
    /// # Errors
    ///
    /// [`AccessError`].
    pub fn access<R>(
        &self,
        cpu: usize,
        address: u64,
        access: Access,
        then: impl FnOnce(u64) -> R,
    ) -> Result<R, AccessError> {
        let lock = &self.cpus[cpu];
        loop {
            let mut place = lock.lock();
            let Some((vcpu, cpu)) = &mut *place else {
                return Err(AccessError::NoVcpu);
            };
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
                    drop(place); // the exit is handled while others go on
                    match self
                        .guest
                        .handle_ept_violation(view, address, qualification)
                    {
                        ViolationOutcome::Resume => {}
                        other => return Err(AccessError::Violation(other)),
                    }
                }
                Err(broken @ Exit::Misconfiguration { .. }) => {
                    return Err(AccessError::Misconfiguration(broken));
                }
            }
        }
    }

    /// What all processors have done, together.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        self.each(|_, cpu| {
            all.accesses += cpu.counts.accesses;
            all.violations += cpu.counts.violations;
            all.pml_full += cpu.counts.pml_full;
            all.walks += cpu.counts.walks;
        });
        all
    }
}

impl<M: HostMemory> Processors for Machine<'_, M> {
    fn invalidate(&self, flush: &TlbFlush) {
        for eptp in self.guest.eptps(flush) {
            self.each(|_, cpu| cpu.invalidate(eptp, flush));
        }
    }

    fn drain(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        self.each(|vcpu, cpu| cpu.pml_index = drain(vcpu, cpu.pml_index));
    }

    fn set_pml(&self, on: bool) {
        self.each(|vcpu, cpu| {
            cpu.pml = self.guest.pml_address(vcpu).filter(|_| on);
            cpu.pml_index = PML_HEAD_INDEX;
        });
    }
}

impl<M: HostMemory> fmt::Debug for Machine<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("processors", &self.cpus.len())
            .finish_non_exhaustive()
    }
}
