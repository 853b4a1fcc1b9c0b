//! Ends the copies of the guest's disks that were given up, while the guest waits for a moment.
//!
//! QEMU must not end such a job while it passes a write of the guest on (`disks/mirror.rs`). `stop`
//! waits for these, so a guest that runs is paused with it until the jobs have ended.
//!
//! A mark in QEMU says who has paused the guest. So whoever comes next resumes it if this process
//! is killed in between: its guard, or `hikkoshi migrate --resume`. A guest that is paused already
//! stays so, whoever has paused it.

use serde_json::json;

use super::copy_error::EndCopiesError;
use super::mirror;
use crate::qmp::migration_status::run_state;
use crate::qmp::pause_mark;
use crate::qmp::{Client, QmpError, ResumeError, WATCHED_TIMEOUT};

/// Removes everything of copies from QEMU, of which there may be `number`. Their connections must
/// have ended, as QEMU may wait for them. Can be repeated.
pub(crate) fn end(client: &mut Client, number: usize) -> Result<(), EndCopiesError> {
    let paused = pause(client);
    let removed = match paused {
        Ok(()) => mirror::remove(client, number),
        Err(error) => Err(error),
    };
    // Also if that has failed, and after an attempt that was killed.
    resume(client)?;
    Ok(removed?)
}

/// Pauses the guest if it runs and a job is left, and marks it before.
fn pause(client: &mut Client) -> Result<(), QmpError> {
    if !mirror::is_any_left(client)? || !run_state(client)?.running {
        return Ok(());
    }
    pause_mark::set_ending_copies(client)?;
    // Its owner may have paused it since it was seen to run: then it is not resumed here. A pause
    // after this is taken for our own: QEMU does not tell who has paused a guest, and reports no
    // second pause.
    if !run_state(client)?.running {
        return pause_mark::remove_ending_copies(client);
    }
    // It waits for the source's own disks, which it flushes.
    let stopped = client.execute_within("stop", json!({}), WATCHED_TIMEOUT);
    stopped.map(drop)
}

/// Resumes a guest that was paused here.
fn resume(client: &mut Client) -> Result<(), ResumeError> {
    if !pause_mark::is_ending_copies(client)? {
        return Ok(());
    }
    if !run_state(client)?.running {
        client.execute("cont", json!({}))?;
        let state = run_state(client)?;
        if !state.running {
            return Err(ResumeError::Stopped {
                state: state.status,
            });
        }
    }
    Ok(pause_mark::remove_ending_copies(client)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::scripted;

    /// The commands of [`end`] with one job, when QEMU answers `query-status` like this.
    fn commands(states: &'static [&'static str]) -> Vec<String> {
        let mut states = states.iter();
        let (mut jobs, mut marks) = (
            json!([{ "device": "hikkoshi-disk-0", "status": "ready", "offset": 0, "len": 1 }]),
            json!([]),
        );
        let (mut client, qemu) = scripted::session(move |command| {
            match command {
                "query-status" => {
                    let state = *states.next().ok_or("not expected")?;
                    return Ok(json!({ "status": state, "running": state == "running" }));
                }
                "query-block-jobs" => return Ok(jobs.clone()),
                "qom-list" => return Ok(marks.clone()),
                "query-named-block-nodes" => return Ok(json!([])),
                "block-job-cancel" => jobs = json!([]),
                "object-add" => {
                    marks = json!([{ "name": "hikkoshi-ending-copies", "type": "child<secret>" }]);
                }
                "object-del" => marks = json!([]),
                _ => {}
            }
            Ok(json!({}))
        });
        end(&mut client, 1).unwrap();
        drop(client);
        let all = qemu.join().unwrap();
        let changes = |command: &String| !command.starts_with("query-") && command != "qom-list";
        all.into_iter().filter(changes).collect()
    }

    #[test]
    fn a_guest_that_runs_is_paused_while_jobs_end() {
        assert_eq!(
            commands(&["running", "running", "paused", "running"]),
            [
                "object-add",
                "stop",
                "block-job-cancel",
                "closefd",
                "cont",
                "object-del"
            ]
        );
    }

    #[test]
    fn a_guest_that_its_owner_pauses_meanwhile_is_neither_paused_nor_resumed() {
        assert_eq!(
            commands(&["running", "paused"]),
            ["object-add", "object-del", "block-job-cancel", "closefd"]
        );
        assert_eq!(commands(&["paused"]), ["block-job-cancel", "closefd"]);
    }
}
