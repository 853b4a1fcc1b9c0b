//! Real mode to 32-bit protected mode.

core::arch::global_asm!(
    r#"
    .section .boot.stage2, "ax"
    .code16
    .global stage2
stage2:
    inb $0x92, %al                  // address line 20, by the fast gate; bit 0 would be a reset
    orb $2, %al
    andb $0xfe, %al
    outb %al, $0x92

    lgdtl boot_gdt_pointer
    movl %cr0, %eax
    orl $1, %eax                    // PE
    movl %eax, %cr0
    ljmpl $0x08, $protected_mode

    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff        // 0x08: code, 32 bits, flat
    .quad 0x00cf93000000ffff        // 0x10: data, flat
    .quad 0x00af9b000000ffff        // 0x18: code, 64 bits
boot_gdt_pointer:
    .word . - boot_gdt - 1
    .long boot_gdt
    .code64
    .text
"#,
    options(att_syntax)
);
