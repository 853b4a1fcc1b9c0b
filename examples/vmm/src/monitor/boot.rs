//! Booting a kernel by PVH: the ELF file and the start information into memory, the processor into
//! 32-bit protected mode without paging.

use std::fs::File;
use std::path::Path;

use kvm_bindings::{CpuId, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::elf::start_info::{hvm_memmap_table_entry, hvm_start_info};
use linux_loader::loader::elf::{Elf, PvhBootCapability};
use linux_loader::loader::{Cmdline, KernelLoader, load_cmdline};
use vm_memory::{Address, GuestAddress, GuestMemoryMmap};

use crate::Result;
use crate::monitor::memory::Memory;

/// In the memory below the kernel.
const START_INFO: GuestAddress = GuestAddress(0x6000);
const MEMORY_MAP: GuestAddress = GuestAddress(0x7000);
const COMMAND_LINE: GuestAddress = GuestAddress(0x2_0000);
const COMMAND_LINE_BYTES: usize = 4096;

const START_INFO_MAGIC: u32 = 0x336e_c578;
const RAM: u32 = 1;
/// The usual hole for firmware and video memory, although nothing is there.
const LOW_MEMORY: u64 = 0xa_0000;
const HIGH_MEMORY: u64 = 0x10_0000;

/// Loads a kernel; returns its entry.
pub(crate) fn load(map: &GuestMemoryMmap, kernel: &Path, line: &str) -> Result<GuestAddress> {
    let mut file =
        File::open(kernel).map_err(|error| format!("opening {}: {error}", kernel.display()))?;
    let loaded = Elf::load(map, None, &mut file, Some(GuestAddress(HIGH_MEMORY)))?;
    let PvhBootCapability::PvhEntryPresent(entry) = loaded.pvh_boot_cap else {
        return Err(format!("{} has no PVH entry", kernel.display()).into());
    };
    let mut command_line = Cmdline::new(COMMAND_LINE_BYTES)?;
    command_line.insert_str(line)?;
    load_cmdline(map, COMMAND_LINE, &command_line)?;
    let memory_map = [(0, LOW_MEMORY), (HIGH_MEMORY, Memory::BYTES)];
    let memory_map = memory_map.map(|(start, end)| hvm_memmap_table_entry {
        addr: start,
        size: end - start,
        type_: RAM,
        reserved: 0,
    });
    let start_info = hvm_start_info {
        magic: START_INFO_MAGIC,
        version: 1,
        cmdline_paddr: COMMAND_LINE.raw_value(),
        memmap_paddr: MEMORY_MAP.raw_value(),
        memmap_entries: 2,
        ..hvm_start_info::default()
    };
    let mut parameters = BootParams::new(&start_info, START_INFO);
    parameters.set_sections(&memory_map, MEMORY_MAP);
    PvhBootConfigurator::write_bootparams(&parameters, map)?;
    Ok(entry)
}

/// Sets the processor's registers as PVH describes.
pub(crate) fn set_registers(vcpu: &VcpuFd, entry: GuestAddress) -> Result<()> {
    const PROTECTED_MODE: u64 = 1;
    const DATA: u8 = 0x3;
    const CODE_OR_TASK: u8 = 0xb;
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs = segment(0x8, CODE_OR_TASK);
    let data = segment(0x10, DATA);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment {
        limit: 0x67,
        g: 0,
        s: 0,
        ..segment(0x18, CODE_OR_TASK)
    };
    sregs.cr0 = PROTECTED_MODE;
    sregs.cr4 = 0;
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&kvm_regs {
        rip: entry.raw_value(),
        rbx: START_INFO.raw_value(),
        rflags: 2,
        ..kvm_regs::default()
    })?;
    Ok(())
}

/// A segment of 4 GiB from address 0 on.
fn segment(selector: u16, type_: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    }
}

/// Numbers a processor in its features: that is the number of its local APIC.
pub(crate) fn set_number(features: &mut CpuId, number: u32) {
    for leaf in features.as_mut_slice() {
        match leaf.function {
            0x1 => leaf.ebx = leaf.ebx & 0x00ff_ffff | number << 24,
            0xb | 0x1f => leaf.edx = number,
            _ => {}
        }
    }
}
