//! Interrupts and exceptions: how they enter ring 0 and leave it at once.
//!
//! Each entry pushes its vector and leaves for ring 3, on the processor's stack for this, with
//! interrupts off: four instructions of ring 0, eight for a page fault, which has to read CR2. In
//! ring 3, the registers of the interrupted task are saved into its context, and
//! [`scheduler::interrupted`](crate::scheduler::interrupted) says which context is to run next. Its
//! registers are loaded, and a division by zero enters it: two more instructions of ring 0, because
//! only there can IRETQ switch interrupts on.
//!
//! INT with a number raises an invalid-opcode exception where KVM is virtualised in software. INT3
//! works, but not always while the guest is moved: KVM does not save a breakpoint exception that it
//! has not delivered yet, and the instruction pointer is already behind the instruction. After
//! faults, it is not, so they are raised again. So a division by zero is the way into ring 0, which
//! no compiled code takes, and UD2 is the way from a task into the scheduler.

use crate::processors::{self, Processor};
use crate::tasks::{Context, Frame};
use core::arch::asm;
use core::mem::offset_of;

/// A page is ready (src/async_faults.rs).
pub const PAGE_READY: u8 = 0x31;
/// The local APIC's timer.
pub const TIMER: u8 = 0x32;
/// Another processor has made a task runnable.
pub const WAKE: u8 = 0x33;
/// The network card.
pub const NETWORK: u8 = 0x34;
/// The local APIC's spurious interrupt, which is not acknowledged.
pub const SPURIOUS: u8 = 0x3f;

/// The vector of a division by zero: returns to the frame that follows that of the exception.
const DIVISION: u8 = 0;
/// The invalid opcode's vector. At [`yield_address`], a task gives up the processor.
pub const INVALID_OPCODE: u8 = 6;
/// The page fault's vector.
pub const PAGE_FAULT: u8 = 14;
/// Exceptions have the vectors below this.
pub const EXCEPTIONS: u8 = 32;
const VECTORS: usize = 64;

/// The ring-0 code segment (src/boot.rs).
pub const KERNEL_CODE: u64 = 0x08;
/// The ring-0 data segment.
pub const KERNEL_DATA: u64 = 0x10;
/// The ring-3 code segment.
pub const TASK_CODE: u64 = 0x23;
/// The ring-3 data segment.
pub const TASK_DATA: u64 = 0x1b;

// An entry has sixteen bytes. GS points to the processor's `Processor`.
core::arch::global_asm!(
    r#"
    .text
    .balign 16
    .global interrupt_entries
interrupt_entries:
    .set vector, 0
    .rept 64
    .balign 16
    .if vector == 14
    jmp page_fault_entry
    .else
    .if (vector == 8) || ((vector >= 10) && (vector <= 13)) || (vector == 17) || (vector == 21)
    .else
    pushq $0                        // where others have an error code
    .endif
    pushq $vector
    movq %gs:{LEAVE}, %rsp
    iretq
    .endif
    .set vector, vector + 1
    .endr

page_fault_entry:
    pushq $14
    pushq %rax
    movq %cr2, %rax
    movq %rax, %gs:{FAULT_ADDRESS}
    popq %rax
    movq %gs:{LEAVE}, %rsp
    iretq

    .global resume_entry
resume_entry:
    addq $40, %rsp                  // drop the exception's frame: the next one follows it
    iretq

    .global in_ring_0               // the exception of `write_msr_in_ring_0` returns to here
in_ring_0:
    wrmsr
    iretq

    // Ring 3, interrupts off: writes RDX:RAX to register ECX. At RSI, where the exception's frame
    // ends, is the frame of `in_ring_0`; the one by which it returns to here follows.
    .global write_msr_in_ring_0
write_msr_in_ring_0:
    leaq 1f(%rip), %r8
    movq %r8, 40(%rsi)
    movq %rsp, 64(%rsi)
    divb %gs:{ZERO}
1:  ret

    .global yield_in_ring_3
yield_in_ring_3:
    ud2
    ret

    .global idle_loop               // in ring 0: HLT is not for ring 3
idle_loop:
    hlt
    jmp idle_loop

    // Ring 3, interrupts off, with the interrupted task's registers.
    .global leave_to
leave_to:
    movq %rax, %gs:{SCRATCH}
    movq %gs:{CONTEXT}, %rax
    fxsave64 (%rax)
    movq %rbx, {REGISTERS} + 8(%rax)
    movq %rcx, {REGISTERS} + 16(%rax)
    movq %rdx, {REGISTERS} + 24(%rax)
    movq %rsi, {REGISTERS} + 32(%rax)
    movq %rdi, {REGISTERS} + 40(%rax)
    movq %rbp, {REGISTERS} + 48(%rax)
    movq %r8, {REGISTERS} + 56(%rax)
    movq %r9, {REGISTERS} + 64(%rax)
    movq %r10, {REGISTERS} + 72(%rax)
    movq %r11, {REGISTERS} + 80(%rax)
    movq %r12, {REGISTERS} + 88(%rax)
    movq %r13, {REGISTERS} + 96(%rax)
    movq %r14, {REGISTERS} + 104(%rax)
    movq %r15, {REGISTERS} + 112(%rax)
    movq %gs:{SCRATCH}, %rbx
    movq %rbx, {REGISTERS}(%rax)
    movq %gs:{THIS}, %rdi
    call {INTERRUPTED}
    movq %rax, %rdi
    .global enter_context
enter_context:
    movq %rdi, %rax
    movq %rax, %gs:{CONTEXT}
    fxrstor64 (%rax)
    movq {REGISTERS} + 8(%rax), %rbx
    movq {REGISTERS} + 16(%rax), %rcx
    movq {REGISTERS} + 24(%rax), %rdx
    movq {REGISTERS} + 32(%rax), %rsi
    movq {REGISTERS} + 40(%rax), %rdi
    movq {REGISTERS} + 48(%rax), %rbp
    movq {REGISTERS} + 56(%rax), %r8
    movq {REGISTERS} + 64(%rax), %r9
    movq {REGISTERS} + 72(%rax), %r10
    movq {REGISTERS} + 80(%rax), %r11
    movq {REGISTERS} + 88(%rax), %r12
    movq {REGISTERS} + 96(%rax), %r13
    movq {REGISTERS} + 104(%rax), %r14
    movq {REGISTERS} + 112(%rax), %r15
    movq {REGISTERS}(%rax), %rax
    divb %gs:{ZERO}
    ud2
"#,
    THIS = const offset_of!(Processor, this),
    ZERO = const offset_of!(Processor, zero),
    LEAVE = const offset_of!(Processor, leave),
    CONTEXT = const offset_of!(Processor, context),
    SCRATCH = const offset_of!(Processor, scratch),
    FAULT_ADDRESS = const offset_of!(Processor, fault_address),
    REGISTERS = const offset_of!(Context, registers),
    INTERRUPTED = sym crate::scheduler::interrupted,
    options(att_syntax)
);

unsafe extern "C" {
    static interrupt_entries: u8;
    static resume_entry: u8;
    static in_ring_0: u8;
    static write_msr_in_ring_0: u8;
    static yield_in_ring_3: u8;
    static idle_loop: u8;
    static leave_to: u8;
    /// Enters a context, whose frame is where [`Processor::set_frame`] has stored it.
    fn enter_context(context: *const Context) -> !;
}

/// An interrupt, as its entry has stored it.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    /// Its vector.
    pub vector: u8,
    /// An exception's error code, or 0.
    pub error_code: u64,
    /// What was interrupted.
    pub frame: Frame,
}

/// The interrupt descriptor table, which the boot code loads.
#[unsafe(no_mangle)]
static mut IDT: [[u64; 2]; VECTORS] = [[0; 2]; VECTORS];

/// Fills in the table, before anything can interrupt.
pub fn fill_table() {
    let entries = address(&raw const interrupt_entries);
    for (vector, number) in (0..VECTORS).zip(0..) {
        set_gate(vector, entries + number * 16, GATE | FIRST_STACK);
    }
    let resume = address(&raw const resume_entry);
    set_gate(DIVISION.into(), resume, GATE | SECOND_STACK);
}

/// A 64-bit interrupt gate, present, into the ring-0 code segment.
const GATE: u64 = 0x8e << 40 | KERNEL_CODE << 16;
/// Which stack of the task-state segment the gate enters on.
const FIRST_STACK: u64 = 1 << 32;
const SECOND_STACK: u64 = 2 << 32;

fn set_gate(vector: usize, entry: u64, kind: u64) {
    let low = entry & 0xffff | kind | (entry >> 16 & 0xffff) << 48;
    // SAFETY: only the first processor runs, with interrupts off; the processor reads a gate when
    // it is used, and none is used here.
    unsafe { (&raw mut IDT[vector]).write_volatile([low, entry >> 32]) };
}

fn address(symbol: *const u8) -> u64 {
    symbol.expose_provenance() as u64
}

/// Where entries leave to.
pub fn leave_address() -> u64 {
    address(&raw const leave_to)
}

/// The loop that waits for an interrupt, in ring 0.
pub fn idle_address() -> u64 {
    address(&raw const idle_loop)
}

/// The instruction by which tasks give up the processor. It has two bytes.
pub fn yield_address() -> u64 {
    address(&raw const yield_in_ring_3)
}

/// Gives up the processor until the scheduler resumes this task.
pub fn yield_now() {
    // SAFETY: the scheduler saves and restores every register.
    unsafe { asm!("call {}", sym yield_in_ring_3, clobber_abi("C")) };
}

/// Enters the first context of this processor.
pub fn enter(context: *const Context) -> ! {
    // SAFETY: the scheduler has chosen a context that is complete, and stored its frame.
    unsafe { enter_context(context) }
}

/// Writes a model-specific register, through ring 0.
///
/// # Safety
/// Interrupts must be off, and the effect of the register must be known.
pub unsafe fn write_msr(register: u32, value: u64) {
    let frames = processors::current().msr_frames(address(&raw const in_ring_0));
    // SAFETY: the frames enter ring 0 and return from it as described there; no interrupt replaces
    // them; the caller knows the register.
    unsafe {
        asm!("call {}", sym write_msr_in_ring_0, in("ecx") register,
            in("rax") value & 0xffff_ffff, in("rdx") value >> 32, in("rsi") frames,
            out("r8") _);
    }
}
