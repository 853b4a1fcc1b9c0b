//! A VM whose process ends.

use std::thread;
use std::time::{Duration, Instant};

use crate::guest::SourceGuest;
use crate::guest_error::GuestError;

/// How long a process may take to end after operations on its memory, or its monitor, have failed.
const ENDING: Duration = Duration::from_millis(200);

/// Whether a process `has_ended`, or ends now: operations on its memory fail already while its
/// threads exit, and those on its monitor before.
pub(crate) fn ends_now(has_ended: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !has_ended() {
        if since.elapsed() >= ENDING {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Whether the guest's process has ended. One that cannot be resumed may be ending.
pub(crate) fn has_ended_after(guest: &dyn SourceGuest, resumed: &Result<(), GuestError>) -> bool {
    match resumed {
        Ok(()) => guest.has_ended(),
        Err(_) => ends_now(|| guest.has_ended()),
    }
}
