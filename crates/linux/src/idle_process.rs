//! Waits until a process waits.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::status_field;

/// The time between two looks, in which no thread must have run.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until no thread of process `pid` has run for a moment, at most for `limit`. Returns
/// whether that is so. Of a process that has ended nothing runs, either.
///
/// A thread that is ready to run, and waits for a processor, counts as one that runs.
#[must_use]
pub fn wait_until_idle(pid: u32, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let mut before = waiting(pid);
    loop {
        thread::sleep(LOOK);
        let now = waiting(pid);
        if now.is_some() && now == before {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        before = now;
    }
}

/// The threads of a process, each with how often it has waited and was interrupted. `None`: one of
/// them runs or is ready to.
fn waiting(pid: u32) -> Option<Vec<(String, [String; 2])>> {
    let mut threads = Vec::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let status = task.path().join("status");
        let field = |name| status_field(&status, name);
        // A thread that has ended has no file.
        let Some(state) = field("State") else {
            continue;
        };
        // Nor does one run that has ended and was not waited for.
        if state.starts_with(['Z', 'X']) {
            continue;
        }
        if !state.starts_with('S') {
            return None;
        }
        let counts = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"].map(field);
        let counts = counts.map(Option::unwrap_or_default);
        threads.push((task.file_name().to_string_lossy().into_owned(), counts));
    }
    Some(threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const LONG: Duration = Duration::from_secs(120);

    /// `sh` runs this.
    fn with(script: &str, test: impl FnOnce(u32)) {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        test(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_waits_is_idle() {
        with("exec sleep 1000", |pid| assert!(wait_until_idle(pid, LONG)));
    }

    #[test]
    fn a_process_that_has_ended_is_idle_before_it_is_waited_for() {
        let mut child = Command::new("true").spawn().unwrap();
        assert!(wait_until_idle(child.id(), LONG));
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_runs_is_not_idle() {
        let limit = Duration::from_millis(200);
        with("while :; do :; done", |pid| {
            assert!(!wait_until_idle(pid, limit));
        });
    }
}
