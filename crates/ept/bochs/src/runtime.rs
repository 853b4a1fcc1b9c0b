//! What the compiler expects of a C library: the memory functions, and what ends a panic.
//!
//! The memory functions are string instructions: a loop in Rust could be recognised by the compiler
//! as a copy, and be made a call of itself.

use core::arch::asm;

/// C's `memcpy`.
///
/// # Safety
///
/// As C's: both valid for `length` bytes, not overlapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller gives two valid regions; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") length => _,
            options(nostack, preserves_flags));
    }
    to
}

/// C's `memmove`.
///
/// # Safety
///
/// As C's: both valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= length {
        // SAFETY: copying upwards overwrites nothing that is still to be read.
        return unsafe { memcpy(to, from, length) };
    }
    // SAFETY: `to` lies inside the source, so it is copied from the end; the flag is put back.
    unsafe {
        asm!("std", "rep movsb", "cld",
            inout("rdi") to.wrapping_add(length).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(length).wrapping_sub(1) => _,
            inout("rcx") length => _, options(nostack));
    }
    to
}

/// C's `memset`.
///
/// # Safety
///
/// As C's: `to` valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    // SAFETY: the caller gives a valid region; AL is the low byte of EAX.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, inout("rcx") length => _, in("eax") byte,
            options(nostack, preserves_flags));
    }
    to
}

/// C's `memcmp`.
///
/// # Safety
///
/// As C's: both valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    let mut at = 0;
    while at < length {
        // SAFETY: `at` is inside both regions. Volatile: so that this stays a loop.
        let (a, b) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
        at += 1;
    }
    0
}

/// C's `bcmp`, of which only the zero matters.
///
/// # Safety
///
/// As [`memcmp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { memcmp(left, right, length) }
}

/// Named by the installed `core`'s unwind tables, which are not linked; never called.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() -> ! {
    crate::fail("something tried to unwind")
}

/// Likewise.
#[unsafe(no_mangle)]
pub extern "C" fn _Unwind_Resume() -> ! {
    crate::fail("something tried to unwind")
}

#[panic_handler]
fn panicked(information: &core::panic::PanicInfo<'_>) -> ! {
    crate::fail(format_args!("{information}"))
}
