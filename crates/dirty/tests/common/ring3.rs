//! A virtual processor whose code runs in ring 3.

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd};

/// Puts a processor into ring 3 of 64-bit mode. Its page tables are at the guest's address
/// `page_root`.
pub(crate) fn enter_ring3(kvm: &Kvm, vcpu: &VcpuFd, page_root: u64) {
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
    vcpu.set_cpuid2(&cpuid).unwrap();
    let mut sregs = vcpu.get_sregs().unwrap();
    let segment = |selector, type_, long| kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: 3,
        db: 1 - long,
        s: 1,
        l: long,
        g: 1,
        ..Default::default()
    };
    let data = segment(0x2b, 3, 0);
    sregs.cs = segment(0x33, 11, 1);
    (sregs.ds, sregs.es, sregs.ss) = (data, data, data);
    (sregs.fs, sregs.gs) = (data, data);
    sregs.cr0 = 0x8001_0033; // paging, write protection, numeric errors, protected mode
    sregs.cr3 = page_root;
    sregs.cr4 = 0x20; // physical address extension
    sregs.efer = 0x500; // long mode, enabled and active
    vcpu.set_sregs(&sregs).unwrap();
}
