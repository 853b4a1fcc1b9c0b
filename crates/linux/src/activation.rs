//! Sockets that a service manager has passed: the protocol of sd_listen_fds(3).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first descriptor (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// The most that are taken.
const MAX: RawFd = 16;

/// Whether they were taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The descriptors that were passed to this process: none if `LISTEN_PID` is not its number. Other
/// programs that it starts do not inherit them. The second call returns none.
///
/// # Errors
/// When the environment variables are invalid, or name descriptors that are not open.
pub fn activated_sockets() -> io::Result<Vec<OwnedFd>> {
    let variable = |name: &str| std::env::var(name).ok();
    let count = count(
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        std::process::id(),
    )?;
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    (FIRST..FIRST + count).map(take).collect()
}

/// The number of descriptors.
fn count(for_process: Option<&str>, count: Option<&str>, own: u32) -> io::Result<RawFd> {
    if for_process.and_then(|text| text.parse().ok()) != Some(own) {
        return Ok(0);
    }
    let count = count.and_then(|text| text.parse().ok());
    count
        .filter(|count| (0..=MAX).contains(count))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "LISTEN_FDS is not a number"))
}

fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only used for system calls that report an error if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = fcntl_getfd(borrowed)?;
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open. By the protocol it belongs to this process, from its start
    // on, and nothing else in it uses it; `TAKEN` makes this the only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(borrowed.as_raw_fd()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptors_for_this_process_are_taken() {
        assert_eq!(count(Some("7"), Some("1"), 7).unwrap(), 1);
        for (process, number) in [(None, Some("1")), (Some("8"), Some("1")), (Some("x"), None)] {
            assert_eq!(count(process, number, 7).unwrap(), 0);
        }
        for number in [None, Some("-1"), Some("17"), Some("x"), Some("")] {
            assert!(count(Some("7"), number, 7).is_err(), "{number:?}");
        }
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_an_error() {
        assert!(take(1_000_000).is_err());
    }
}
