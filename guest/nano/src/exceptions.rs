//! Exceptions: none is expected, so each one ends the run and reports its address.
//!
//! The entries leave ring 0 at once: they pass what is known to [`exception`], in ring 3.

/// Number of exceptions: vectors 0 to 31.
const VECTORS: usize = 32;
/// The ring-0 code segment (src/boot.rs).
const KERNEL_CODE: u64 = 0x08;

// Each entry pushes its vector and jumps to the common part. For exceptions with an error code, the
// code is below the vector on the stack. An entry has sixteen bytes.
core::arch::global_asm!(
    r#"
    .text
    .balign 16
    .global exception_entries
exception_entries:
    .set vector, 0
    .rept 32
    .balign 16
    pushq $vector
    jmp exception_common
    .set vector, vector + 1
    .endr
exception_common:
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq %cr2, %rcx
    pushq $0x1b
    pushq $task_stack_top - 8
    pushq $2
    pushq $0x23
    pushq $exception
    iretq
"#,
    options(att_syntax)
);

unsafe extern "C" {
    static exception_entries: u8;
}

/// The interrupt descriptor table, which the boot code has loaded.
#[unsafe(no_mangle)]
static mut IDT: [[u64; 2]; VECTORS] = [[0; 2]; VECTORS];

#[unsafe(no_mangle)]
extern "C" fn exception(vector: u64, first: u64, second: u64, fault_address: u64) -> ! {
    let has_error_code = matches!(vector, 8 | 10..=14 | 17 | 21);
    let (code, at) = if has_error_code {
        (first, second)
    } else {
        (0, first)
    };
    crate::fail(format_args!(
        "exception {vector}, error code {code:#x}, at {at:#x}, fault address {fault_address:#x}"
    ))
}

/// Fills in the table.
pub fn fill_table() {
    let entries = (&raw const exception_entries).expose_provenance() as u64;
    for (vector, number) in (0..VECTORS).zip(0_u64..) {
        let entry = entries + number * 16;
        // A 64-bit interrupt gate: present, for exceptions only.
        let low = entry & 0xffff | KERNEL_CODE << 16 | 0x8e << 40 | (entry >> 16 & 0xffff) << 48;
        // SAFETY: this is the only thread; the processor reads a gate when there is an exception,
        // and none occurs here. `vector` is within the table.
        unsafe { (&raw mut IDT[vector]).write_volatile([low, entry >> 32]) };
    }
}
