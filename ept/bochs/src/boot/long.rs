//! Protected mode to long mode, then into the Rust program.
//!
//! Paging maps the first 4 GiB identically, with four 1 GiB leaves. The root page is at 0x1000, the
//! page of leaves at 0x2000. The Rust program keeps using these tables.

core::arch::global_asm!(
    r#"
    .section .boot.stage2, "ax"
    .code32
    .global protected_mode
protected_mode:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss

    movl $0x1000, %edi              // both table pages to zero
    xorl %eax, %eax
    movl $2048, %ecx
    rep stosl
    movl $0x2003, 0x1000            // root 0: the leaves; present, writable
    movl $0x00000083, 0x2000        // present, writable, page size: 1 GiB
    movl $0x40000083, 0x2008
    movl $0x80000083, 0x2010
    movl $0xc0000083, 0x2018

    movl $0x620, %eax               // PAE, and SSE for the compiler's code (OSFXSR, OSXMMEXCPT)
    movl %eax, %cr4
    movl $0x1000, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx          // IA32_EFER
    rdmsr
    orl $0x100, %eax                // LME
    wrmsr
    movl $0x80010033, %eax          // PG, WP, NE, ET, MP, PE; EM and TS clear, for SSE
    movl %eax, %cr0
    ljmpl $0x18, $long_mode

    .code64
long_mode:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %eax, %eax
    movw %ax, %fs
    movw %ax, %gs

    movl $bss_start, %edi
    movl $bss_end, %ecx
    subl %edi, %ecx
    rep stosb

    movl $boot_stack_top, %esp      // also clears the upper half
    xorl %ebp, %ebp
    call hypervisor
8:
    hlt
    jmp 8b

    .section .bss.stack, "aw", @nobits
    .balign 16
boot_stack:
    .skip 0x40000
boot_stack_top:
    .text
"#,
    options(att_syntax)
);
