//! `migrate_to`: the guest is handed over to another node.
//!
//! A move that has failed before the handover leaves the guest here, and is tried again as long as
//! there is time and a reason to hope. When the guest is handed over, the action has succeeded: the
//! engines on both nodes finish the move.

use std::process::{Child, ExitStatus};
use std::time::Duration;

use hikkoshi_handover::SourceStage;

use super::answer::Answer;
use super::deadline::Deadline;
use super::drive::Drive;
use super::engines::Ended;
use super::guest::Guest;
use super::order::Order;
use super::parameters::OnTimeout;
use super::table::{Action, Step};
use crate::output::streams;

/// How long it may take to end a move that takes too long, or to hand the guest over then.
const RESERVE: Duration = Duration::from_secs(30);

/// The pause before another attempt, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Reasons for which a move fails again: the guest, the destination's machine or the command line
/// would have to be another one.
const FINAL: &[&str] = &[
    "usage",
    "credentials",
    "encryption_needed",
    "unsupported",
    "not_attached",
    "refused",
    "dirty_log",
    "not_converging",
    "cancelled",
];

/// What is said when the time is nearly over.
const LATE: &str = "the time for this action is nearly over";

/// Why a move was cancelled.
const TOO_LONG: &str =
    "it was not handed over in the time of this action, and the move was cancelled";
const WITHDRAWN: &str = "Pacemaker would not order this move any more, and it was cancelled";
/// What is said before that.
const CANCELLING: &str = "Pacemaker would not order this move any more";

/// How a move goes on.
enum Move {
    /// The guest was handed over.
    HandedOver,
    /// Its engine has ended.
    Ended(Option<ExitStatus>),
    /// It was cancelled, for this reason.
    Cancelled(&'static str),
    /// The time is over, and it could not be cancelled.
    TimedOut,
}

/// Moves the guest to `node`.
pub(super) fn migrate_to(guest: &Guest, node: &str, deadline: Deadline) -> Answer {
    let limit = deadline.earlier(RESERVE);
    let name = &guest.parameters.name;
    let mut drive = Drive::new(guest, deadline);
    let mut pause = PAUSES.0;
    let mut order = Order::new(&guest.cluster, &guest.parameters.resource, node);
    loop {
        let (found, step) = drive.look(Action::MigrateTo);
        let mut engine = match step {
            Step::Move if limit.is_over() => {
                return stays(guest, node, "there was no time left for a move");
            }
            Step::Move if order.is_withdrawn() => return stays(guest, node, WITHDRAWN),
            Step::Move => {
                let noted = guest.cluster.note_move(name, node);
                match noted.and_then(|()| guest.start_move(node)) {
                    Ok(engine) => Some(engine),
                    Err(why) => return stays(guest, node, &format!("starting the move: {why}")),
                }
            }
            Step::Follow => None,
            _ => match drive.act(Action::MigrateTo, step, &found) {
                Some(answer) => return answer,
                None => continue,
            },
        };
        let ended = match follow(guest, engine.as_mut(), &mut order, limit, deadline) {
            Move::HandedOver => return Answer::Success,
            Move::Cancelled(why) => return stays(guest, node, why),
            Move::TimedOut => {
                streams::ocf_exit_reason(
                    "it was not decided in the time of this action where the guest is; the engines \
                     of the move decide it",
                );
                return Answer::Failed;
            }
            // Another agent's, which has ended or was killed.
            Move::Ended(None) if guest.result_status() == Some(0) => return Answer::Success,
            Move::Ended(None) => continue,
            Move::Ended(Some(status)) => guest.ended(status),
        };
        match ended.status {
            Some(0) => return Answer::Success,
            Some(1 | 2) if is_final(&ended) => return stays(guest, node, &ended.message),
            Some(1 | 2) => {
                streams::notice(&format!("trying again: {}", ended.message));
                if limit.within(pause).wait(|| order.is_withdrawn()) {
                    return stays(guest, node, WITHDRAWN);
                }
                pause = (pause * 2).min(PAUSES.1);
                // If it has left, Pacemaker has forgotten that it ordered the move, even if it is
                // back.
                if limit.is_over() || guest.cluster.destination_has_left(name, node) {
                    return stays(guest, node, &ended.message);
                }
            }
            Some(4) => {
                streams::ocf_exit_reason(&format!("the guest is lost: {}", ended.message));
                return Answer::Failed;
            }
            // It was killed, or the guest may have been handed over: the journal says more.
            _ => streams::notice(&ended.message),
        }
    }
}

/// The guest was not moved.
fn stays(guest: &Guest, node: &str, why: &str) -> Answer {
    let name = &guest.parameters.name;
    guest.cluster.forget_failed_move(name, node);
    streams::ocf_exit_reason(&format!("the guest was not moved and stays here: {why}"));
    Answer::Failed
}

fn is_final(ended: &Ended) -> bool {
    FINAL.contains(&ended.reason.as_str())
}

/// Waits until the guest is handed over, or the engine has ended: `engine`, or another agent's.
fn follow(
    guest: &Guest,
    mut engine: Option<&mut Child>,
    order: &mut Order,
    limit: Deadline,
    deadline: Deadline,
) -> Move {
    let mut switched = false;
    // Why it is cancelled, if the engine has taken that.
    let mut cancelled = None;
    // What is left of the time when it is to end.
    let mut reserve = None;
    loop {
        let stage = guest.handover();
        let is_committed = matches!(stage, Some((SourceStage::Committed, _)));
        if let Some((SourceStage::HandedOver | SourceStage::Done, _)) = stage {
            return Move::HandedOver;
        }
        match engine.as_mut().map(|engine| engine.try_wait()) {
            // The answer to a cancellation.
            Some(Ok(Some(status))) => {
                return match cancelled {
                    Some(why) if status.code() == Some(1) => Move::Cancelled(why),
                    _ => Move::Ended(Some(status)),
                };
            }
            Some(_) => {}
            None if stage.is_none_or(|(_, held)| !held) => {
                return match cancelled {
                    // It may have been handed over, and completed, before it could be cancelled.
                    Some(why) if !is_committed && guest.result_status() != Some(0) => {
                        Move::Cancelled(why)
                    }
                    _ => Move::Ended(None),
                };
            }
            None => {}
        }
        if limit.is_over() && !is_committed {
            let left = deadline.left();
            // The last quarter is for cancelling a move that is not handed over.
            let is_late = left < *reserve.get_or_insert(left) / 4;
            let switches = guest.parameters.on_timeout == OnTimeout::Postcopy;
            if switches && !switched && cancelled.is_none() {
                switched = true;
                control(guest, "switch", LATE);
            } else if (!switches || is_late) && cancelled.is_none() {
                cancelled = cancel(guest, LATE, TOO_LONG);
            }
        }
        if !is_committed && cancelled.is_none() && order.is_withdrawn() {
            cancelled = cancel(guest, CANCELLING, WITHDRAWN);
        }
        if !deadline.pause() {
            return Move::TimedOut;
        }
    }
}

/// Has the engine cancel the move. Returns `reason` if it does.
fn cancel(guest: &Guest, why: &str, reason: &'static str) -> Option<&'static str> {
    control(guest, "cancel", why).then_some(reason)
}

/// Returns whether the engine does it.
pub(super) fn control(guest: &Guest, command: &str, why: &str) -> bool {
    streams::notice(&format!("{why}: {command}"));
    match guest.control(command) {
        Ok(()) => true,
        Err(why) => {
            streams::notice(&format!("{command}: {why}"));
            false
        }
    }
}
