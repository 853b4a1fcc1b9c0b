//! A thread that listens for the guest's shutdown while pages are missing.
//!
//! Before that it makes QEMU announce the guest, and asks whether the guest has shut down already:
//! QEMU may answer late, because its main loop may wait for a page.
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
use crate::qmp::{self, COMMAND_TIMEOUT, Client, Monitor, QmpError, QmpEvent, migration_status};

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
    state: Arc<State>,
}

/// What QEMU is asked before its events are read.
#[derive(Debug, Default)]
pub(crate) struct FirstRequests {
    /// To announce the guest, with its owner's parameters for that.
    pub(crate) announce: Option<Map<String, Value>>,
    /// Whether the guest has shut down already.
    pub(crate) run_state: bool,
}

/// Whether the guest has shut down, by what QEMU has reported.
#[derive(Debug)]
struct State {
    /// It was not to be asked, or has answered.
    is_known: AtomicBool,
    shut_down: AtomicBool,
}

impl ShutdownListener {
    /// Starts listening, with this monitor or a new connection. QEMU may wait for a page
    /// and answer later.
    pub(crate) fn start(
        client: Option<Client>,
        monitor: Arc<dyn Monitor>,
        process: Arc<Process>,
        first: FirstRequests,
    ) -> io::Result<Self> {
        let stop = CancelFlag::new();
        let state = Arc::new(State {
            is_known: AtomicBool::new(!first.run_state),
            shut_down: AtomicBool::new(false),
        });
        let (stopped, seen) = (stop.clone(), Arc::clone(&state));
        let thread = thread::Builder::new()
            .name("qemu-events".to_owned())
            .spawn(move || {
                let mut client = connect(client, &*monitor, &process, &stopped)?;
                // Not cancelled: it is soon over, or times out.
                if let Some(parameters) = first.announce {
                    announce_self::announce_with(&mut client, &parameters);
                }
                client.set_cancel(Some(stopped));
                if first.run_state {
                    query(&mut client, &seen)?;
                }
                listen(client, &seen)
            })?;
        Ok(Self {
            thread: Some(thread),
            stop,
            state,
        })
    }

    /// Stops listening, and returns the monitor if there is one.
    pub(crate) fn stop(mut self) -> Option<Client> {
        self.join()
    }

    /// Whether the guest has shut down. `None`: QEMU has not answered by now, nor within `limit`.
    pub(crate) fn is_shut_down(&self, limit: Duration) -> Option<bool> {
        let is_known = || self.state.is_known.load(Ordering::Acquire);
        self.wait(limit, is_known);
        is_known().then(|| self.state.shut_down.load(Ordering::Acquire))
    }

    /// Whether a QEMU that has ended did so because its guest shut down.
    pub(crate) fn has_shut_down(&self) -> bool {
        self.wait(DRAIN_TIMEOUT, || false);
        self.state.shut_down.load(Ordering::Acquire)
    }

    /// Waits until `done`, or the end of the thread, but no longer than `limit`.
    fn wait(&self, limit: Duration, done: impl Fn() -> bool) {
        let deadline = Instant::now() + limit;
        let reads = |thread: &JoinHandle<_>| !thread.is_finished();
        while !done() && self.thread.as_ref().is_some_and(reads) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
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

/// Asks whether the guest has shut down. `None`: QEMU has not answered, and the connection is of no
/// more use.
fn query(client: &mut Client, state: &State) -> Option<()> {
    client.set_timeout(NO_TIMEOUT);
    let found = migration_status::run_state(client).inspect_err(|error| {
        tracing::warn!(error = %Report::new(error), "querying whether the guest has shut down");
    });
    client.set_timeout(COMMAND_TIMEOUT);
    let has_shut_down = found.ok()?.status == "shutdown";
    state.shut_down.store(has_shut_down, Ordering::Release);
    state.is_known.store(true, Ordering::Release);
    Some(())
}

fn listen(mut client: Client, state: &State) -> Option<Client> {
    loop {
        let deadline = Instant::now() + NO_TIMEOUT;
        match client.wait_event("the guest's shutdown", deadline, guest_asked_for_end) {
            Ok(Some(guest_asked_for_end)) => {
                state
                    .shut_down
                    .store(guest_asked_for_end, Ordering::Release);
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
    use crate::qmp::{MonitorSocket, scripted};
    use serde_json::json;

    const LONG: Duration = Duration::from_secs(60);

    /// Asks a QEMU that answers so to `query-status`, if it does.
    fn asked(answer: Option<&'static str>) -> ShutdownListener {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        scripted::serve(&path, 10, move |request| {
            let returned = match (scripted::command(request), answer) {
                ("query-status", None) => return Vec::new(),
                ("query-status", Some(status)) => {
                    json!({ "status": status, "running": status == "running" })
                }
                _ => json!({}),
            };
            vec![scripted::answered(request, Ok(returned))]
        });
        let client = Client::connect(&path, LONG).unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let first = FirstRequests {
            announce: None,
            run_state: true,
        };
        let monitor = Arc::new(MonitorSocket::new(&path));
        ShutdownListener::start(Some(client), monitor, Arc::new(own), first).unwrap()
    }

    /// One whose main loop hangs is not waited for, and nothing is claimed about its guest.
    #[test]
    fn a_guest_that_has_shut_down_before_is_known_if_qemu_answers() {
        assert_eq!(asked(Some("shutdown")).is_shut_down(LONG), Some(true));
        assert_eq!(asked(Some("running")).is_shut_down(LONG), Some(false));
        let silent = asked(None);
        assert_eq!(silent.is_shut_down(Duration::from_millis(50)), None);
    }

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
