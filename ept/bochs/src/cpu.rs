//! The processor's registers: model-specific registers, control registers, and the counter that
//! serves as an instruction counter in Bochs.

use core::arch::asm;

/// `IA32_FEATURE_CONTROL`: whether the firmware permits VMX (SDM vol. 3, appendix A and 24.7).
pub const FEATURE_CONTROL: u32 = 0x3a;
/// `IA32_EFER`.
pub const EFER: u32 = 0xc000_0080;

/// Reads a model-specific register.
///
/// # Safety
///
/// The register must exist, or the processor faults.
pub unsafe fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading has no side effect for the registers used here; the caller guarantees that
    // the register exists.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
///
/// The register must exist, and the program must be able to continue with the value.
pub unsafe fn write_msr(register: u32, value: u64) {
    let [low, high] = halves(value);
    // SAFETY: guaranteed by the caller.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack, preserves_flags));
    }
}

/// Returns the low and the high 32 bits.
fn halves(value: u64) -> [u32; 2] {
    let bytes = value.to_le_bytes();
    let [a, b, c, d, e, f, g, h] = bytes;
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

/// Reads control register 0.
pub fn cr0() -> u64 {
    let value;
    // SAFETY: reading a control register in ring 0 has no side effect.
    unsafe { asm!("mov {}, cr0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads control register 3.
pub fn cr3() -> u64 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads control register 4.
pub fn cr4() -> u64 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets bits of control register 4.
///
/// # Safety
///
/// The processor must have the bits, and the program must be able to continue with them.
pub unsafe fn set_cr4(bits: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe { asm!("mov cr4, {}", in(reg) cr4() | bits, options(nostack, preserves_flags)) };
}

/// Reads the time-stamp counter. With the configuration of run.sh, Bochs increments it once for
/// each instruction.
pub fn instructions() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe {
        asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}
