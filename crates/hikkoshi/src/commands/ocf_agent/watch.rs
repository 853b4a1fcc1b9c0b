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
    let has_failed = !agent_has_succeeded();
    let mut drive = Drive::new(guest, deadline);
    let mut refresh = Refresh::after(guest.parameters.refresh.filter(|_| has_failed));
    let mut cancellation = Cancellation {
        is_possible: has_failed,
        is_sent: false,
    };
    let mut was_handed_over = false;
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
        // It is decided when the destination has left the cluster.
        let is_undecided = match handover {
            Some((Owned, held)) => held,
            Some((Committed, _)) => is_owing,
            _ => false,
        };
        cancellation.look(guest, is_undecided, deadline);
        if !is_undecided {
            refresh.ask_if_due(guest);
        }
        if !is_owing && !cancellation.is_possible && refresh.is_over() {
            break;
        }
        std::thread::sleep(INTERVAL);
    }
    // `stop` may have ended before. Otherwise no third node would start the guest. If it is here
    // again, the note may be of its next move.
    if was_handed_over && matches!(guest.look().state, State::Absent | State::Moved) {
        let name = &guest.parameters.name;
        guest.cluster.forget_move(name, Side::Source);
    }
    Answer::Success
}

/// A move that the agent has left without a decision, and that is cancelled when its time is over.
struct Cancellation {
    /// As long as the move is undecided, it is the agent's, and not a later one.
    is_possible: bool,
    is_sent: bool,
}

impl Cancellation {
    fn look(&mut self, guest: &Guest, is_undecided: bool, deadline: Deadline) {
        self.is_possible &= is_undecided;
        if self.is_possible && deadline.is_over() && !self.is_sent {
            self.is_sent = control(guest, "cancel", "the agent has ended without a decision");
        }
    }
}

/// Pacemaker is asked to look again, once it is decided where the guest is: otherwise its probes
/// would not see a guest that is handed over between them.
struct Refresh {
    pause: Duration,
    /// When it is asked next, if at all.
    next: Option<Instant>,
    attempts: u32,
}

impl Refresh {
    /// After this pause, if at all.
    fn after(pause: Option<Duration>) -> Self {
        Self {
            pause: pause.unwrap_or_default(),
            next: pause.map(|pause| Instant::now() + pause),
            attempts: 0,
        }
    }

    fn ask_if_due(&mut self, guest: &Guest) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.attempts += 1;
        let is_done = guest.cluster.refresh(&guest.parameters.resource);
        let again = !is_done && self.attempts < ATTEMPTS;
        self.next = again.then(|| Instant::now() + self.pause);
    }

    /// Whether it has been asked, or will not be.
    fn is_over(&self) -> bool {
        self.next.is_none()
    }
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
