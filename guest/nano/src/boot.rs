//! From QEMU's `-kernel` to ring 3.
//!
//! QEMU finds the entry in the PVH note and enters in 32-bit protected mode without paging; EBX
//! points to its `hvm_start_info`. All of ring 0 is this file and the exceptions' entries: where
//! the processor is virtualised in software, ring 0 is interpreted, so the tables are made by the
//! assembler and the linker, and Rust code runs in ring 3 only.
//!
//! The tables map the first 4 GiB identically, in pages of 2 MiB, all of it writable in ring 3:
//! there is one program, and it fills in the kernel's tables. It may use I/O ports by the
//! task-state segment's map: the privilege level for I/O in the flags (IOPL) is lost by a
//! virtualised IRETQ.

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
    movl $0x10, %eax
    movl %eax, %ss
    movl $exception_stack_top, %esp // also clears the upper half

    movl $task_state, %eax          // the segment's base is spread over its descriptor
    movw %ax, gdt_task + 2
    shrl $16, %eax
    movb %al, gdt_task + 4
    movb %ah, gdt_task + 7
    movl $0x28, %eax
    ltr %ax
    lidt idt_pointer

    movl $0x40000000, %eax          // KVM's clock, if the hypervisor is KVM ("KVMKVMKVM")
    cpuid
    cmpl $0x4b4d564b, %ebx
    jne 1f
    movl $0x40000001, %eax
    cpuid
    testl $8, %eax                  // the clock with MSR 0x4b564d01
    jz 1f
    movl $0x4b564d01, %ecx
    movl $KVM_CLOCK + 1, %eax       // its address, and: enabled
    xorl %edx, %edx
    wrmsr
1:
    pushq $0x1b
    pushq $task_stack_top - 8       // as after a call
    pushq $2                        // interrupts off
    pushq $0x23
    pushq $task
    iretq

    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 0x08: ring 0, code, 64 bits
    .quad 0x00cf93000000ffff        // 0x10: ring 0, data
    .quad 0x00cff3000000ffff        // 0x18: ring 3, data
    .quad 0x00affb000000ffff        // 0x20: ring 3, code, 64 bits
gdt_task:
    .quad 0x0000890000000268        // 0x28: task-state segment of 617 bytes
    .quad 0
gdt_pointer:
    .word . - gdt - 1
    .quad gdt
idt_pointer:
    .word 32 * 16 - 1
    .quad IDT

    .balign 8
task_state:
    .long 0
    .quad exception_stack_top       // the stack pointer when ring 3 is interrupted
    .skip 90
    .word 104                       // the I/O permission map follows: ring 3 may use ports below
    .skip 512                       // 0x1000
    .byte 0xff

    .global start_info
    .balign 8
start_info:
    .quad 0

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

    .section .bss.stacks, "aw", @nobits
    .balign 16
    .skip 0x1000
exception_stack_top:
    .skip 0x10000
task_stack_top:
    .text
"#,
    options(att_syntax)
);
