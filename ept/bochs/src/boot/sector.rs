//! The boot sector. The BIOS loads these 512 bytes at 0x7c00 and jumps there in real mode. The code
//! reads the rest of the image to the address right after itself and jumps to it.
//!
//! It uses the BIOS's extended read (int 13h, AH=42h), which takes a block number, in pieces of 64
//! sectors: BIOSes refuse more than 127 at once, and 32 KiB never cross the end of the segment they
//! start in.

core::arch::global_asm!(
    r#"
    .section .boot.sector, "ax"
    .code16
    .global boot_sector
boot_sector:
    cli
    cld
    ljmp $0, $1f                    // some BIOSes come with 0x7c0:0
1:
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw $0x7c00, %sp               // grows down from the sector
    movb %dl, boot_drive            // the BIOS's name for the disk we came from

    movw $load_sectors, %bp         // still to read
2:
    movw $64, %ax
    cmpw %ax, %bp
    jae 3f
    movw %bp, %ax
3:
    testw %ax, %ax
    jz 4f
    movw %ax, packet_count
    movb $0x42, %ah
    movb boot_drive, %dl
    movw $packet, %si
    int $0x13
    jc 5f
    movw packet_count, %ax
    subw %ax, %bp
    addw %ax, packet_block
    shlw $5, %ax                    // sectors to paragraphs of 16 bytes
    addw %ax, packet_segment
    jmp 2b
4:
    jmp stage2

5:                                  // the disk could not be read: say so on the port and stop
    movw $read_failed, %si
6:
    lodsb
    testb %al, %al
    jz 7f
    outb %al, $0xe9
    jmp 6b
7:
    hlt
    jmp 7b

read_failed:
    .asciz "hypervisor: the boot sector could not read the disk\n"
boot_drive:
    .byte 0
    .balign 4
packet:                             // the BIOS's disk address packet
    .byte 16, 0
packet_count:
    .word 0
    .word 0                         // offset
packet_segment:
    .word 0x7e0                     // 0x7e00, right behind this sector
packet_block:
    .quad 1

    .org boot_sector + 510
    .word 0xaa55
    .code64
    .text
"#,
    options(att_syntax)
);
