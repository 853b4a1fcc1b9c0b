//! A thread that listens for the guest's shutdown while pages are missing.
//!
//! Before that it makes QEMU announce the guest, because QEMU may answer late: its main loop may
//! wait for a page.
//!
//! A guest that powers off ends its QEMU (unless that was started with
//! `-no-shutdown`). From outside this looks like a killed QEMU; only the event
//! `SHUTDOWN` shows the difference. QEMU sends it before it exits, and it can still be
//! read afterwards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use serde_json::{Map, Value};

use crate::qmp::announce_self;
use crate::qmp::reconnect::{ConnectTimeouts, NO_TIMEOUT};
use crate::qmp::{self, Client, Monitor, QmpError, QmpEvent};

/// The longest time for reading the last events of a QEMU that has ended. They are
/// already in the socket.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two checks of the thread.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A thread that reads QEMU's events. Stops when dropped.
#[derive(Debug)]
pub(crate) struct ShutdownListener {
    thread: Option<JoinHandle<Option<Client>>>,
    stop: CancelFlag,
    shut_down: Arc<AtomicBool>,
}

impl ShutdownListener {
    /// Starts listening, with this monitor or a new connection. QEMU may wait for a page
    /// and answer later. First makes QEMU announce the guest, if its owner's parameters
    /// for that are given.
    pub(crate) fn start(
        client: Option<Client>,
        monitor: Arc<dyn Monitor>,
        process: Arc<Process>,
        announce: Option<Map<String, Value>>,
    ) -> io::Result<Self> {
        let stop = CancelFlag::new();
        let shut_down = Arc::new(AtomicBool::new(false));
        let (stopped, seen) = (stop.clone(), Arc::clone(&shut_down));
        let thread = thread::Builder::new()
            .name("qemu-events".to_owned())
            .spawn(move || {
                let mut client = connect(client, &*monitor, &process, &stopped)?;
                // Not cancelled: it is soon over, or times out.
                if let Some(parameters) = announce {
                    announce_self::announce_with(&mut client, &parameters);
                }
                listen(client, &stopped, &seen)
            })?;
        Ok(Self {
            thread: Some(thread),
            stop,
            shut_down,
        })
    }

    /// Stops listening, and returns the monitor if there is one.
    pub(crate) fn stop(mut self) -> Option<Client> {
        self.join()
    }

    /// Whether the guest has shut down, as far as QEMU has reported it by now.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Whether a QEMU that has ended did so because its guest shut down.
    pub(crate) fn has_shut_down(&self) -> bool {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let reads = |thread: &JoinHandle<_>| !thread.is_finished();
        while self.thread.as_ref().is_some_and(reads) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        self.is_shut_down()
    }

    fn join(&mut self) -> Option<Client> {
        self.stop.cancel();
        // The panic hook has reported a panic; a new connection is possible.
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for ShutdownListener {
    fn drop(&mut self) {
        self.join();
    }
}

fn connect(
    client: Option<Client>,
    monitor: &dyn Monitor,
    process: &Process,
    stop: &CancelFlag,
) -> Option<Client> {
    let mut slot = client;
    let timeouts = ConnectTimeouts {
        failing: NO_TIMEOUT,
        silent: NO_TIMEOUT,
    };
    if let Err(error) = qmp::reconnect::get_or_connect(&mut slot, monitor, process, timeouts, stop)
    {
        tracing::debug!(error = %Report::new(&error), "not listening to QEMU's events");
    }
    slot
}

fn listen(mut client: Client, stop: &CancelFlag, shut_down: &AtomicBool) -> Option<Client> {
    client.set_cancel(Some(stop.clone()));
    loop {
        let deadline = Instant::now() + NO_TIMEOUT;
        match client.wait_event("the guest's shutdown", deadline, guest_asked_for_end) {
            Ok(Some(guest_asked_for_end)) => {
                shut_down.store(guest_asked_for_end, Ordering::Release)
            }
            Ok(None) => {}
            Err(QmpError::Cancelled { .. }) => {
                client.set_cancel(None);
                return Some(client);
            }
            Err(error) => {
                tracing::debug!(error = %Report::new(&error), "no more events from QEMU");
                return None;
            }
        }
    }
}

/// Whether this event shows that the guest ends QEMU: it has powered off, or reboots
/// although that ends QEMU (`-no-reboot`). A later `quit`, as management software sends
/// to a QEMU with `-no-shutdown`, does not change this. Resuming the guest does.
fn guest_asked_for_end(event: &QmpEvent) -> Option<bool> {
    match event.name.as_str() {
        "SHUTDOWN" => {
            (event.data.get("guest").and_then(Value::as_bool) == Some(true)).then_some(true)
        }
        "RESUME" | "RESET" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(name: &str, data: Value) -> QmpEvent {
        QmpEvent {
            name: name.to_owned(),
            data,
            at: Instant::now(),
        }
    }

    #[test]
    fn only_a_shutdown_by_the_guest_counts() {
        let guest = json!({ "guest": true, "reason": "guest-shutdown" });
        assert_eq!(guest_asked_for_end(&event("SHUTDOWN", guest)), Some(true));
        let host = json!({ "guest": false, "reason": "host-qmp-quit" });
        assert_eq!(guest_asked_for_end(&event("SHUTDOWN", host)), None);
        assert_eq!(guest_asked_for_end(&event("SHUTDOWN", Value::Null)), None);
        assert_eq!(guest_asked_for_end(&event("STOP", Value::Null)), None);
        assert_eq!(
            guest_asked_for_end(&event("RESUME", Value::Null)),
            Some(false)
        );
    }
}
