//! From QEMU's `-kernel`, or another processor's SIPI, to ring 3.
//!
//! QEMU finds the entry in the PVH note and enters in 32-bit protected mode without paging; EBX
//! points to its `hvm_start_info`. The other processors start in 16-bit real mode, in the copy of
//! `trampoline` that the first one has made (src/processors.rs). Both go the same way into long
//! mode and leave ring 0 for [`crate::start`], with the processor's number.
//!
//! All of ring 0 is this file and the entries of interrupts (src/interrupts.rs): where the
//! processor is virtualised in software, ring 0 is interpreted, so the tables are made by the
//! assembler and the linker, or in ring 3, and Rust code runs in ring 3 only.
//!
//! The page tables map the first 4 GiB identically, in pages of 2 MiB, all of it writable in ring
//! 3: there is one program, and it fills in the processors' tables and uses the local APIC. It may
//! use I/O ports by the task-state segment's map: the privilege level for I/O in the flags (IOPL)
//! is lost by a virtualised IRETQ.

use crate::processors::{MOST_PROCESSORS, PROCESSORS, Processor, STACK_BYTES};
use core::mem::offset_of;

core::arch::global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18                  // lengths of name and value; XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_entry

    .section .boot, "ax"
    .code32
    .global pvh_entry
pvh_entry:
    cli
    cld
    movl %ebx, start_info
    lgdtl gdt_pointer
to_long_mode:
    movl $0x620, %eax               // PAE, and SSE for the compiler's code (OSFXSR, OSXMMEXCPT)
    movl %eax, %cr4
    movl $page_root, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx          // IA32_EFER
    rdmsr
    orl $0x100, %eax                // LME
    wrmsr
    movl $0x80010033, %eax          // PG, WP, NE, ET, MP, PE; EM and TS clear, for SSE
    movl %eax, %cr0
    ljmpl $0x08, $long_mode

    .code64
long_mode:
    movl $0x1b, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %gs                  // so that IRETQ to ring 3 leaves its base alone
    movl $0x10, %eax
    movl %eax, %ss

    movl starting_processor, %edi
    imull ${PROCESSOR_BYTES}, %edi, %ebx
    addl ${PROCESSORS}, %ebx        // this processor's `Processor`
    leal {STACK}(%rbx), %esp        // also clears the upper half

    movl %edi, %ecx
    shll $4, %ecx
    addl $gdt_tasks, %ecx           // its task-state segment's descriptor
    leal {TASK_STATE}(%rbx), %eax   // the segment's base is spread over the descriptor
    movw %ax, 2(%rcx)
    shrl $16, %eax
    movb %al, 4(%rcx)
    movb %ah, 7(%rcx)
    subl $gdt, %ecx
    ltr %cx
    lidt idt_pointer

    movl $0xc0000101, %ecx          // GS's base
    movl %ebx, %eax
    xorl %edx, %edx
    wrmsr

    testl %edi, %edi                // what follows is for the first processor
    jnz 1f
    movl $0x40000000, %eax          // is the hypervisor KVM ("KVMKVMKVM")?
    cpuid
    cmpl $0x4b4d564b, %ebx
    jne 1f
    movl $0x40000001, %eax
    cpuid
    movl %eax, kvm_features
    testl $8, %eax                  // the clock with MSR 0x4b564d01
    jz 1f
    movl $0x4b564d01, %ecx
    movl $KVM_CLOCK + 1, %eax       // its address, and: enabled
    xorl %edx, %edx
    wrmsr
1:
    movq %rsp, %rax
    pushq $0x1b
    subq $8, %rax                   // as after a call
    pushq %rax
    pushq $2                        // interrupts off
    pushq $0x23
    pushq $start
    iretq

    // Started by a SIPI, at the start of a page below 1 MiB: CS is the page's, IP is 0.
    .code16
    .global trampoline
trampoline:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl trampoline_gdt_pointer - trampoline
    movl $0x11, %eax                // PE, ET
    movl %eax, %cr0
    ljmpl $0x28, $started
    .balign 4
trampoline_gdt_pointer:
    .word gdt_end - gdt - 1
    .long gdt
    .global trampoline_end
trampoline_end:
    .code32
started:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %ss
    jmp to_long_mode

    .code64
    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 0x08: ring 0, code, 64 bits
    .quad 0x00cf93000000ffff        // 0x10: ring 0, data
    .quad 0x00cff3000000ffff        // 0x18: ring 3, data
    .quad 0x00affb000000ffff        // 0x20: ring 3, code, 64 bits
    .quad 0x00cf9b000000ffff        // 0x28: ring 0, code, 32 bits
gdt_tasks:
    .rept {MOST_PROCESSORS}
    .quad 0x0000890000000268        // a task-state segment of 617 bytes
    .quad 0
    .endr
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .quad gdt
idt_pointer:
    .word 64 * 16 - 1
    .quad IDT

    .global start_info
    .balign 8
start_info:
    .quad 0
    .global starting_processor
starting_processor:
    .long 0
    .global kvm_features
kvm_features:
    .long 0

    .balign 4096
page_root:
    .quad page_gibibytes + 7        // present, writable, ring 3
    .skip 4088
page_gibibytes:
    .quad page_directories + 0x0007
    .quad page_directories + 0x1007
    .quad page_directories + 0x2007
    .quad page_directories + 0x3007
    .skip 4064
page_directories:
    .set page, 0
    .rept 2048
    .quad page + 0x87               // the same, and page size: 2 MiB
    .set page, page + 0x200000
    .endr
    .text
"#,
    PROCESSORS = sym PROCESSORS,
    PROCESSOR_BYTES = const size_of::<Processor>(),
    STACK = const offset_of!(Processor, stack) + STACK_BYTES,
    TASK_STATE = const offset_of!(Processor, task_state),
    MOST_PROCESSORS = const MOST_PROCESSORS,
    options(att_syntax)
);
