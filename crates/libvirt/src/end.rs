//! Ends a domain whose guest runs on another host, so that its QEMU does not write to the images.
//!
//! libvirt ends QEMU by `SIGTERM`, and by `SIGKILL` if it still exists 10 s later (9.0,
//! `virProcessKillPainfullyDelay`). QEMU closes its images at `SIGTERM`, and writes to those that
//! it has activated: the caches of qcow2, and persistent bitmaps. An image of a guest that was
//! handed over is not active. But a client may have tried to resume the guest: QEMU activates the
//! guest's images before it refuses (`disks/move_lock.rs` of the QEMU adapter).
//!
//! So QEMU must not handle `SIGTERM`: its process is stopped first, and the signal stays pending.
//! When it is, libvirt expects the end of the process and will report that the domain was
//! destroyed. Then `SIGKILL` ends it. (If that came first, libvirt would report a crash.)

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::{Errno, Process};
use virt::domain::Domain;

use crate::DomainError;
use crate::daemon::Daemon;
use crate::image_owners::ImageOwners;
use crate::monitor::own_socket;

/// How long the process may take to stop. Its threads may wait for storage.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to look whether libvirt has asked the process to end.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Lets libvirt destroy the domain `name`, whose QEMU is `process`. Succeeds if that has ended.
///
/// # Errors
///
/// [`DomainError::NotEnded`], or libvirt refuses to destroy it: then QEMU continues, its guest
/// paused. If the daemon hangs, QEMU ends without it, and libvirt reports a crash later.
pub(crate) fn destroy(daemon: &Daemon, name: &str, process: &Process) -> Result<(), DomainError> {
    let not_ended = |source| DomainError::NotEnded {
        name: name.to_owned(),
        pid: process.pid(),
        source,
    };
    // So that the process is not stopped while a daemon is awaited.
    let owners = ImageOwners::in_description(&daemon.xml(0)?);
    match stop(process) {
        Err(error) if is(&error, Errno::SRCH) => {}
        // It waits in the kernel, and might handle SIGTERM before it stops.
        Err(error) if is(&error, Errno::TIMEDOUT) => process.kill().map_err(not_ended)?,
        stopped => stopped.map_err(not_ended)?,
    }
    let over = AtomicBool::new(false);
    let destroyed = thread::scope(|scope| {
        let killer = thread::Builder::new().name("libvirt-kill".to_owned());
        let killer = killer.spawn_scoped(scope, || kill_when_asked(process, &over));
        let destroyed = match killer {
            Ok(_) => daemon.ask("to destroy it", Domain::destroy),
            Err(error) => Err(not_ended(error)),
        };
        over.store(true, Ordering::Release);
        destroyed
    });
    if destroyed.is_ok() {
        owners.restore();
    }
    if destroyed.is_ok() || !process.is_alive() {
        return Ok(());
    }
    // An answer was lost: libvirt has done what it was asked to, or will, as soon as its daemon
    // does not hang any more. The guest has moved with every page: nothing needs QEMU.
    if process.is_asked_to_end() || matches!(destroyed, Err(DomainError::NoAnswer { .. })) {
        return process.kill().map_err(not_ended);
    }
    process.continue_stopped().map_err(not_ended)?;
    destroyed
}

/// Stops the process when QEMU has read everything that libvirt has sent to its monitor: libvirt
/// would report an error of the monitor (`control-error`) otherwise, because a socket whose other
/// end is closed before all was read is reset.
fn stop(process: &Process) -> io::Result<()> {
    let deadline = Instant::now() + STOP_TIMEOUT;
    loop {
        process.stop(STOP_TIMEOUT)?;
        if !own_socket::has_unread(process) || Instant::now() > deadline {
            return Ok(());
        }
        process.continue_stopped()?;
        thread::sleep(POLL_INTERVAL);
    }
}

/// Kills the stopped process as soon as libvirt has asked it to end, unless that is `over` before.
fn kill_when_asked(process: &Process, over: &AtomicBool) {
    while process.is_alive() && !over.load(Ordering::Acquire) {
        if process.is_asked_to_end() {
            if let Err(error) = process.kill() {
                tracing::warn!(%error, "ending QEMU by SIGKILL; libvirt does it in 10 s");
            }
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}
