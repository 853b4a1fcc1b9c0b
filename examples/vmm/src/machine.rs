//! The machine: KVM's virtual machine, memory, devices, and one virtual processor.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hikkoshi_dirty::KvmLog;
use hikkoshi_dirty::kvm::{DirtyRings, MemorySlots};
use hikkoshi_wire::GuestDescription;
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_clock_data};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::console::Console;
use crate::memory::Memory;
use crate::ports::Ports;
use crate::state::{SavedInterruptController, SavedMachine, SavedVcpu};
use crate::vcpu::{RunningVcpu, Shared, lock};
use crate::{Result, boot};

/// Three pages that KVM needs on some processors.
const TASK_STATE: usize = 0xfffb_d000;

/// Entries of the dirty ring: few, so that it is full now and then.
const RING_ENTRIES: u32 = 1024;

/// A machine. The memory is dropped after everything that uses it.
#[derive(Debug)]
pub(crate) struct Machine {
    vcpu: Option<Processor>,
    shared: Arc<Shared>,
    rings: Option<Arc<DirtyRings>>,
    /// KVM's clock, while the guest is paused. It stands still then.
    clock: Option<u64>,
    vm: Arc<VmFd>,
    kvm: Kvm,
    memory: Memory,
}

#[derive(Debug)]
enum Processor {
    Paused(VcpuFd),
    Running(RunningVcpu),
}

impl Machine {
    /// A machine that waits for a guest, with a dirty ring if it is ever to be used.
    pub(crate) fn new(console: Console, with_ring: bool) -> Result<Self> {
        let kvm = Kvm::new().map_err(|error| format!("opening /dev/kvm: {error}"))?;
        let vm = Arc::new(kvm.create_vm()?);
        vm.set_tss_address(TASK_STATE)?;
        vm.create_irq_chip()?;
        let memory = Memory::new()?;
        memory.give_to(&vm)?;
        let rings = with_ring.then(|| DirtyRings::enable(&vm, RING_ENTRIES));
        let rings = rings.transpose()?.map(Arc::new);
        let vcpu = vm.create_vcpu(0)?;
        if let Some(rings) = &rings {
            rings.add(&vcpu)?;
        }
        let shared = Shared {
            ports: Mutex::new(Ports::new(&vm, console)?),
            ring_log: Mutex::new(None),
            thread_id: AtomicU32::new(0),
        };
        Ok(Self {
            vcpu: Some(Processor::Paused(vcpu)),
            shared: Arc::new(shared),
            rings,
            clock: None,
            vm,
            kvm,
            memory,
        })
    }

    /// Boots a kernel.
    pub(crate) fn boot(&mut self, kernel: &Path, command_line: &str) -> Result<()> {
        let entry = boot::load(self.memory.map(), kernel, command_line)?;
        let vcpu = self.paused()?;
        vcpu.set_cpuid2(&self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
        boot::set_registers(vcpu, entry)?;
        self.run()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The guest receives a line on its serial port.
    pub(crate) fn type_line(&self, line: &str) -> Result<()> {
        self.ports().serial().receive(line)
    }

    /// Runs the guest, if it is paused.
    pub(crate) fn run(&mut self) -> Result<()> {
        if let Some(clock) = self.clock.take() {
            self.vm.set_clock(&kvm_clock_data {
                clock,
                ..kvm_clock_data::default()
            })?;
        }
        self.vcpu = match self.vcpu.take() {
            Some(Processor::Paused(vcpu)) => {
                let running = RunningVcpu::start(vcpu, Arc::clone(&self.shared))?;
                Some(Processor::Running(running))
            }
            other => other,
        };
        Ok(())
    }

    /// Pauses the guest, if it runs.
    pub(crate) fn pause(&mut self) -> Result<()> {
        if let Some(Processor::Running(vcpu)) = self.vcpu.take_if(|vcpu| vcpu.runs()) {
            self.vcpu = Some(Processor::Paused(vcpu.stop()?));
            self.clock = Some(self.vm.get_clock()?.clock);
        }
        Ok(())
    }

    /// Saves the state of a paused machine.
    pub(crate) fn save(&self) -> Result<SavedMachine> {
        Ok(SavedMachine {
            vcpu: SavedVcpu::save(&self.kvm, self.paused()?)?,
            interrupt_controllers: SavedInterruptController::save_all(&self.vm)?,
            clock: self.clock.ok_or("the guest has never run")?,
            ports: self.ports().save(),
        })
    }

    /// Restores a state in a machine that has never run.
    pub(crate) fn load(&mut self, saved: SavedMachine) -> Result<()> {
        for controller in &saved.interrupt_controllers {
            controller.restore(&self.vm)?;
        }
        saved.vcpu.restore(self.paused()?)?;
        self.ports().load(saved.ports)?;
        self.clock = Some(saved.clock);
        Ok(())
    }

    /// The memory slots, for a dirty log.
    #[allow(unsafe_code)]
    pub(crate) fn memory_slots(&self) -> Result<MemorySlots> {
        let (vm, ram) = (Arc::clone(&self.vm), self.memory.ram());
        // SAFETY: these are all slots of the virtual machine, and they never change. A log keeps
        // the virtual machine open; it accesses no memory any more once `Machine` was dropped.
        Ok(unsafe { MemorySlots::new(vm, ram.layout(), self.memory.slots()) }?)
    }

    /// The dirty ring, if the machine was made with one.
    pub(crate) fn rings(&self) -> Option<&Arc<DirtyRings>> {
        self.rings.as_ref()
    }

    /// Sets the log that the processor harvests when its dirty ring is full. It may be full once
    /// more after the log has ended, so the log stays set.
    pub(crate) fn set_ring_log(&self, log: Arc<KvmLog>) {
        let mut ring_log = lock(&self.shared.ring_log);
        *ring_log = Some(log);
    }

    /// The machine as the other side must have it.
    pub(crate) fn describe(&self, running: bool) -> GuestDescription {
        GuestDescription {
            machine: "vmm-1".to_owned(),
            architecture: "x86_64".to_owned(),
            cpus: 1,
            cpu_model: "host".to_owned(),
            hypervisor: "vmm".to_owned(),
            running,
            blocks: GuestDescription::describe_blocks(self.memory.ram().layout()),
        }
    }

    /// The thread that runs the processor.
    pub(crate) fn vcpu_thread(&self) -> u32 {
        self.shared.thread_id.load(Ordering::Relaxed)
    }

    /// Whether the guest has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.vcpu, Some(Processor::Running(vcpu)) if vcpu.has_ended())
    }

    #[cfg(test)]
    pub(crate) fn kvm(&self) -> &Kvm {
        &self.kvm
    }

    /// The processor of a paused machine.
    pub(crate) fn paused(&self) -> Result<&VcpuFd> {
        match &self.vcpu {
            Some(Processor::Paused(vcpu)) => Ok(vcpu),
            _ => Err("the guest is not paused".into()),
        }
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        lock(&self.shared.ports)
    }
}

/// Nothing may run in memory that is unmapped.
impl Drop for Machine {
    fn drop(&mut self) {
        // On an error the processor has ended.
        let _ = self.pause();
    }
}

impl Processor {
    fn runs(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}
