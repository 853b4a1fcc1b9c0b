//! Ends the source's QEMU after its guest has moved (`--quit-source`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_linux::Process;
use thiserror::Error;

use super::QemuSource;
use crate::process::image_locks::has_image_locks;
use crate::qmp::{Client, ConnectError, Monitor, QmpError, migration_status};

/// How long QEMU may take to end: it flushes its disks first.
const QUIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How often to look.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The source's QEMU was not ended.
#[derive(Debug, Error)]
pub enum QuitError {
    /// Its monitor could not be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A command failed.
    #[error("ending the source's QEMU")]
    Qmp(#[from] QmpError),
    /// Its guest runs.
    #[error("ending the source's QEMU: its guest runs (state {state}), so it was left alone")]
    Runs {
        /// QEMU's name for the state.
        state: String,
    },
    /// It may still hold the guest's images.
    #[error(
        "ending the source's QEMU: it could not release the guest's disks, which the destination \
         uses now, and 'quit' may write to them (end process {pid} by the signal SIGKILL)"
    )]
    HoldsImages {
        /// Its process.
        pid: u32,
    },
    /// The signal was not sent.
    #[error(
        "ending the source's QEMU (process {pid}) by a signal (by hand: 'kill -KILL {pid}', because \
         QEMU may write to the guest's images at another signal)"
    )]
    Kill {
        /// Its process.
        pid: u32,
        /// Why.
        source: std::io::Error,
    },
    /// It does not end.
    #[error(
        "process {pid} of the source's QEMU has not ended {} s after it was asked to",
        .timeout.as_secs()
    )]
    StillRunning {
        /// Its number.
        pid: u32,
        /// How long it was waited for.
        timeout: Duration,
    },
}

impl QemuSource {
    /// Ends QEMU, whose guest has moved away with every page. Succeeds if it has ended already.
    ///
    /// # Errors
    ///
    /// See [`QuitError`]. A QEMU whose guest runs is left alone.
    pub fn quit(&mut self) -> Result<(), QuitError> {
        if !self.qemu.process.is_alive() {
            return Ok(());
        }
        // Otherwise `Monitor::end` lets QEMU write to none.
        if self.holds_images && !self.monitor.is_shared() {
            return Err(QuitError::HoldsImages { pid: self.pid() });
        }
        let process = Arc::clone(&self.qemu.process);
        if self.monitor.is_shared() && is_ending(&process) {
            process.kill().map_err(|source| QuitError::Kill {
                pid: process.pid(),
                source,
            })?;
            self.detached = true;
            return wait_for_end(&process, QUIT_TIMEOUT);
        }
        // Somebody has tried to run the guest here: QEMU has activated its images before it refused
        // (`disks/move_lock.rs`), and would write to them when it closes them.
        if !self.monitor.is_shared() && has_image_locks(&process).unwrap_or(false) {
            tracing::warn!(
                pid = process.pid(),
                "the source's QEMU has taken the guest's images back, because it was asked to run \
                 the guest: it is killed, so that it does not write to them"
            );
            process.kill().map_err(|source| QuitError::Kill {
                pid: process.pid(),
                source,
            })?;
            self.detached = true;
            return wait_for_end(&process, QUIT_TIMEOUT);
        }
        let monitor = Arc::clone(&self.monitor);
        match self.session() {
            Ok(client) => quit(client, &*monitor, &process, QUIT_TIMEOUT)?,
            Err(_) if !process.is_alive() => {}
            Err(error) => return Err(error.into()),
        }
        // Nothing is left to be restored.
        self.detached = true;
        Ok(())
    }
}

/// Whether an engine that was killed, or its monitor's owner, was about to end QEMU
/// ([`Monitor::end`]): it is stopped, so that it answers nothing, and a signal to end is pending.
fn is_ending(process: &Process) -> bool {
    process.is_stopped() && process.is_asked_to_end()
}

fn wait_for_end(process: &Process, timeout: Duration) -> Result<(), QuitError> {
    let deadline = Instant::now() + timeout;
    while process.is_alive() {
        if Instant::now() > deadline {
            return Err(QuitError::StillRunning {
                pid: process.pid(),
                timeout,
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn quit(
    client: &mut Client,
    monitor: &dyn Monitor,
    process: &Process,
    timeout: Duration,
) -> Result<(), QuitError> {
    let state = migration_status::run_state(client)?;
    if state.running {
        return Err(QuitError::Runs {
            state: state.status,
        });
    }
    let said = monitor.end(client, process);
    wait_for_end(process, timeout).or_else(|still_running| {
        // QEMU may close the connection before it answers.
        said?;
        Err(still_running)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use crate::qmp::{MonitorSocket, scripted};

    use super::*;

    /// Quits a scripted QEMU in this state; `obeys`: `quit` ends its process. Also returns the
    /// commands that it got, and whether its process still exists.
    fn quit_scripted(status: &str, obeys: bool) -> (Result<(), QuitError>, Vec<String>, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let status = json!({ "status": status, "running": status == "running" });
        let pid = child.id();
        let server = scripted::serve(&path, 10, move |request| {
            let answer = match scripted::command(request) {
                "query-status" => status.clone(),
                "quit" if obeys => {
                    Process::open(pid).unwrap().kill().unwrap();
                    json!({})
                }
                _ => json!({}),
            };
            vec![scripted::answered(request, Ok(answer))]
        });
        let mut client = Client::connect(&path, Duration::from_secs(20)).unwrap();
        let timeout = if obeys { QUIT_TIMEOUT } else { Duration::ZERO };
        let result = quit(&mut client, &MonitorSocket::new(&path), &process, timeout);
        let alive = process.is_alive();
        drop(client);
        let _ = child.kill();
        child.wait().unwrap();
        let got = server.join().unwrap();
        let commands = got
            .iter()
            .map(|request| scripted::command(request).to_owned());
        (result, commands.collect(), alive)
    }

    #[test]
    fn a_paused_qemu_is_ended() {
        let (result, got, alive) = quit_scripted("paused", true);
        result.unwrap();
        assert!(got.contains(&"quit".to_owned()) && !alive);
    }

    #[test]
    fn a_qemu_whose_guest_runs_is_left_alone() {
        let (result, got, alive) = quit_scripted("running", true);
        let text = result.unwrap_err().to_string();
        assert!(text.contains("its guest runs (state running)"), "{text}");
        assert!(!got.contains(&"quit".to_owned()) && alive, "{got:?}");
    }

    /// By an engine that was killed between the two signals.
    #[test]
    fn a_qemu_that_was_stopped_to_be_ended_is_recognized() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!is_ending(&process));
        process.stop(QUIT_TIMEOUT).unwrap();
        assert!(!is_ending(&process), "it may continue");
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.unwrap().success());
        assert!(is_ending(&process));
        let alive = wait_for_end(&process, Duration::ZERO).unwrap_err();
        assert!(matches!(alive, QuitError::StillRunning { .. }), "{alive}");
        process.kill().unwrap();
        child.wait().unwrap();
        wait_for_end(&process, QUIT_TIMEOUT).unwrap();
    }

    #[test]
    fn a_qemu_that_does_not_end_is_reported() {
        let (result, _, alive) = quit_scripted("paused", false);
        let text = result.unwrap_err().to_string();
        assert!(text.contains("has not ended 0 s after"), "{text}");
        assert!(alive);
    }
}
