//! A move that was handed over is watched at its source until all pages are sent.
//!
//! Pacemaker calls nothing at the source while `migrate_from` waits for the pages at the
//! destination. If the source's engine is killed then, a process that `migrate_to` has left behind
//! resumes it.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_handover::SourceStage;

use super::answer::Answer;
use super::cluster::Side;
use super::deadline::Deadline;
use super::drive::Drive;
use super::guest::Guest;
use super::state::State;
use crate::output::streams;

/// The action of the process that watches. Pacemaker does not know it.
pub(super) const ACTION: &str = "finish-move";

/// How often the engine is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

fn is_owing(guest: &Guest) -> bool {
    use SourceStage::{Committed, HandedOver};
    matches!(guest.handover(), Some((Committed | HandedOver, _)))
}

/// Leaves a process behind that watches the guest's move, if pages are still here.
pub(super) fn leave_behind(guest: &Guest) {
    if !is_owing(guest) {
        return;
    }
    if let Err(error) = guest.spawn("watch.log", &["ocf-agent", ACTION]) {
        let error = Report::new(&error);
        streams::notice(&format!("watching the engine of the move: {error}"));
    }
}

/// Resumes the engine whenever none works on the move, until all pages are sent or the move is
/// given up.
pub(super) fn finish(guest: &Guest, deadline: Deadline) -> Answer {
    let mut drive = Drive::new(guest, deadline);
    while is_owing(guest) {
        let found = guest.look();
        if matches!(found.state, State::Owing | State::Committed)
            && let Err(why) = drive.resume(&found)
        {
            streams::notice(&why);
        }
        std::thread::sleep(INTERVAL);
    }
    // `stop` may have ended before. Otherwise no third node would start the guest.
    let name = &guest.parameters.name;
    if guest.handover().is_none() {
        guest.cluster.forget_move(name, Side::Source);
    }
    Answer::Success
}
