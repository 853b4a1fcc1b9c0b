//! The memory functions that the compiler expects from a C library, for programs without one.
//!
//! They use string instructions: the compiler could recognise a loop in Rust as a copy and turn it
//! into a call of the function itself.
#![no_std]
#![allow(unsafe_code)] // raw memory

use core::arch::asm;

/// C's `memcpy`.
///
/// # Safety
///
/// As C's: both valid for `length` bytes, not overlapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller passes two valid regions; the ABI guarantees that the direction flag is
    // clear.
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
        // SAFETY: copying upwards overwrites nothing that has not been read yet.
        return unsafe { memcpy(to, from, length) };
    }
    // SAFETY: `to` is inside the source, so the copy starts at the end; the flag is cleared again.
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
    // SAFETY: the caller passes a valid region; AL is the low byte of EAX.
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
        // SAFETY: `at` is inside both regions. Volatile, so that this stays a loop.
        let (a, b) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
        at += 1;
    }
    0
}

/// C's `bcmp`: zero if the regions are equal.
///
/// # Safety
///
/// The requirements of [`memcmp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    // SAFETY: the caller guarantees the same.
    unsafe { memcmp(left, right, length) }
}
