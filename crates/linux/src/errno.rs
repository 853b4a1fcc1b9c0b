//! Converts results of libc functions to [`Errno`].

use rustix::io::Errno;

/// Returns the calling thread's `errno`.
#[must_use]
pub fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Converts a libc result of -1 to the current `errno`.
pub(crate) fn check(result: impl Into<i64>) -> Result<(), Errno> {
    if result.into() == -1 {
        Err(last_errno())
    } else {
        Ok(())
    }
}
