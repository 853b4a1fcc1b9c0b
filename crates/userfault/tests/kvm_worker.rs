//! Which thread a fault names that KVM handles asynchronously.

// The unsafe block describes memory of this test.
#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;
#[path = "../../dirty/tests/common/ring3.rs"]
mod ring3;

use std::path::Path;
use std::thread;

use hikkoshi_linux::{HostAddr, HostRange, StopEventFd, is_kernel_worker, kernel_thread_name};
use hikkoshi_userfault::{EventBuffer, Fault, Features, RegisterMode, Userfault, UserfaultEvent};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use ring3::enter_ring3;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// Guest-physical addresses: code and page tables, and the page that is missing.
const CODE: u64 = 0x1000;
const PAGE_TABLES: [u64; 3] = [0x2000, 0x3000, 0x4000];
const FIRMWARE_BYTES: u64 = 0x5000;
const MISSING: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// `mov rax, [rdi]; out 0x10, al`.
const READ_RDI: [u8; 5] = [0x48, 0x8b, 0x07, 0xe6, 0x10];

/// A virtual processor that accepts interrupts does not wait for a page in its own thread: a worker
/// of the kernel does, which is not a thread of the process.
#[test]
fn a_fault_names_the_kernels_worker_if_the_processor_accepts_interrupts() {
    const INTERRUPTS: u64 = 1 << 9;
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(error) => {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
            return common::aloud(&format!("NOT TESTED: faults under KVM: /dev/kvm: {error}"));
        }
    };
    let task = |thread| Path::new(&format!("/proc/self/task/{thread}")).exists();
    let (fault, vcpu) = fault_of_a_read(&kvm, 0);
    assert_eq!(fault.thread, Some(vcpu));
    assert_eq!(kernel_thread_name(vcpu), None);
    let (fault, vcpu) = fault_of_a_read(&kvm, INTERRUPTS);
    let worker = fault.thread.unwrap();
    assert_ne!(worker, vcpu);
    assert!(!task(worker), "thread {worker} is of this process");
    // The second thread of every kernel; a container with its own process IDs does not have it.
    if kernel_thread_name(2).as_deref() != Some("kthreadd") {
        return common::aloud("NOT TESTED: the kernel's threads cannot be seen here");
    }
    let name = kernel_thread_name(worker).unwrap();
    assert!(is_kernel_worker(&name), "thread {worker}: {name}");
}

/// Lets a virtual processor with these flags read a missing page: the fault, and the thread of the
/// processor.
fn fault_of_a_read(kvm: &Kvm, flags: u64) -> (Fault, u32) {
    let vm = kvm.create_vm().unwrap();
    vm.create_irq_chip().unwrap();
    let firmware = firmware();
    let page: MmapRegion = MmapRegion::new(4096).unwrap();
    add_slot(&vm, 0, 0, &firmware);
    add_slot(&vm, 1, MISSING, &page);
    let mut vcpu = vm.create_vcpu(0).unwrap();
    set_up(kvm, &vcpu, flags);
    let userfault = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let range = HostRange::new(HostAddr(page.as_ptr() as u64), PAGE);
    userfault.register(range, RegisterMode::MISSING).unwrap();
    thread::scope(|scope| {
        let running = scope.spawn(move || {
            loop {
                match vcpu.run() {
                    Ok(VcpuExit::IoOut(..)) => return common::gettid(),
                    Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
                    other => panic!("the processor has stopped: {other:?}"),
                }
            }
        });
        let stop = StopEventFd::new().unwrap();
        let mut events = EventBuffer::with_capacity(1);
        userfault.wait(&stop, None).unwrap();
        userfault.read(&mut events).unwrap();
        let event = events.pop();
        userfault.copy(range.addr, &[7; 4096]).unwrap();
        let vcpu = running.join().unwrap();
        match event {
            Some(UserfaultEvent::Fault(fault)) => (fault, vcpu),
            other => panic!("another event: {other:?}"),
        }
    })
}

fn add_slot(vm: &VmFd, slot: u32, guest_phys_addr: u64, memory: &MmapRegion) {
    let region = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr,
        memory_size: memory.size() as u64,
        userspace_addr: memory.as_ptr() as u64,
    };
    // SAFETY: the processor's thread ends before the caller drops the memory.
    unsafe { vm.set_user_memory_region(region) }.unwrap();
}

/// Code, and page tables that map the first 4 MiB to themselves, for ring 3.
fn firmware() -> MmapRegion {
    const TABLE: u64 = 0x27;
    const LEAF: u64 = 0xe7;
    let region: MmapRegion = MmapRegion::new(usize::try_from(FIRMWARE_BYTES).unwrap()).unwrap();
    let memory = region.as_volatile_slice();
    let at = |address| usize::try_from(address).unwrap();
    memory.write_slice(&READ_RDI, at(CODE)).unwrap();
    for (address, value) in [
        (PAGE_TABLES[0], PAGE_TABLES[1] | TABLE),
        (PAGE_TABLES[1], PAGE_TABLES[2] | TABLE),
        (PAGE_TABLES[2], LEAF),
        (PAGE_TABLES[2] + 8, MISSING | LEAF),
    ] {
        memory.write_obj(value, at(address)).unwrap();
    }
    region
}

/// Lets a processor run the code, with these flags.
fn set_up(kvm: &Kvm, vcpu: &VcpuFd, flags: u64) {
    enter_ring3(kvm, vcpu, PAGE_TABLES[0]);
    let mut regs = vcpu.get_regs().unwrap();
    regs.rip = CODE;
    regs.rdi = MISSING;
    regs.rflags = 0x3002 | flags; // ring 3 may use ports
    vcpu.set_regs(&regs).unwrap();
}
