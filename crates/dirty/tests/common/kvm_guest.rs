//! A guest under KVM whose processors write to its memory: a few instructions in ring 3, which
//! a processor that is virtualised in software executes at full speed. Each processor executes one
//! command at a time and then leaves the guest.
//!
//! Guest-physical memory: one slot for code and page tables, which is not tracked, and from 1 GiB
//! on the RAM, one page after another, in as many slots as the test wants.

// Each program uses a part of this. The unsafe blocks describe memory of this object.
#![allow(dead_code, unsafe_code, clippy::unwrap_used)]

#[path = "ring3.rs"]
mod ring3;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use hikkoshi_dirty::kvm::{DirtyRings, KvmLog, MemorySlot, MemorySlots};
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_BYTES, Page, PageRange, RamBlock, RamLayout, usize_from};
use kvm_bindings::{KVM_EXIT_DIRTY_RING_FULL, kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use ring3::enter_ring3;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

const GIB: u64 = 1 << 30;

/// Guest-physical addresses: of the slot for code and tables, and of the RAM.
const CODE: u64 = 0x1000;
const STOP_FLAG: u64 = 0x2000;
const PAGE_ROOT: u64 = 0x3000;
const PAGE_GIBIBYTES: u64 = 0x4000;
const PAGE_DIRECTORIES: u64 = 0x5000;
const FIRMWARE_BYTES: u64 = 0x20_000;
const RAM: u64 = GIB;

/// The number of the slot for code and tables.
const FIRMWARE_SLOT: u32 = 1;

/// The number of the RAM's first slot. The others count downwards.
const HIGHEST_SLOT: u32 = 300;

/// The port by which a processor says that its command is done.
const PORT: u16 = 0x10;

// Only jumps inside one command, so that it runs at any address.
std::arch::global_asm!(
    r#"
    .pushsection .rodata.kvm_guest, "a"
    .global kvm_guest_start, kvm_guest_touch, kvm_guest_fill, kvm_guest_write_until
    .global kvm_guest_end
kvm_guest_start:
    // write: the value rsi to address rdi
    mov [rdi], rsi
    out 0x10, al
kvm_guest_touch:
    // read address rdi
    mov rax, [rdi]
    out 0x10, al
kvm_guest_fill:
    // write rsi to rcx addresses: rdi, rdi + rdx, ...
1:  mov [rdi], rsi
    add rdi, rdx
    dec rcx
    jnz 1b
    out 0x10, al
kvm_guest_write_until:
    // write growing values, from rsi on, to random ones of the rcx pages at rdi, until the word at
    // r8 is not zero; rbx is the random seed
2:  mov r9d, 100
3:  mov rax, rbx
    shl rax, 13
    xor rbx, rax
    mov rax, rbx
    shr rax, 7
    xor rbx, rax
    mov rax, rbx
    shl rax, 17
    xor rbx, rax
    mov rax, rbx
    mul rcx
    shl rdx, 12
    mov [rdi + rdx], rsi
    inc rsi
    dec r9d
    jnz 3b
    cmp qword ptr [r8], 0
    je 2b
    out 0x10, al
kvm_guest_end:
    .popsection
    "#
);

unsafe extern "C" {
    static kvm_guest_start: u8;
    static kvm_guest_touch: u8;
    static kvm_guest_fill: u8;
    static kvm_guest_write_until: u8;
    static kvm_guest_end: u8;
}

fn offset(of: *const u8) -> u64 {
    (of.addr() - (&raw const kvm_guest_start).addr()) as u64
}

/// Whether there is KVM. If not, this says that nothing is tested; in CI it fails.
pub(crate) fn kvm_present() -> bool {
    match Kvm::new() {
        Ok(_) => true,
        Err(error) => {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
            crate::common::aloud(&format!("NOT TESTED: under KVM: /dev/kvm: {error}"));
            false
        }
    }
}

/// A guest, and the monitor that runs it.
#[derive(Debug)]
pub(crate) struct KvmGuest {
    pub(crate) vm: Arc<VmFd>,
    pub(crate) layout: RamLayout,
    pub(crate) rings: Option<Arc<DirtyRings>>,
    /// The slots of the RAM.
    slots: Vec<MemorySlot>,
    vcpus: Vec<Vcpu>,
    monitor: Arc<Monitor>,
    /// Behind the processors, which use it until they are dropped.
    ram: Vec<MmapRegion>,
    firmware: MmapRegion,
}

/// What the processors' threads share.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    /// The log to harvest when a ring is full.
    pub(crate) log: OnceLock<Arc<KvmLog>>,
    pub(crate) full_rings: AtomicU64,
}

#[derive(Debug)]
struct Vcpu {
    commands: Option<Sender<kvm_regs>>,
    done: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The shape of a guest.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    /// The size of each block of RAM in bytes.
    pub(crate) blocks: &'a [u64],
    /// The largest number of pages in a slot: longer blocks are several slots.
    pub(crate) slot_pages: u64,
    pub(crate) vcpus: u64,
    /// Entries of the dirty rings, if there are to be any.
    pub(crate) ring: Option<u32>,
}

impl KvmGuest {
    pub(crate) fn new(shape: &Shape<'_>) -> Self {
        let kvm = Kvm::new().unwrap();
        let vm = Arc::new(kvm.create_vm().unwrap());
        let rings = shape
            .ring
            .map(|entries| Arc::new(DirtyRings::enable(&vm, entries).unwrap()));
        let blocks = shape.blocks.iter().zip(0..);
        let blocks =
            blocks.map(|(bytes, number)| RamBlock::new(format!("ram{number}"), *bytes, PAGE_BYTES));
        let layout = RamLayout::new(blocks.collect()).unwrap();
        let map = |bytes: &u64| MmapRegion::new(usize_from(*bytes)).unwrap();
        let ram: Vec<MmapRegion> = shape.blocks.iter().map(map).collect();
        let slots = slots(&layout, &ram, shape.slot_pages);
        let firmware = firmware(layout.bytes());
        let firmware_slot = kvm_userspace_memory_region {
            slot: FIRMWARE_SLOT,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: FIRMWARE_BYTES,
            userspace_addr: firmware.as_ptr() as u64,
        };
        let regions = slots.iter().map(|slot| slot.region).chain([firmware_slot]);
        for region in regions {
            // SAFETY: this memory is mapped for as long as there are processors.
            unsafe { vm.set_user_memory_region(region) }.unwrap();
        }
        let monitor = Arc::new(Monitor::default());
        let vcpus = (0..shape.vcpus)
            .map(|number| {
                let vcpu = vm.create_vcpu(number).unwrap();
                if let Some(rings) = &rings {
                    rings.add(&vcpu).unwrap();
                }
                enter_ring3(&kvm, &vcpu, PAGE_ROOT);
                Vcpu::start(vcpu, Arc::clone(&monitor))
            })
            .collect();
        Self {
            vm,
            layout,
            rings,
            slots,
            vcpus,
            monitor,
            ram,
            firmware,
        }
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    pub(crate) fn slots(&self) -> MemorySlots {
        // SAFETY: these are the slots, and they stay until this object is dropped.
        unsafe { MemorySlots::new(Arc::clone(&self.vm), &self.layout, self.slots.clone()) }.unwrap()
    }

    pub(crate) fn slot_list(&self) -> Vec<MemorySlot> {
        self.slots.clone()
    }

    pub(crate) fn hosts(&self) -> Vec<HostAddr> {
        let host = |region: &MmapRegion| HostAddr(region.as_ptr() as u64);
        self.ram.iter().map(host).collect()
    }

    /// Makes a processor write a value to a page.
    pub(crate) fn write(&self, vcpu: usize, page: Page, value: u64) {
        self.run(vcpu, command(&raw const kvm_guest_start, page, value));
    }

    /// Makes a processor read a page.
    pub(crate) fn touch(&self, vcpu: usize, page: Page) {
        self.run(vcpu, command(&raw const kvm_guest_touch, page, 0));
    }

    /// Makes a processor write a value to `count` pages, `step` apart, from `first` on.
    pub(crate) fn fill(&self, vcpu: usize, first: Page, step: u64, count: u64, value: u64) {
        let mut regs = command(&raw const kvm_guest_fill, first, value);
        regs.rdx = step * PAGE_BYTES;
        regs.rcx = count;
        self.run(vcpu, regs);
    }

    /// Makes all processors write to random pages: each one stamps that grow, and no other one's.
    pub(crate) fn start_writing(&self) {
        self.firmware
            .as_volatile_slice()
            .store(0u64, usize_from(STOP_FLAG), Ordering::SeqCst)
            .unwrap();
        for (vcpu, number) in self.vcpus.iter().zip(1u64..) {
            let first = Page::new(0);
            let mut regs = command(&raw const kvm_guest_write_until, first, number << 48);
            regs.rcx = self.layout.pages();
            regs.rbx = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            regs.r8 = STOP_FLAG;
            vcpu.commands.as_ref().unwrap().send(regs).unwrap();
        }
    }

    /// Ends that, and waits until all processors have left the guest.
    pub(crate) fn stop_writing(&self) {
        self.firmware
            .as_volatile_slice()
            .store(1u64, usize_from(STOP_FLAG), Ordering::SeqCst)
            .unwrap();
        for vcpu in &self.vcpus {
            vcpu.done.lock().unwrap().recv().unwrap();
        }
    }

    /// Returns the value in a page, read by the monitor.
    pub(crate) fn read(&self, page: Page) -> u64 {
        let (block, offset) = self.layout.locate(page).unwrap();
        self.ram[block]
            .as_volatile_slice()
            .load(usize_from(offset), Ordering::SeqCst)
            .unwrap()
    }

    /// Returns pages of one block to the host, as a balloon of the monitor does.
    pub(crate) fn drop_pages(&self, range: PageRange) {
        let (block, offset) = self.layout.locate(range.start()).unwrap();
        let (start, bytes) = (usize_from(offset), usize_from(range.bytes()));
        assert!(start + bytes <= self.ram[block].len());
        // SAFETY: inside the mapping, to which there are no references.
        let result = unsafe {
            let from = self.ram[block].as_ptr().add(start);
            libc::madvise(from.cast(), bytes, libc::MADV_DONTNEED)
        };
        assert_eq!(result, 0);
    }

    /// Writes a value to a page, as a device of the monitor does.
    pub(crate) fn write_as_device(&self, page: Page, value: u64) {
        let (block, offset) = self.layout.locate(page).unwrap();
        self.ram[block]
            .as_volatile_slice()
            .store(value, usize_from(offset), Ordering::SeqCst)
            .unwrap();
    }

    fn run(&self, vcpu: usize, regs: kvm_regs) {
        let vcpu = &self.vcpus[vcpu];
        vcpu.commands.as_ref().unwrap().send(regs).unwrap();
        vcpu.done.lock().unwrap().recv().unwrap();
    }
}

fn command(code: *const u8, page: Page, value: u64) -> kvm_regs {
    kvm_regs {
        rip: CODE + offset(code),
        rdi: RAM + page.index() * PAGE_BYTES,
        rsi: value,
        rflags: 0x3002, // ring 3 may use ports
        ..Default::default()
    }
}

/// The slots of the RAM. Their numbers have no order.
fn slots(layout: &RamLayout, ram: &[MmapRegion], slot_pages: u64) -> Vec<MemorySlot> {
    let mut slots = Vec::new();
    for ((_, block), region) in layout.blocks().zip(ram) {
        for pages in block.chunks(slot_pages) {
            let before = PageRange::new(block.start(), pages.start());
            slots.push(MemorySlot {
                region: kvm_userspace_memory_region {
                    slot: HIGHEST_SLOT - u32::try_from(slots.len()).unwrap(),
                    flags: 0,
                    guest_phys_addr: RAM + pages.start().index() * PAGE_BYTES,
                    memory_size: pages.bytes(),
                    userspace_addr: region.as_ptr() as u64 + before.bytes(),
                },
                first_page: pages.start(),
            });
        }
    }
    slots
}

/// Code, and page tables that map the first GiB and the RAM to themselves, for ring 3. The flags
/// that a processor would set (accessed, dirty) are set.
fn firmware(ram: u64) -> MmapRegion {
    const TABLE: u64 = 0x27;
    const LEAF: u64 = 0xe7;
    let region: MmapRegion = MmapRegion::new(usize_from(FIRMWARE_BYTES)).unwrap();
    let memory = region.as_volatile_slice();
    let put = |address: u64, value: u64| memory.write_obj(value, usize_from(address)).unwrap();
    let length = usize_from(offset(&raw const kvm_guest_end));
    // SAFETY: the assembler has put so many bytes there.
    let code = unsafe { std::slice::from_raw_parts(&raw const kvm_guest_start, length) };
    memory.write_slice(code, usize_from(CODE)).unwrap();
    put(PAGE_ROOT, PAGE_GIBIBYTES | TABLE);
    let gibibytes = (RAM + ram).div_ceil(GIB);
    assert!(PAGE_DIRECTORIES + gibibytes * PAGE_BYTES <= FIRMWARE_BYTES);
    for gibibyte in 0..gibibytes {
        let directory = PAGE_DIRECTORIES + gibibyte * PAGE_BYTES;
        put(PAGE_GIBIBYTES + 8 * gibibyte, directory | TABLE);
        for entry in 0..512 {
            put(
                directory + 8 * entry,
                (gibibyte * GIB + (entry << 21)) | LEAF,
            );
        }
    }
    region
}

impl Vcpu {
    fn start(mut vcpu: VcpuFd, monitor: Arc<Monitor>) -> Self {
        let (commands, receiver) = channel::<kvm_regs>();
        let (sender, done) = channel();
        let run = move || {
            for regs in receiver {
                vcpu.set_regs(&regs).unwrap();
                run_until_done(&mut vcpu, &monitor);
                sender.send(()).unwrap();
            }
        };
        let thread = std::thread::Builder::new().name("vcpu".to_owned());
        Self {
            commands: Some(commands),
            done: Mutex::new(done),
            thread: Some(thread.spawn(run).unwrap()),
        }
    }
}

/// The loop of a monitor.
fn run_until_done(vcpu: &mut VcpuFd, monitor: &Monitor) {
    // The limit only prevents a hang.
    for _ in 0..100_000 {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(PORT, _)) => return,
            Ok(VcpuExit::Unsupported(KVM_EXIT_DIRTY_RING_FULL)) => {
                monitor.full_rings.fetch_add(1, Ordering::Relaxed);
                monitor.log.wait().harvest().unwrap();
            }
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            other => panic!("the processor has stopped: {other:?}"),
        }
    }
    panic!("the processor makes no progress");
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.commands = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}
