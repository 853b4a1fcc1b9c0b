//! A machine of software processors that run one guest, with a minimal hypervisor around them.

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

/// Why an access did not happen and the exit could not be handled by the crate alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The hypervisor has to handle the violation.
    Violation(ViolationOutcome),
    /// The tables are misconfigured.
    Misconfiguration(Exit),
    /// The vCPU does not exist.
    NoVcpu,
}

/// Several vCPUs, each on its own [`Cpu`]. A vCPU is *in the guest* while its lock is held; taking
/// the lock makes it leave.
pub struct Machine<'g, M: HostMemory> {
    guest: &'g Guest<M>,
    /// By [`Vcpu::number`]; the slots of vCPUs that do not exist are empty.
    cpus: Vec<SpinLock<Option<(Vcpu, Cpu)>>>,
}

impl<'g, M: HostMemory> Machine<'g, M> {
    /// Creates a machine with `count` vCPUs, all in [`View::MAIN`], and slots for as many as the
    /// guest supports.
    ///
    /// # Errors
    ///
    /// [`VcpuError`] if the guest does not support as many.
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

    /// Adds a vCPU, with logging enabled if it is enabled for the others, while vCPUs run and logs
    /// start and stop: the steps of [`Guest::add_vcpu`]. Returns its number.
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

    /// Removes a vCPU permanently. The pages it has logged stay in the log.
    pub fn remove_cpu(&self, cpu: usize) {
        let gone = self.cpus[cpu].lock().take();
        if let Some((vcpu, cpu)) = gone {
            self.guest.remove_vcpu(vcpu, cpu.pml_index);
        }
    }

    /// Switches vCPU `cpu` to another view. Returns false if the view or the vCPU does not exist.
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

    /// Calls `visit` for each existing vCPU.
    fn each(&self, mut visit: impl FnMut(Vcpu, &mut Cpu)) {
        for place in &self.cpus {
            if let Some((vcpu, cpu)) = &mut *place.lock() {
                visit(*vcpu, cpu);
            }
        }
    }

    /// Lets vCPU `cpu` access guest-physical `address` and handles the exits that the crate can
    /// resolve. Then calls `then` with the host-physical address while the vCPU is still in the
    /// guest.
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
                    drop(place); // other vCPUs run while the exit is handled
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

    /// Returns the sum of all processors' event counts.
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

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
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
