//! The machine: KVM's virtual machine, memory, devices, and virtual processors.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use hikkoshi_dirty::KvmLog;
use hikkoshi_dirty::kvm::DirtyRings;
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_clock_data};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::Result;
use crate::monitor::boot;
use crate::monitor::console::Console;
use crate::monitor::devices::Devices;
use crate::monitor::memory::Memory;
use crate::monitor::state::{SavedMachine, SavedVcpu, save_interrupt_controllers};
use crate::monitor::vcpu::{RunningVcpu, Shared, lock};

/// Three pages that KVM needs on some processors.
const TASK_STATE: usize = 0xfffb_d000;

/// Entries of the dirty ring: few, so that it is full now and then.
const RING_ENTRIES: u32 = 1024;

/// The error of a machine that [refuses](Machine::refuse_state) the device state.
pub(crate) const REFUSED: &str = "this machine refuses every device state";

/// A machine. The memory is dropped after everything that uses it.
#[derive(Debug)]
pub(crate) struct Machine {
    /// By number, all either here or in `running`. After an error there are none.
    paused: Vec<VcpuFd>,
    running: Vec<RunningVcpu>,
    shared: Arc<Shared>,
    rings: Option<Arc<DirtyRings>>,
    /// KVM's clock, while the guest is paused. It does not advance then.
    clock: Option<u64>,
    refuses_state: bool,
    vm: Arc<VmFd>,
    kvm: Kvm,
    memory: Memory,
}

impl Machine {
    /// The number of processors.
    pub(crate) const PROCESSORS: u8 = 2;

    /// A machine that waits for a guest, with a dirty ring if it is ever to be used.
    #[allow(unsafe_code)]
    pub(crate) fn new(console: Console, with_ring: bool) -> Result<Self> {
        let kvm = Kvm::new().map_err(|error| {
            format!("opening /dev/kvm: {error} (is KVM loaded, and may this user open it?)")
        })?;
        let vm = Arc::new(kvm.create_vm()?);
        vm.set_tss_address(TASK_STATE)?;
        vm.create_irq_chip()?;
        let memory = Memory::new()?;
        // SAFETY: the memory stays mapped until `Machine` has stopped its processors.
        unsafe { vm.set_user_memory_region(memory.region()) }?;
        let rings = with_ring.then(|| DirtyRings::enable(&vm, RING_ENTRIES));
        let rings = rings.transpose()?.map(Arc::new);
        let mut vcpus = Vec::new();
        for number in 0..Self::PROCESSORS {
            let vcpu = vm.create_vcpu(number.into())?;
            if let Some(rings) = &rings {
                rings.add(&vcpu)?;
            }
            vcpus.push(vcpu);
        }
        let shared = Shared {
            devices: Mutex::new(Devices::new(&vm, Self::PROCESSORS, console)?),
            ring_log: Mutex::new(None),
        };
        Ok(Self {
            paused: vcpus,
            running: Vec::new(),
            shared: Arc::new(shared),
            rings,
            clock: None,
            refuses_state: false,
            vm,
            kvm,
            memory,
        })
    }

    /// Boots a kernel.
    pub(crate) fn boot(&mut self, kernel: &Path, command_line: &str) -> Result<()> {
        let entry = boot::load(self.memory.map(), kernel, command_line)?;
        for (vcpu, number) in self.paused.iter().zip(0..) {
            let mut features = self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
            boot::set_number(&mut features, number);
            vcpu.set_cpuid2(&features)?;
        }
        // The others wait until the guest starts them.
        let first = self.paused.first().ok_or("no processor")?;
        boot::set_registers(first, entry)?;
        self.run()
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// KVM's virtual machine.
    pub(crate) fn vm(&self) -> &Arc<VmFd> {
        &self.vm
    }

    /// The guest receives a line on its serial port.
    pub(crate) fn type_line(&self, line: &str) -> Result<()> {
        self.devices().type_line(line)
    }

    /// Runs the guest, if it is paused.
    pub(crate) fn run(&mut self) -> Result<()> {
        if let Some(clock) = self.clock.take() {
            self.vm.set_clock(&kvm_clock_data {
                clock,
                ..kvm_clock_data::default()
            })?;
        }
        for vcpu in self.paused.drain(..) {
            let shared = Arc::clone(&self.shared);
            let running = RunningVcpu::start(self.running.len(), vcpu, shared)?;
            self.running.push(running);
        }
        Ok(())
    }

    /// Pauses the guest, if it runs.
    pub(crate) fn pause(&mut self) -> Result<()> {
        if self.running.is_empty() {
            return Ok(());
        }
        for vcpu in &self.running {
            vcpu.request_stop();
        }
        // All of them, also if one has failed.
        let stopped: Vec<Result<VcpuFd>> = self.running.drain(..).map(RunningVcpu::stop).collect();
        self.paused = stopped.into_iter().collect::<Result<_>>()?;
        self.clock = Some(self.vm.get_clock()?.clock);
        Ok(())
    }

    /// Saves the state of a paused machine.
    pub(crate) fn save(&self) -> Result<Vec<u8>> {
        let vcpus = self.paused.iter();
        let vcpus = vcpus.map(|vcpu| SavedVcpu::save(&self.kvm, vcpu));
        let saved = SavedMachine {
            vcpus: vcpus.collect::<Result<_>>()?,
            interrupt_controllers: save_interrupt_controllers(&self.vm)?,
            clock: self.clock.ok_or("the guest is not paused")?,
            devices: self.devices().save(),
        };
        Ok(postcard::to_allocvec(&saved)?)
    }

    /// Restores a state in a machine that has never run.
    pub(crate) fn load(&mut self, state: &[u8]) -> Result<()> {
        if self.refuses_state {
            return Err(REFUSED.into());
        }
        // It comes from the peer.
        let saved: SavedMachine = postcard::from_bytes(state)?;
        if saved.vcpus.len() != self.paused.len() {
            return Err(format!(
                "the saved state has {} processors, and this machine has {}",
                saved.vcpus.len(),
                self.paused.len()
            )
            .into());
        }
        for controller in &saved.interrupt_controllers {
            self.vm.set_irqchip(controller)?;
        }
        for (saved, vcpu) in saved.vcpus.iter().zip(&self.paused) {
            saved.restore(vcpu)?;
        }
        self.devices().load(saved.devices)?;
        self.clock = Some(saved.clock);
        Ok(())
    }

    /// Makes a move to this machine fail, to test what the source does then.
    pub(crate) fn refuse_state(&mut self) {
        self.refuses_state = true;
    }

    /// The dirty ring, if the machine was made with one.
    pub(crate) fn rings(&self) -> Option<&Arc<DirtyRings>> {
        self.rings.as_ref()
    }

    /// Sets the log that the processors harvest when the dirty ring is full. It may be full once
    /// more after the log has ended, so the log stays set.
    pub(crate) fn set_ring_log(&self, log: Arc<KvmLog>) {
        *lock(&self.shared.ring_log) = Some(log);
    }

    /// The number of the processor that a thread runs.
    pub(crate) fn vcpu_of_thread(&self, thread: u32) -> Option<u32> {
        let mut vcpus = self.running.iter().zip(0..);
        let (_, number) = vcpus.find(|(vcpu, _)| vcpu.thread_id() == thread)?;
        Some(number)
    }

    /// Whether the guest has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.running.iter().any(RunningVcpu::has_ended)
    }

    #[cfg(test)]
    pub(crate) fn kvm_and_vcpu(&self) -> (&Kvm, &VcpuFd) {
        (&self.kvm, &self.paused[0])
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        lock(&self.shared.devices)
    }
}

/// Nothing may run in memory that is unmapped.
impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.pause();
    }
}
