//! Run.

use std::time::{Duration, Instant};

use hikkoshi_engine::Cancel;
use serde_json::json;

use super::{QemuDestination, RunError};
use crate::qmp::announce;
use crate::qmp::migration;
use crate::qmp::monitor::{self, ConnectTimeouts, NO_TIMEOUT, connected};
use crate::qmp::{COMMAND_TIMEOUT, Client, QmpError};

/// How long to try to get through to a QEMU whose socket is not as it should be,
/// before it is made to run. One that just says nothing is waited for as long as
/// anybody wants it to run: it may wait for a page itself.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for `RESUME` once `cont` has been accepted.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

impl QemuDestination {
    pub(super) fn run(&mut self, running: bool, give_up: &Cancel) -> Result<Instant, RunError> {
        if !self.loaded {
            return Err(RunError::NotLoaded);
        }
        if !running {
            return Ok(Instant::now());
        }
        self.stop_listening();
        let timeouts = ConnectTimeouts {
            failing: CONNECT_TIMEOUT,
            silent: NO_TIMEOUT,
        };
        let (qmp, process) = (&self.identity.qmp, &self.process);
        let client = monitor::get_or_connect(&mut self.client, qmp, process, timeouts, give_up)?;
        client.set_cancel(Some(give_up.clone()));
        client.set_timeout(NO_TIMEOUT);
        let outcome = run(client, self.reattached);
        client.set_timeout(COMMAND_TIMEOUT);
        // Of one that was taken up nobody knows what it did before.
        let never_ran = !self.reattached && is_refused(&outcome) && has_never_run(client);
        client.set_cancel(None);
        let outcome = match outcome {
            Err(RunError::Qmp(source)) if never_ran => Err(self.decline(source)),
            outcome => outcome,
        };
        let at = outcome?;
        let client = connected(&mut self.client)?;
        announce::announce_with(client, &self.settings.parameters);
        Ok(at)
    }

    /// QEMU has one monitor for us: it is taken back from who listens to it.
    pub(super) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.client = listener.stop();
        }
    }

    /// QEMU has refused to run the guest, which has never run here: its source can
    /// have it back. `cont` takes the images one after the other, and QEMU keeps
    /// those that it took before one failed (7.2 and 10.0): they are free once it
    /// is gone. It is of no use any more, with a guest that is not to run in it.
    fn decline(&mut self, source: QmpError) -> RunError {
        let pid = self.process.pid();
        match self.process.kill() {
            Ok(()) => {
                self.never_ran = true;
                RunError::Refused { pid, source }
            }
            Err(kill) => RunError::NotEnded { pid, source, kill },
        }
    }
}

/// Makes the guest run; `reattached`: it may run already. As long as the client
/// waits: storage is opened, and pages may be missing.
fn run(client: &mut Client, reattached: bool) -> Result<Instant, RunError> {
    let asked = Instant::now();
    if reattached && migration::run_state(client)?.running {
        return Ok(asked);
    }
    client.execute("cont", json!({}))?;
    let until = Instant::now() + RESUME_TIMEOUT;
    let resumed = client.wait_event("the guest to run", until, |event| {
        (event.name == "RESUME").then_some(event.at)
    });
    match resumed? {
        Some(at) => Ok(at.max(asked)),
        None => {
            let state = migration::run_state(client)?;
            if !state.running {
                return Err(RunError::Stopped {
                    state: state.status,
                });
            }
            Ok(Instant::now())
        }
    }
}

fn is_refused(outcome: &Result<Instant, RunError>) -> bool {
    matches!(outcome, Err(RunError::Qmp(error)) if error.is_refusal())
}

/// Whether a guest that this program has loaded, and that QEMU has just refused
/// to run (its storage, mostly), stands as it was loaded.
fn has_never_run(client: &mut Client) -> bool {
    let state = migration::run_state(client);
    // Nobody else has run it meanwhile, either: events come before answers.
    let resumed = client.has_event("RESUME");
    tracing::debug!(?state, resumed, "after QEMU has refused to run the guest");
    !resumed && state.is_ok_and(|state| !state.running)
}
