//! Locks of an open file description, on one byte: `F_OFD_SETLK` (`fcntl(2)`).
//!
//! All descriptors of the description have the lock, also those in other processes. It ends with
//! the last of them.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::errno::check;

/// Takes the shared lock of this byte.
///
/// # Errors
///
/// Errors of `fcntl`: another description has the exclusive lock, or the file has no locks.
pub fn lock_byte_shared(file: impl AsFd, byte: u32) -> Result<(), Errno> {
    set(file, byte, libc::F_RDLCK)
}

/// Gives the lock of this byte back.
///
/// # Errors
///
/// Errors of `fcntl`.
pub fn unlock_byte(file: impl AsFd, byte: u32) -> Result<(), Errno> {
    set(file, byte, libc::F_UNLCK)
}

/// Whether another open file description has a lock on one of these bytes, shared or exclusive.
///
/// # Errors
///
/// Errors of `fcntl`: the file has no locks, for instance.
pub fn has_locked_byte(file: impl AsFd, bytes: Range<u32>) -> Result<bool, Errno> {
    let short = |number: i32| i16::try_from(number).map_err(|_| Errno::INVAL);
    // SAFETY: a structure of integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = short(libc::F_WRLCK)?;
    lock.l_whence = short(libc::SEEK_SET)?;
    lock.l_start = bytes.start.into();
    lock.l_len = bytes.len().try_into().map_err(|_| Errno::INVAL)?;
    let number = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open as long as it is borrowed. The kernel writes the structure,
    // which is borrowed exclusively.
    check(unsafe { libc::fcntl(number, libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn set(file: impl AsFd, byte: u32, kind: i32) -> Result<(), Errno> {
    let short = |number: i32| i16::try_from(number).map_err(|_| Errno::INVAL);
    // SAFETY: a structure of integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = short(kind)?;
    lock.l_whence = short(libc::SEEK_SET)?;
    lock.l_start = byte.into();
    lock.l_len = 1;
    let number = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open as long as it is borrowed. The kernel only reads the
    // structure.
    check(unsafe { libc::fcntl(number, libc::F_OFD_SETLK, &raw const lock) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    /// Whether another description can have this byte exclusively.
    fn is_free(path: &std::path::Path, byte: u32) -> bool {
        let other = File::options().read(true).write(true).open(path).unwrap();
        set(&other, byte, libc::F_WRLCK).is_ok()
    }

    #[test]
    fn a_lock_ends_with_the_last_descriptor() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = File::open(file.path()).unwrap();
        let second: OwnedFd = first.try_clone().unwrap().into();
        lock_byte_shared(&first, 7).unwrap();
        assert!(!is_free(file.path(), 7) && is_free(file.path(), 8));
        let other = File::open(file.path()).unwrap();
        assert!(has_locked_byte(&other, 0..8).unwrap());
        assert!(!has_locked_byte(&other, 8..100).unwrap());
        assert!(!has_locked_byte(&first, 0..8).unwrap(), "its own");
        drop(first);
        assert!(!is_free(file.path(), 7));
        unlock_byte(&second, 7).unwrap();
        assert!(is_free(file.path(), 7));
        lock_byte_shared(&second, 7).unwrap();
        drop(second);
        assert!(is_free(file.path(), 7));
    }
}
