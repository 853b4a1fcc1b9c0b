//! The machine: KVM's virtual machine, memory, devices, and virtual processors.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use hikkoshi_dirty::KvmLog;
use hikkoshi_dirty::kvm::{DirtyRings, MemorySlots};
use hikkoshi_wire::GuestDescription;
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_clock_data};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::Result;
use crate::monitor::boot;
use crate::monitor::console::Console;
use crate::monitor::memory::Memory;
use crate::monitor::ports::Ports;
use crate::monitor::state::{SavedInterruptController, SavedMachine, SavedVcpu};
use crate::monitor::vcpu::{RunningVcpu, Shared, lock};

/// Three pages that KVM needs on some processors.
const TASK_STATE: usize = 0xfffb_d000;

/// Entries of the dirty ring: few, so that it is full now and then.
const RING_ENTRIES: u32 = 1024;

/// A machine. The memory is dropped after everything that uses it.
#[derive(Debug)]
pub(crate) struct Machine {
    vcpus: Processors,
    shared: Arc<Shared>,
    rings: Option<Arc<DirtyRings>>,
    /// KVM's clock, while the guest is paused. It does not advance then.
    clock: Option<u64>,
    processors: u8,
    vm: Arc<VmFd>,
    kvm: Kvm,
    memory: Memory,
}

/// By number. After an error there are none: those that ran were stopped.
#[derive(Debug)]
enum Processors {
    Paused(Vec<VcpuFd>),
    Running(Vec<RunningVcpu>),
}

impl Machine {
    /// A machine that waits for a guest, with a dirty ring if it is ever to be used.
    pub(crate) fn new(processors: u8, console: Console, with_ring: bool) -> Result<Self> {
        let kvm = Kvm::new().map_err(|error| {
            format!("opening /dev/kvm: {error} (is KVM loaded, and may this user open it?)")
        })?;
        let vm = Arc::new(kvm.create_vm()?);
        vm.set_tss_address(TASK_STATE)?;
        vm.create_irq_chip()?;
        let memory = Memory::new()?;
        memory.give_to(&vm)?;
        let rings = with_ring.then(|| DirtyRings::enable(&vm, RING_ENTRIES));
        let rings = rings.transpose()?.map(Arc::new);
        let mut vcpus = Vec::new();
        for number in 0..processors {
            let vcpu = vm.create_vcpu(number.into())?;
            if let Some(rings) = &rings {
                rings.add(&vcpu)?;
            }
            vcpus.push(vcpu);
        }
        let shared = Shared {
            ports: Mutex::new(Ports::new(&vm, processors, console)?),
            ring_log: Mutex::new(None),
        };
        Ok(Self {
            vcpus: Processors::Paused(vcpus),
            processors,
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
        let features = self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
        for (vcpu, number) in self.paused()?.iter().zip(0..) {
            vcpu.set_cpuid2(&numbered(features.clone(), number))?;
        }
        // The others wait until the guest starts them.
        let first = self.paused()?.first().ok_or("no processor")?;
        boot::set_registers(first, entry)?;
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
        if let Processors::Paused(vcpus) = &mut self.vcpus {
            let vcpus = vcpus.drain(..).zip(0..);
            let vcpus = vcpus
                .map(|(vcpu, number)| RunningVcpu::start(number, vcpu, Arc::clone(&self.shared)));
            self.vcpus = Processors::Running(vcpus.collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// Pauses the guest, if it runs.
    pub(crate) fn pause(&mut self) -> Result<()> {
        if let Processors::Running(vcpus) = &mut self.vcpus {
            for vcpu in vcpus.iter() {
                vcpu.request_stop()?;
            }
            let vcpus = vcpus.drain(..).map(RunningVcpu::stop);
            self.vcpus = Processors::Paused(vcpus.collect::<Result<_>>()?);
            self.clock = Some(self.vm.get_clock()?.clock);
        }
        Ok(())
    }

    /// Saves the state of a paused machine.
    pub(crate) fn save(&self) -> Result<SavedMachine> {
        let vcpus = self.paused()?.iter();
        let vcpus = vcpus.map(|vcpu| SavedVcpu::save(&self.kvm, vcpu));
        Ok(SavedMachine {
            vcpus: vcpus.collect::<Result<_>>()?,
            interrupt_controllers: SavedInterruptController::save_all(&self.vm)?,
            clock: self.clock.ok_or("the guest has never run")?,
            ports: self.ports().save(),
        })
    }

    /// Restores a state in a machine that has never run.
    pub(crate) fn load(&mut self, saved: SavedMachine) -> Result<()> {
        // It comes from the peer.
        let (has, machine) = (saved.vcpus.len(), usize::from(self.processors));
        if has != machine || saved.interrupt_controllers.len() != SavedInterruptController::NUMBER {
            return Err(format!(
                "the saved state has {has} processors and {} interrupt controllers; this machine \
                 has {machine} and {}",
                saved.interrupt_controllers.len(),
                SavedInterruptController::NUMBER
            )
            .into());
        }
        for controller in &saved.interrupt_controllers {
            controller.restore(&self.vm)?;
        }
        for (saved, vcpu) in saved.vcpus.iter().zip(self.paused()?) {
            saved.restore(vcpu)?;
        }
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
            cpus: self.processors.into(),
            cpu_model: "host".to_owned(),
            hypervisor: "vmm".to_owned(),
            running,
            blocks: GuestDescription::describe_blocks(self.memory.ram().layout()),
        }
    }

    /// The number of the processor that a thread runs.
    pub(crate) fn vcpu_of_thread(&self, thread: u32) -> Option<u32> {
        let found =
            |(vcpu, number): (&RunningVcpu, u32)| (vcpu.thread_id() == thread).then_some(number);
        self.running().iter().zip(0..).find_map(found)
    }

    /// Whether the guest has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.running().iter().any(RunningVcpu::has_ended)
    }

    #[cfg(test)]
    pub(crate) fn kvm(&self) -> &Kvm {
        &self.kvm
    }

    /// The processors of a paused machine.
    pub(crate) fn paused(&self) -> Result<&[VcpuFd]> {
        match &self.vcpus {
            Processors::Paused(vcpus) => Ok(vcpus),
            Processors::Running(_) => Err("the guest is not paused".into()),
        }
    }

    fn running(&self) -> &[RunningVcpu] {
        match &self.vcpus {
            Processors::Paused(_) => &[],
            Processors::Running(vcpus) => vcpus,
        }
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        lock(&self.shared.ports)
    }
}

/// Nothing may run in memory that is unmapped.
impl Drop for Machine {
    fn drop(&mut self) {
        // Processors that could not be paused stop when they are dropped, before the memory.
        let _ = self.pause();
    }
}

/// The features of the processor with this number: it is also the number of its local APIC.
fn numbered(mut features: CpuId, number: u32) -> CpuId {
    for leaf in features.as_mut_slice() {
        match leaf.function {
            0x1 => leaf.ebx = leaf.ebx & 0x00ff_ffff | number << 24,
            0xb | 0x1f => leaf.edx = number,
            _ => {}
        }
    }
    features
}
