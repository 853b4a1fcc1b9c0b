//! A QEMU's monitor, and what is done differently by who owns it.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use hikkoshi_linux::Process;
use hikkoshi_wire::Domain;
use serde_json::json;

use super::listener::QmpListener;
use super::{Client, ConnectError, MonitorAddress, QmpError};

/// How long a QEMU may take to notice that the previous client has disconnected.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The monitor of a QEMU: its own socket ([`MonitorSocket`](super::MonitorSocket)), or one that
/// another program owns and lends.
///
/// A program that owns the monitor keeps a state of the guest, too. What would make that state
/// wrong, it does itself: [`resume`](Self::resume) and [`end`](Self::end).
pub trait Monitor: fmt::Debug + Send + Sync {
    /// Where it is.
    fn address(&self) -> &MonitorAddress;

    /// Opens a session, within `timeout` in total.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    fn open(&self, timeout: Duration) -> Result<Client, ConnectError>;

    /// Finds out which QEMU is behind it now. Sends QEMU nothing.
    ///
    /// # Errors
    ///
    /// That was not found out.
    fn listener(&self) -> io::Result<QmpListener>;

    /// How long to try to open a session again if that fails.
    fn reopen_timeout(&self) -> Duration {
        REOPEN_TIMEOUT
    }

    /// The guest is paused, and is to be resumed. Waits until its owner answers, or QEMU is reached
    /// without it, for a limited time: nothing else can resume the guest.
    ///
    /// # Errors
    ///
    /// Neither can be reached.
    fn wait_until_reachable(&self) -> Result<(), QmpError> {
        Ok(())
    }

    /// Lets the paused guest run. `client` is a session of this monitor.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    fn resume(&self, client: &mut Client) -> Result<(), QmpError> {
        client.execute("cont", json!({})).map(drop)
    }

    /// Ends QEMU, whose guest has moved away: asks for it, and does not wait. `client` is a session
    /// of this monitor, and `process` is QEMU's.
    ///
    /// If others can use the monitor ([`is_shared`](Self::is_shared)), QEMU must not write to the
    /// guest's images when it ends: an attempt to resume the guest may have given them back to it.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    fn end(&self, client: &mut Client, process: &Process) -> Result<(), QmpError> {
        let _ = process;
        client.execute("quit", json!({})).map(drop)
    }

    /// At the destination, where the guest has all of its pages: lets its owner do what it was
    /// asked for besides. Returns what was not done, with what to do about it, for people. Can be
    /// repeated.
    fn complete(&self) -> Option<String> {
        None
    }

    /// Removes what the owner still keeps of a guest that has moved away, if it was asked to. QEMU
    /// runs, or has ended. Can be repeated.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    fn forget(&self) -> Result<(), QmpError> {
        Ok(())
    }

    /// What the destination's daemon needs to create the guest's machine. `None`: the guest belongs
    /// to no daemon.
    ///
    /// # Errors
    ///
    /// The owner has not told it.
    fn domain(&self) -> Result<Option<Domain>, QmpError> {
        Ok(None)
    }

    /// Whether its owner lends it to other programs as well, which can do anything to the guest.
    fn is_shared(&self) -> bool {
        false
    }

    /// The guest is about to be moved. Watches from now on what its owner does to it, until this is
    /// dropped; does not wait.
    fn watch_owner(&self) {}

    /// The guest may belong to the destination from now on. Watches it, as
    /// [`watch_owner`](Self::watch_owner). It was `paused` at that time, or `None`: before another
    /// engine handed it over.
    fn handing_over(&self, paused: Option<SystemTime>) {
        let _ = paused;
    }

    /// The guest belongs to the source again: it may run here. Called before it is resumed, also if
    /// it runs already, or stays paused.
    fn taken_back(&self) {}

    /// Checks that nothing was done since then that makes the guest's memory here useless to the
    /// destination. Does not wait.
    ///
    /// # Errors
    ///
    /// What was done. Each such thing is reported once.
    fn check_handed_over(&self) -> Result<(), QmpError> {
        Ok(())
    }

    /// Why QEMU, whose process is ending, has ended, if the owner knows; waits for that for a
    /// moment.
    fn why_ended(&self) -> Option<String> {
        None
    }

    /// Checks that the guest's owner has done nothing to it since the move began that the
    /// destination does not know of. Called before the first round, right before the guest is
    /// paused, and when it is `paused`, since this time: then it must not wait for long, and the
    /// guest must not have been resumed or reset since. (What QEMU itself reports is checked
    /// elsewhere.)
    ///
    /// # Errors
    ///
    /// What was done.
    fn check_unchanged(&self, paused: Option<SystemTime>) -> Result<(), QmpError> {
        let _ = paused;
        Ok(())
    }
}
