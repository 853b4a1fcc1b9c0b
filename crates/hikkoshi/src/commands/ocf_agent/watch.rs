//! A move is watched at its source by a process that `migrate_to` starts, and that outlives it.
//!
//! If `migrate_to` fails, Pacemaker leaves the resource alone until it is asked to look again
//! (`on-fail=block`). An agent that is killed cannot ask: this process does it. After the handover
//! it resumes the engine if that is killed, also while Pacemaker calls nothing here.

use std::io::{Read, Write, stdin};
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::SourceStage;

use super::answer::Answer;
use super::cluster::Side;
use super::deadline::Deadline;
use super::drive::Drive;
use super::guest::Guest;
use super::migrate_to::control;
use super::state::State;
use crate::output::streams;

/// The action of the process that watches. Pacemaker does not know it.
pub(super) const ACTION: &str = "watch-move";

/// What the agent says if it has succeeded. If it is killed, it says nothing.
const SUCCEEDED: &[u8] = b"succeeded";

/// How often the move is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often Pacemaker is asked at most to look again.
const ATTEMPTS: u32 = 10;

/// A move that is watched: the agent's end of a pipe to the process that does it.
#[derive(Debug)]
pub(super) struct Watch(Option<ChildStdin>);

impl Watch {
    /// Starts the process.
    pub(super) fn begin(guest: &Guest) -> Self {
        match guest.spawn("watch.log", &["ocf-agent", ACTION], Stdio::piped()) {
            Ok(mut child) => Self(child.stdin.take()),
            Err(error) => {
                let error = Report::new(&error);
                streams::notice(&format!(
                    "starting the process that watches the move: {error}"
                ));
                Self(None)
            }
        }
    }

    /// The agent ends with this answer.
    pub(super) fn end(self, answer: Answer) {
        if let Some(mut pipe) = self.0
            && answer == Answer::Success
        {
            // If it was killed, nobody is there to be told.
            let _ = pipe.write_all(SUCCEEDED);
        }
    }
}

/// Waits until the agent has ended. Returns whether it has succeeded.
fn agent_has_succeeded() -> bool {
    let mut said = Vec::new();
    let limit = SUCCEEDED.len() as u64;
    stdin().take(limit).read_to_end(&mut said).is_ok() && said == SUCCEEDED
}

/// Watches a move to its end.
pub(super) fn watch(guest: &Guest, deadline: Deadline) -> Answer {
    let (cluster, name) = (&guest.cluster, &guest.parameters.name);
    let has_failed = !agent_has_succeeded();
    let after = guest.parameters.refresh.filter(|_| has_failed);
    let mut refresh = after.map(|after| Instant::now() + after);
    let mut attempts = 0;
    let mut drive = Drive::new(guest, deadline);
    let (mut was_handed_over, mut is_cancelled) = (false, false);
    // As long as it is undecided, it is the agent's move, and not a later one.
    let mut may_cancel = has_failed;
    loop {
        use SourceStage::{Committed, Done, HandedOver, Owned};
        let handover = guest.handover();
        let is_owing = match handover {
            Some((Committed | HandedOver, _)) => finish(guest, &mut drive),
            // The engine is ending QEMU.
            Some((Done, held)) => held,
            _ => false,
        };
        was_handed_over |= matches!(handover, Some((HandedOver | Done, _)));
        // Probes would not see the guest once, while it may be handed over between them. It is
        // decided when the destination has left the cluster.
        let is_undecided = match handover {
            Some((Owned, held)) => held,
            Some((Committed, _)) => is_owing,
            _ => false,
        };
        may_cancel &= is_undecided;
        if may_cancel && deadline.is_over() && !is_cancelled {
            is_cancelled = control(guest, "cancel", "the agent has ended without a decision");
        }
        if let (Some(at), Some(after)) = (refresh, after)
            && at <= Instant::now()
            && !is_undecided
        {
            attempts += 1;
            let is_over = cluster.refresh(&guest.parameters.resource) || attempts == ATTEMPTS;
            refresh = (!is_over).then(|| Instant::now() + after);
        }
        if refresh.is_none() && !is_owing && !may_cancel {
            break;
        }
        std::thread::sleep(INTERVAL);
    }
    // `stop` may have ended before. Otherwise no third node would start the guest. If it is here
    // again, the note may be of its next move.
    if was_handed_over && matches!(guest.look().state, State::Absent | State::Moved) {
        cluster.forget_move(name, Side::Source);
    }
    Answer::Success
}

/// Resumes the engine of a guest that was handed over, or may have been, if none works on it.
/// Returns whether there is something to wait for.
fn finish(guest: &Guest, drive: &mut Drive<'_>) -> bool {
    let found = guest.look();
    if matches!(found.state, State::Owing | State::Committed)
        && let Err(why) = drive.resume(&found)
    {
        streams::notice(&why);
    }
    // Pacemaker's `start` or `stop` gives it up.
    found.state != State::Forsaken
}
