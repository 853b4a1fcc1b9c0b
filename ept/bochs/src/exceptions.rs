//! Exceptions: none is expected, so each one ends the run and reports its address.

use crate::gdt::{CODE, TablePointer};
use alloc::boxed::Box;
use core::arch::asm;

/// Number of exceptions: vectors 0 to 31.
const VECTORS: usize = 32;

// Each entry pushes its vector and jumps to the common part. For exceptions with an error code, the
// code is below the vector on the stack. An entry has sixteen bytes.
core::arch::global_asm!(
    r#"
    .balign 16
    .global trap_entries
trap_entries:
    .set vector, 0
    .rept 32
    .balign 16
    push vector
    jmp trap_common
    .set vector, vector + 1
    .endr
trap_common:
    mov rdi, [rsp]
    mov rsi, [rsp + 8]
    mov rdx, [rsp + 16]
    and rsp, -16
    call trap
    "#
);

unsafe extern "C" {
    static trap_entries: u8;
}

#[unsafe(no_mangle)]
extern "C" fn trap(vector: u64, first: u64, second: u64) -> ! {
    let has_error_code = matches!(vector, 8 | 10..=14 | 17 | 21);
    let (code, address) = if has_error_code {
        (first, second)
    } else {
        (0, first)
    };
    crate::fail(format_args!(
        "exception {vector}, error code {code:#x}, at {address:#x}"
    ))
}

/// Creates and loads the interrupt descriptor table. Returns its address.
pub fn load() -> u64 {
    let entries = (&raw const trap_entries).expose_provenance() as u64;
    let mut table = [0_u64; VECTORS * 2];
    for (vector, gate) in (0_u64..).zip(table.chunks_exact_mut(2)) {
        let entry = entries + vector * 16;
        // A 64-bit interrupt gate: present, ring 0.
        gate[0] =
            entry & 0xffff | u64::from(CODE) << 16 | 0x8e << 40 | (entry >> 16 & 0xffff) << 48;
        gate[1] = entry >> 32;
    }
    let table: &'static [u64] = Box::leak(Box::new(table));
    let pointer = TablePointer::to(table);
    // SAFETY: every gate refers to code that is never freed, with the current code selector.
    unsafe {
        asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags))
    };
    table.as_ptr().expose_provenance() as u64
}
