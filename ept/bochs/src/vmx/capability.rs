//! The VMX capability registers (SDM vol. 3D, appendix A).

use crate::cpu::read_msr;

/// The control fields, each with the MSR that reports its allowed settings.
#[derive(Clone, Copy, Debug)]
pub enum Controls {
    /// Pin-based controls.
    Pin = 0x48d,
    /// Primary processor-based controls.
    Primary = 0x48e,
    /// VM-exit controls.
    Exit = 0x48f,
    /// VM-entry controls.
    Entry = 0x490,
    /// Secondary processor-based controls.
    Secondary = 0x48b,
}

/// Pin-based: activate the VMX-preemption timer.
pub const TIMER: u32 = 1 << 6;
/// Primary: activate the secondary controls.
pub const SECONDARY_COUNT: u32 = 1 << 31;
/// Primary: HLT exiting.
pub const HLT_EXITS: u32 = 1 << 7;
/// Secondary: enable EPT.
pub const EPT: u32 = 1 << 1;
/// Secondary: unrestricted guest (may run without paging).
pub const UNRESTRICTED: u32 = 1 << 7;
/// Secondary: enable PML.
pub const PML: u32 = 1 << 17;
/// VM-exit: host address-space size (64-bit host).
pub const HOST_64: u32 = 1 << 9;
/// VM-exit: save the guest's `IA32_EFER` and load the host's.
pub const EXIT_EFER: u32 = 1 << 20 | 1 << 21;
/// VM-entry: load the guest's `IA32_EFER`.
pub const ENTRY_EFER: u32 = 1 << 15;

/// Returns the value for a control field: the wanted bits and the bits that must be one.
///
/// Ends the run if the processor does not allow a wanted bit.
pub fn controls(kind: Controls, wanted: u32) -> u64 {
    // SAFETY: these registers exist if VMX and its "true" controls do, which was checked.
    let allowed = unsafe { read_msr(kind as u32) };
    let must = allowed & 0xffff_ffff;
    let may = allowed >> 32;
    let value = u64::from(wanted) | must;
    if value & !may != 0 {
        crate::fail(format_args!(
            "the processor does not allow {kind:?} controls {wanted:#010x}, only {may:#010x}"
        ));
    }
    value
}

/// Reads `IA32_VMX_PROCBASED_CTLS2`: the upper half has the secondary controls that may be one.
pub fn secondary() -> u64 {
    // SAFETY: as above.
    unsafe { read_msr(Controls::Secondary as u32) }
}

/// Reads `IA32_VMX_EPT_VPID_CAP`.
pub fn ept_capabilities() -> u64 {
    // SAFETY: exists if EPT does, which was checked.
    unsafe { read_msr(0x48c) }
}

/// Returns the rate of the preemption timer: it counts down by one each time this bit of the
/// time-stamp counter changes (`IA32_VMX_MISC`, bits 4:0).
pub fn timer_shift() -> u64 {
    // SAFETY: exists if VMX does.
    unsafe { read_msr(0x485) & 0x1f }
}

/// Returns the width of a physical address in bits.
pub fn physical_bits() -> u32 {
    core::arch::x86_64::__cpuid(0x8000_0008).eax & 0xff
}
