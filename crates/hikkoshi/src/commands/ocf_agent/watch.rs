//! A move is watched on both sides, by processes that `migrate_to` and `migrate_from` start, and
//! that outlive them.
//!
//! If one of these actions fails, Pacemaker leaves the resource alone until it is asked to look
//! again (`on-fail=block`). An agent that is killed cannot ask: this process does it. And Pacemaker
//! calls nothing at the source while `migrate_from` waits for the pages at the destination, so the
//! process there resumes the engine if that is killed.

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
use super::state::State;
use crate::output::streams;

/// The actions of these processes. Pacemaker does not know them.
pub(super) const SENT: &str = "watch-sent";
pub(super) const RECEIVED: &str = "watch-received";

/// What the agent says if it has succeeded. If it is killed, it says nothing.
const SUCCEEDED: &[u8] = b"succeeded";

/// When Pacemaker looks again if the destination's agent has failed: the guest runs, or has to be
/// started again. The failure is recorded after the agent has ended.
const SOON: Duration = Duration::from_secs(2);

/// How often the move is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// A move that is watched: the agent's end of a pipe to the process that does it.
#[derive(Debug)]
pub(super) struct Watch(Option<ChildStdin>);

impl Watch {
    /// Starts the process, with one of its actions.
    pub(super) fn begin(guest: &Guest, action: &str) -> Self {
        match guest.spawn("watch.log", &["ocf-agent", action], Stdio::piped()) {
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

/// Watches a move to its end, with this action.
pub(super) fn watch(guest: &Guest, action: &str, deadline: Deadline) -> Answer {
    let (cluster, name) = (&guest.cluster, &guest.parameters.name);
    let mut refresh = match (agent_has_succeeded(), guest.parameters.refresh) {
        (true, _) | (_, None) => None,
        (false, Some(after)) => {
            let is_sent = action == SENT;
            Some(Instant::now() + if is_sent { after } else { SOON.min(after) })
        }
    };
    let mut drive = Drive::new(guest, deadline);
    loop {
        let stage = guest.handover().map(|(stage, _)| stage);
        let is_committed = stage == Some(SourceStage::Committed);
        let is_owing = is_committed || stage == Some(SourceStage::HandedOver);
        if is_owing {
            let found = guest.look();
            if matches!(found.state, State::Owing | State::Committed)
                && let Err(why) = drive.resume(&found)
            {
                streams::notice(&why);
            }
        }
        // A probe fails as long as it is not decided where the guest is.
        if refresh.is_some_and(|at| at <= Instant::now()) && !is_committed {
            refresh = None;
            if stage.is_none() && stays(guest) {
                cluster.forget_sent(name);
            }
            cluster.refresh(&guest.parameters.resource);
        }
        if refresh.is_none() && !is_owing {
            break;
        }
        std::thread::sleep(INTERVAL);
    }
    // `stop` may have ended before. Otherwise no third node would start the guest.
    if guest.handover().is_none() && !stays(guest) {
        cluster.forget_move(name, Side::Source);
    }
    Answer::Success
}

/// Whether the guest is here, without a move.
fn stays(guest: &Guest) -> bool {
    matches!(guest.look().state, State::Running | State::Paused)
}
