//! What the processor's VMX can do: the capability registers (SDM vol. 3D, appendix A).

use crate::cpu::read_msr;

/// The control fields, each with the register that tells its allowed settings.
#[derive(Clone, Copy, Debug)]
pub enum Controls {
    /// Pin-based.
    Pin = 0x48d,
    /// Primary processor-based.
    Primary = 0x48e,
    /// Exit.
    Exit = 0x48f,
    /// Entry.
    Entry = 0x490,
    /// Secondary processor-based.
    Secondary = 0x48b,
}

/// Pin-based: the VMX-preemption timer runs.
pub const TIMER: u32 = 1 << 6;
/// Primary: the secondary controls count.
pub const SECONDARY_COUNT: u32 = 1 << 31;
/// Primary: HLT exits.
pub const HLT_EXITS: u32 = 1 << 7;
/// Secondary: extended page tables.
pub const EPT: u32 = 1 << 1;
/// Secondary: the guest may run without paging.
pub const UNRESTRICTED: u32 = 1 << 7;
/// Secondary: page-modification logging.
pub const PML: u32 = 1 << 17;
/// Exit: the host runs 64-bit code.
pub const HOST_64: u32 = 1 << 9;
/// Exit: `IA32_EFER` of the guest is saved, and the host's is loaded.
pub const EXIT_EFER: u32 = 1 << 20 | 1 << 21;
/// Entry: `IA32_EFER` of the guest is loaded.
pub const ENTRY_EFER: u32 = 1 << 15;

/// The value for a control field: what is wanted, with the bits that must be one.
///
/// Ends the run when the processor does not allow a wanted bit.
pub fn controls(kind: Controls, wanted: u32) -> u64 {
    // SAFETY: these registers exist where VMX and its "true" controls do, which was checked.
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

/// `IA32_VMX_PROCBASED_CTLS2`: the upper half says which secondary controls may be one.
pub fn secondary() -> u64 {
    // SAFETY: as above.
    unsafe { read_msr(Controls::Secondary as u32) }
}

/// `IA32_VMX_EPT_VPID_CAP`.
pub fn ept_capabilities() -> u64 {
    // SAFETY: exists where EPT does, which was checked.
    unsafe { read_msr(0x48c) }
}

/// The preemption timer counts down by one each time this bit of the time-stamp counter changes
/// (`IA32_VMX_MISC`, bits 4:0).
pub fn timer_shift() -> u64 {
    // SAFETY: exists where VMX does.
    unsafe { read_msr(0x485) & 0x1f }
}

/// Bits of a physical address.
pub fn physical_bits() -> u32 {
    core::arch::x86_64::__cpuid(0x8000_0008).eax & 0xff
}
