//! Resumes the guest at the destination.

use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use serde_json::json;

use super::piped::{NotRun, PipedError};
use super::{QemuDestination, RunError};
use crate::network::{Announcer, NetworkError, rx_filter};
use crate::qmp::migration_status;
use crate::qmp::reconnect::{self, ConnectTimeouts, NO_TIMEOUT};
use crate::qmp::{COMMAND_TIMEOUT, Client, QmpError};

/// How long to try to connect before resuming, if the connection fails. A QEMU that
/// does not answer has no timeout, because it may wait for a page: then only the
/// caller cancels.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for the event `RESUME` after `cont` was accepted.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

impl QemuDestination {
    /// Resumes the guest if it was `running` at the source.
    pub(super) fn run(&mut self, running: bool, give_up: &CancelFlag) -> Result<Instant, RunError> {
        if !self.loaded {
            return Err(RunError::NotLoaded);
        }
        if self.piped.is_some() {
            return self.run_piped(running, give_up);
        }
        if !running {
            return Ok(Instant::now());
        }
        self.stop_listening();
        let timeouts = ConnectTimeouts {
            failing: CONNECT_TIMEOUT,
            silent: NO_TIMEOUT,
        };
        let (monitor, process) = (&*self.monitor, &self.process);
        let client =
            reconnect::get_or_connect(&mut self.client, monitor, process, timeouts, give_up)?;
        client.set_cancel(Some(give_up.clone()));
        client.set_timeout(NO_TIMEOUT);
        if self.announcer.is_none() {
            self.announcer = open_announcer(client, &self.process);
        }
        let outcome = run(client, self.reattached, self.announcer.as_mut());
        client.set_timeout(COMMAND_TIMEOUT);
        // After reattaching it is not known whether the guest has run before.
        let never_ran = !self.reattached && is_refused(&outcome) && has_never_run(client);
        client.set_cancel(None);
        let outcome = match outcome {
            Err(RunError::Qmp(source)) if never_ran => Err(self.decline(source)),
            outcome => outcome,
        };
        let at = outcome?;
        self.announce_self = true;
        Ok(at)
    }

    /// Completes the stream, after which the machine's owner runs the guest, or leaves it paused.
    fn run_piped(&mut self, running: bool, give_up: &CancelFlag) -> Result<Instant, RunError> {
        let Some(piped) = &mut self.piped else {
            return Err(RunError::NotLoaded);
        };
        let ended = if running == self.identity.description.running {
            piped.end(give_up)
        } else {
            Err(PipedError::StateChanged { running })
        };
        if ended.is_ok()
            && running
            && let Some(announcer) = &mut self.announcer
        {
            announcer.announce(None);
        }
        match ended {
            Ok(at) => {
                piped.remove();
                self.piped = None;
                self.reattach_info.change(|info| info.pipe = None);
                self.announce_self = running;
                Ok(at)
            }
            Err(source) => {
                self.never_ran = self.is_kept_from_running(&source);
                Err(RunError::Piped {
                    pid: self.process.pid(),
                    source,
                })
            }
        }
    }

    /// Whether it is certain that the guest has never run. QEMU is ended then, so that the guest
    /// can resume at its source.
    fn is_kept_from_running(&self, error: &PipedError) -> bool {
        let is_certain = match error {
            PipedError::NotRun(NotRun { never_ran, .. }) => *never_ran,
            // After reattaching, another program may have ended it. If this one was cancelled,
            // another one continues.
            PipedError::NotEnded(source) => {
                !self.reattached && !matches!(**source, PipedError::Cancelled { .. })
            }
            PipedError::StateChanged { .. } => true,
            _ => false,
        };
        // The owner may have ended it.
        is_certain && (!self.process.is_alive() || self.process.kill().is_ok())
    }

    /// Stops the listener and takes the monitor back from it.
    pub(super) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.client = listener.stop();
        }
    }

    /// Ends a QEMU that refused to run the guest, which has never run here, so that it
    /// can resume at its source. `cont` locks the images one after the other, and
    /// after a failure QEMU keeps those that it locked before (7.2 and 10.0). They are
    /// released when it ends. This QEMU cannot be used for anything else.
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

/// Opens what announces the guest. A failure is only logged, because the guest's own packets have
/// the same effect.
pub(super) fn open_announcer(client: &mut Client, process: &Process) -> Option<Announcer> {
    opened(Announcer::open(client, process))
}

pub(super) fn opened(announcer: Result<Announcer, NetworkError>) -> Option<Announcer> {
    announcer
        .inspect_err(|error| {
            tracing::debug!(error = %Report::new(error), "opening the tap devices for announcements");
        })
        .ok()
}

/// Resumes the guest, and announces it to its networks. `reattached`: it may run already. The
/// client's timeout applies: QEMU opens storage, and may wait for missing pages.
fn run(
    client: &mut Client,
    reattached: bool,
    announcer: Option<&mut Announcer>,
) -> Result<Instant, RunError> {
    let asked = Instant::now();
    if reattached && migration_status::run_state(client)?.running {
        // Without asking for more addresses: the first engine has most likely announced them.
        if let Some(announcer) = announcer {
            announcer.announce(None);
        }
        return Ok(asked);
    }
    let announcer = announcer.filter(|announcer| announcer.has_cards());
    let filters = match announcer {
        // Together, because an answer takes long when the guest runs and lacks pages.
        Some(_) => {
            let commands = [rx_filter::QUERY, "cont"].map(|command| (command, json!({})));
            let [filters, cont] = client.submit(commands)?;
            let filters = client.answer(&filters);
            client.answer(&cont)?;
            filters
                .inspect_err(|error| {
                    tracing::warn!(error = %Report::new(error), "querying the addresses of the guest's network cards");
                })
                .ok()
        }
        None => {
            client.execute("cont", json!({}))?;
            None
        }
    };
    let until = Instant::now() + RESUME_TIMEOUT;
    let resumed = client.wait_event("the guest to run", until, |event| {
        (event.name == "RESUME").then_some(event.at)
    });
    let at = match resumed? {
        Some(at) => at.max(asked),
        None => {
            let state = migration_status::run_state(client)?;
            if !state.running {
                return Err(RunError::Stopped {
                    state: state.status,
                });
            }
            Instant::now()
        }
    };
    if let Some(announcer) = announcer {
        announcer.announce(filters.as_ref());
    }
    Ok(at)
}

fn is_refused(outcome: &Result<Instant, RunError>) -> bool {
    matches!(outcome, Err(RunError::Qmp(error)) if error.is_refusal())
}

/// Whether the guest has never run since this program loaded it, after QEMU refused to
/// run it (usually because of its storage).
fn has_never_run(client: &mut Client) -> bool {
    let state = migration_status::run_state(client);
    // No other program has resumed it either: events come before answers.
    let resumed = client.has_event("RESUME");
    tracing::debug!(?state, resumed, "after QEMU refused to run the guest");
    !resumed && state.is_ok_and(|state| !state.running)
}

#[cfg(test)]
mod tests {
    use hikkoshi_network_frames::TunQueue;
    use std::fs::File;

    use super::*;
    use crate::qmp::scripted;

    /// The main loop of such a QEMU waits for a page.
    #[test]
    fn a_qemu_that_answers_nothing_more_once_the_guest_runs_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let mut runs = false;
        let server = scripted::serve(&path, 10, move |request| {
            if runs {
                return Vec::new();
            }
            let mut answers = vec![scripted::answered(request, Ok(json!({})))];
            runs = scripted::command(request) == "cont";
            if runs {
                let timestamp = json!({ "seconds": 1, "microseconds": 2 });
                answers.push(json!({ "event": "RESUME", "timestamp": timestamp }));
            }
            answers
        });
        let mut client = Client::connect(&path, Duration::from_secs(20)).unwrap();
        client.set_timeout(NO_TIMEOUT);
        // Not a tap device: announcing there fails, which is only logged.
        let queue = TunQueue::new(File::open("/dev/null").unwrap().into());
        let mut announcer = Announcer::with_card(queue);
        run(&mut client, false, Some(&mut announcer)).unwrap();
        drop(client);
        let got = server.join().unwrap();
        let got: Vec<_> = got.iter().map(scripted::command).collect();
        assert_eq!(got, ["query-rx-filter", "cont"]);
    }
}
