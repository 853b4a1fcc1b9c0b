//! I/O ports, used in ring 3 (src/boot.rs allows it).

use core::arch::asm;

/// Writes one byte.
///
/// # Safety
/// A device may react in any way; the effect of the port must be known.
pub unsafe fn write(port: u16, byte: u8) {
    // SAFETY: an OUT accesses no memory and no flags; the caller guarantees the device's reaction.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack, preserves_flags));
    }
}

/// Writes 16 bits.
///
/// # Safety
/// The requirements of [`write`].
pub unsafe fn write_word(port: u16, word: u16) {
    // SAFETY: as in `write`.
    unsafe {
        asm!("out dx, ax", in("dx") port, in("ax") word, options(nomem, nostack, preserves_flags));
    }
}

/// Writes 32 bits.
///
/// # Safety
/// The requirements of [`write`].
pub unsafe fn write_double(port: u16, double: u32) {
    // SAFETY: as in `write`.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") double,
            options(nomem, nostack, preserves_flags));
    }
}

/// Reads one byte.
///
/// # Safety
/// The requirements of [`write`].
pub unsafe fn read(port: u16) -> u8 {
    let byte;
    // SAFETY: as in `write`.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") byte, options(nomem, nostack, preserves_flags));
    }
    byte
}

/// Reads 32 bits.
///
/// # Safety
/// The requirements of [`write`].
pub unsafe fn read_double(port: u16) -> u32 {
    let double;
    // SAFETY: as in `write`.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") double,
            options(nomem, nostack, preserves_flags));
    }
    double
}
