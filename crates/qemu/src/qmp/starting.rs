//! A QEMU that is being started should get no connection to its QMP socket before it can serve it.
//!
//! At first QEMU's main thread waits for clients. Then its monitor thread takes the socket over. If
//! a client connects in between, both threads accept the one connection, and the thread that gets
//! none waits in `accept4(2)`, because the socket blocks. If that is the main thread, it holds the
//! lock of all devices: QEMU greets, and never answers. (Seen once with QEMU 10.0.2, on a busy
//! machine; with 7.2 as well if both threads are delayed, `tests/qemu/starting.rs`.)

use std::fs;
use std::path::Path;
use std::time::Duration;

use hikkoshi_linux::{serving_process, wait_until_idle};

/// The age from which a socket is connected to in any case. (A QEMU that allocates much memory at
/// its start can take longer.)
const STARTED: Duration = Duration::from_secs(10);

/// If the socket at `path` is new, waits until the QEMU that serves it waits, too: for clients and
/// for a guest. Waits until the socket is 10 s old at most, and not for a QEMU that is not visible
/// from here, or that was given its path in another form.
pub fn wait_until_started(path: &Path) {
    let made = fs::metadata(path).and_then(|file| file.created().or(file.modified()));
    // The clock may have been set.
    let Some(age) = made.ok().and_then(|at| at.elapsed().ok()) else {
        return;
    };
    let rest = STARTED.saturating_sub(age);
    if !rest.is_zero()
        && let Some(pid) = serving_process(path)
        && !wait_until_idle(pid, rest)
    {
        tracing::warn!(pid, path = %path.display(), "QEMU was not seen to wait; connecting to it");
    }
}
