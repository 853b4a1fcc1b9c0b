//! VMX operation: entering it, and the instructions that act on the current VMCS and on cached
//! translations.

use super::field::Field;
use crate::cpu;
use crate::memory::Frame;
use core::arch::asm;

/// Bit 13 of CR4: VMX enable.
const VMXE: u64 = 1 << 13;

/// Returns the revision identifier at the start of a VMXON region and a VMCS (`IA32_VMX_BASIC`,
/// bits 30:0).
fn revision() -> u32 {
    // SAFETY: the register exists if VMX does, which `enter` checks first.
    let basic = unsafe { cpu::read_msr(0x480) };
    u32::try_from(basic & 0x7fff_ffff).unwrap_or(0)
}

/// Enables VMX and enters VMX operation.
///
/// Ends the run if the processor has no VMX or no EPT, or if the firmware disables it.
pub fn enter() {
    if core::arch::x86_64::__cpuid(1).ecx & 1 << 5 == 0 {
        crate::fail("the processor has no VMX");
    }
    // SAFETY: exists if VMX does. If the register is locked without VMX, VMX stays disabled.
    unsafe {
        const LOCKED: u64 = 1;
        const VMX: u64 = 1 << 2;
        let control = cpu::read_msr(cpu::FEATURE_CONTROL);
        if control & LOCKED == 0 {
            cpu::write_msr(cpu::FEATURE_CONTROL, control | LOCKED | VMX);
        } else if control & VMX == 0 {
            crate::fail("the firmware has disabled VMX");
        }
    }
    let region = control_region();
    // SAFETY: VMX exists and is allowed; the region is a separate frame with the right revision.
    let failed = unsafe {
        cpu::set_cr4(VMXE);
        let failed: u8;
        asm!("vmxon [{}]", "setbe {}", in(reg) &raw const region, out(reg_byte) failed);
        failed
    };
    if failed != 0 {
        crate::fail("VMXON failed");
    }
}

/// Returns the address of a zeroed frame that begins with the revision: a VMXON region or a new
/// VMCS.
fn control_region() -> u64 {
    let frame = Frame::zeroed();
    // SAFETY: a frame that was just taken: nothing else refers to it.
    unsafe { frame.pointer().cast::<u32>().write_volatile(revision()) };
    frame.address()
}

/// A virtual-machine control structure.
#[derive(Debug)]
pub struct Vmcs {
    address: u64,
}

impl Vmcs {
    /// Creates a VMCS, clears it and makes it current.
    pub fn new() -> Vmcs {
        let vmcs = Vmcs {
            address: control_region(),
        };
        let failed: u8;
        // SAFETY: VMX operation was entered; the region is a new one.
        unsafe {
            asm!("vmclear [{}]", "setbe {}", in(reg) &raw const vmcs.address, out(reg_byte) failed)
        };
        if failed != 0 {
            crate::fail("VMCLEAR failed");
        }
        vmcs.load();
        vmcs
    }

    /// Makes it the current VMCS.
    pub fn load(&self) {
        let failed: u8;
        // SAFETY: VMX operation was entered; the region is a cleared VMCS.
        unsafe {
            asm!("vmptrld [{}]", "setbe {}", in(reg) &raw const self.address, out(reg_byte) failed)
        };
        if failed != 0 {
            crate::fail("VMPTRLD failed");
        }
    }
}

/// Reads a field of the current VMCS.
pub fn read(field: Field) -> u64 {
    let (value, failed): (u64, u8);
    // SAFETY: VMX operation was entered; reading a field has no side effect.
    unsafe {
        asm!("vmread {value}, {field}", "setbe {failed}",
            value = out(reg) value, field = in(reg) field.0, failed = lateout(reg_byte) failed);
    }
    if failed != 0 {
        crate::fail(format_args!("VMREAD of field {:#x} failed", field.0));
    }
    value
}

/// Writes a field of the current VMCS.
pub fn write(field: Field, value: u64) {
    let failed: u8;
    // SAFETY: VMX operation was entered; a field takes effect at the next entry, which checks it.
    unsafe {
        asm!("vmwrite {field}, {value}", "setbe {failed}",
            value = in(reg) value, field = in(reg) field.0, failed = lateout(reg_byte) failed);
    }
    if failed != 0 {
        crate::fail(format_args!(
            "VMWRITE of {value:#x} to field {:#x} failed",
            field.0
        ));
    }
}

/// INVEPT, single-context: invalidates the cached translations of the tables under an EPT pointer.
pub fn invalidate(ept_pointer: u64) {
    let descriptor = [ept_pointer, 0];
    let failed: u8;
    // SAFETY: VMX operation was entered; invalidating cached translations only costs time.
    unsafe {
        asm!("invept {kind}, [{descriptor}]", "setbe {failed}",
            kind = in(reg) 1_u64, descriptor = in(reg) &raw const descriptor, failed = lateout(reg_byte) failed);
    }
    if failed != 0 {
        crate::fail(format_args!("INVEPT of {ept_pointer:#x} failed"));
    }
}
