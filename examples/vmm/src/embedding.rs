//! What the author of a monitor writes to move its guests: this file, for the machines of your
//! monitor instead of those of [`monitor`](crate::monitor).
//!
//! [`Source`] and [`Destination`] implement the engine's two traits. They need of a [`Machine`]
//! that it can run and pause the guest, save and load its device state, and show its memory. Only a
//! monitor with a dirty ring has more to do: it makes the ring with the virtual machine
//! (`Machine::new`), and harvests it when it is full (`monitor/vcpu.rs`).

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::kvm::{MemorySlot, MemorySlots};
use hikkoshi_dirty::{DirtyLog, KvmLog, PagemapLog};
use hikkoshi_engine::report::{FaultKind, Silent};
use hikkoshi_engine::{
    Account, CancelFlag, DestinationGuest, DestinationOptions, GuestError, MigrateControl, Mode,
    ReceiveControl, SourceControl, SourceGuest, SourceOptions, ThreadName, migrate, receive,
};
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::{Listener, Remote};
use hikkoshi_linux::{HostAddr, is_kernel_worker, kernel_thread_name};
use hikkoshi_memory::{GuestRam, RamFile};
use hikkoshi_pages::{GuestRange, PAGE_BYTES, Page, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, Userfault};
use hikkoshi_wire::GuestDescription;

use crate::Result;
use crate::monitor::machine::Machine;
use crate::monitor::memory::Memory;

/// What the methods of the engine's traits return.
type EngineResult<T> = std::result::Result<T, GuestError>;

/// The guest's memory as the engine reads and fills it: one block, in the machine's memfd.
fn guest_ram(machine: &Machine) -> Result<Arc<GuestRam>> {
    let layout = RamLayout::new(vec![RamBlock {
        id: "ram".to_owned(),
        bytes: Memory::BYTES,
        host_page: PAGE_BYTES,
        guest: vec![GuestRange {
            gpa: 0,
            offset: 0,
            bytes: Memory::BYTES,
        }],
    }])?;
    let file = RamFile::new(machine.memory().file().try_clone()?, 0);
    let ram = GuestRam::new(layout, vec![file]).ok_or("one file a block")?;
    Ok(Arc::new(ram))
}

/// The machine as the other side must have it.
fn describe(ram: &GuestRam, running: bool) -> GuestDescription {
    GuestDescription {
        machine: "vmm-1".to_owned(),
        architecture: "x86_64".to_owned(),
        cpus: Machine::PROCESSORS.into(),
        cpu_model: "host".to_owned(),
        hypervisor: "vmm".to_owned(),
        running,
        blocks: GuestDescription::describe_blocks(ram.layout()),
    }
}

/// Which dirty log tells what the guest has written. A monitor needs one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The machine that a guest leaves.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) machine: Machine,
    ram: Arc<GuestRam>,
    description: GuestDescription,
    tracker: Tracker,
    log: Option<Arc<dyn DirtyLog>>,
}

impl Source {
    pub(crate) fn new(machine: Machine, tracker: Tracker) -> Result<Self> {
        let ram = guest_ram(&machine)?;
        Ok(Self {
            description: describe(&ram, true),
            machine,
            ram,
            tracker,
            log: None,
        })
    }

    /// Moves the guest to the destination that listens at `remote`. If this fails, the error says
    /// where the guest is.
    pub(crate) fn migrate(&mut self, remote: &Remote, mode: Mode) -> Result<Account> {
        let options = SourceOptions {
            mode,
            ..SourceOptions::default()
        };
        let control = MigrateControl {
            cancel: CancelFlag::new(),
            control: SourceControl::new(),
            observer: Arc::new(Silent),
            journal: Arc::new(Unrecorded),
        };
        Ok(migrate(self, remote, &options, &control)?)
    }

    fn start_log(&self) -> Result<Arc<dyn DirtyLog>> {
        Ok(match self.tracker {
            Tracker::Bitmap => Arc::new(KvmLog::bitmap(self.slots()?)?),
            Tracker::ManualProtect => Arc::new(KvmLog::manual_protect(self.slots()?)?),
            Tracker::Ring => {
                let rings = self.machine.rings();
                let rings = rings.ok_or("the machine has no dirty ring")?;
                let log = Arc::new(KvmLog::ring(self.slots()?, Arc::clone(rings))?);
                self.machine.set_ring_log(Arc::clone(&log));
                log
            }
            Tracker::Pagemap => {
                let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG)?;
                let hosts = [HostAddr(self.machine.memory().host_address())];
                let log = PagemapLog::start(Arc::new(userfault), self.ram.layout(), &hosts)?;
                Arc::new(log)
            }
        })
    }

    /// The memory slots, for KVM's logs.
    #[allow(unsafe_code)]
    fn slots(&self) -> Result<MemorySlots> {
        let slot = MemorySlot {
            region: self.machine.memory().region(),
            first_page: Page::new(0),
        };
        let vm = Arc::clone(self.machine.vm());
        // SAFETY: this is the only slot of the virtual machine, and it never changes. A log keeps
        // the virtual machine open; it accesses no memory any more once `Machine` was dropped.
        Ok(unsafe { MemorySlots::new(vm, self.ram.layout(), vec![slot]) }?)
    }
}

impl SourceGuest for Source {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
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
        let state = self.machine.save().map_err(GuestError::new)?;
        sink.write_all(&state).map_err(GuestError::new)
    }

    fn resume(&mut self) -> EngineResult<()> {
        self.machine.run().map_err(GuestError::new)
    }

    fn release(&mut self) -> EngineResult<()> {
        let log = self.log.take();
        log.map_or(Ok(()), |log| log.stop().map_err(GuestError::new))
    }

    fn has_ended(&self) -> bool {
        self.machine.has_ended()
    }
}

/// The machine that a guest arrives at. It is like the one that the guest leaves, and has never
/// run.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) machine: Machine,
    ram: Arc<GuestRam>,
    description: GuestDescription,
    userfault: Option<Arc<Userfault>>,
}

impl Destination {
    pub(crate) fn new(machine: Machine) -> Result<Self> {
        let ram = guest_ram(&machine)?;
        Ok(Self {
            description: describe(&ram, false),
            machine,
            ram,
            userfault: None,
        })
    }

    /// Receives a guest from the source that connects to `listener`, unless it is cancelled.
    pub(crate) fn receive(&mut self, listener: &Listener, cancel: CancelFlag) -> Result<Account> {
        let control = ReceiveControl {
            cancel,
            observer: Arc::new(Silent),
            journal: Arc::new(Unrecorded),
        };
        let options = DestinationOptions::default();
        Ok(receive(self, listener, &options, &control)?)
    }
}

impl DestinationGuest for Destination {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    // The processors have no threads yet, so they cannot run.
    fn prepare(&mut self) -> EngineResult<()> {
        Ok(())
    }

    // It must report faults of the kernel, too: those of the guest are KVM's.
    fn take_userfault(&mut self) -> EngineResult<(Arc<Userfault>, Vec<u64>)> {
        let userfault = Userfault::create_for_self(Features::FOR_MISSING);
        let userfault = Arc::new(userfault.map_err(GuestError::new)?);
        self.userfault = Some(Arc::clone(&userfault));
        Ok((userfault, vec![self.machine.memory().host_address()]))
    }

    fn load_device_state(&mut self, state: Vec<u8>) -> EngineResult<()> {
        self.machine.load(&state).map_err(GuestError::new)
    }

    fn resume(&mut self, running: bool, _: &CancelFlag) -> EngineResult<Instant> {
        if running {
            self.machine.run().map_err(GuestError::new)?;
        }
        Ok(Instant::now())
    }

    // The processor may wait for a page that never comes: only the process can end it.
    fn kill(&mut self) -> EngineResult<()> {
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

    fn release(&mut self) -> EngineResult<()> {
        self.userfault = None;
        Ok(())
    }
}
