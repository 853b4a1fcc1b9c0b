//! The state that one side reports.

use hikkoshi_account::{
    Bytes, GuestAt, LatencySummary, Mode, Phase, Side, Stage, State, SwitchoverStep, TimeLeft,
};
use hikkoshi_handover::{DestinationStage, SourceStage};

use crate::output::recordings::RecordedCase;

use super::{DOWNTIME, LIKELY_DOWNTIME, Model, TICK};

/// Steps of the switchover: what was done, and when.
const SOURCE_STEPS: &[(&str, f64)] = &[
    ("paused", 0.42),
    ("stale pages known", 0.71),
    ("device state sent", 1.66),
    ("dirty log taken", 1.82),
    ("destination ready", 3.94),
    ("committed", 4.12),
    ("guest resumed", 4.61),
];
const DESTINATION_STEPS: &[(&str, f64)] = &[
    ("stale pages dropped", 0.24),
    ("everything received", 1.21),
    ("device state loaded", 2.78),
    ("readiness recorded", 3.02),
    ("commit received", 3.35),
    ("guest runs", 3.71),
    ("guest announced", 4.02),
];

impl Model<'_> {
    #[allow(clippy::cast_precision_loss)] // Rates.
    pub(super) fn state(&self, side: Side) -> State {
        let source = side == Side::Source;
        let handed_over = self.phase == Phase::Postcopy || self.phase == Phase::Switchover;
        let missing = self.map.missing.iter().sum::<u64>();
        let complete = self.complete || (self.phase == Phase::Postcopy && missing == 0);
        let source_stage = match (handed_over, complete) {
            (false, _) => SourceStage::Owned,
            (true, false) => SourceStage::HandedOver,
            (true, true) => SourceStage::Done,
        };
        let destination_stage = match (handed_over, complete) {
            (false, _) => DestinationStage::Receiving,
            (true, false) => DestinationStage::Running,
            (true, true) => DestinationStage::Complete,
        };
        let source_stage = Stage::Source(source_stage);
        let destination_stage = Stage::Destination(destination_stage);
        let (stage, peer_stage) = match source {
            true => (source_stage, destination_stage),
            false => (destination_stage, source_stage),
        };
        let steps = if source {
            SOURCE_STEPS
        } else {
            DESTINATION_STEPS
        };
        let in_precopy = self.phase == Phase::Precopy;
        let mut arrived = self.arrived.clone();
        arrived.sent.clone_from(&self.map.sent);
        let rate = self.sent_in_tick as f64 * 10.0;
        let dirty = (self.dirtied_in_tick > 0 && source && self.phase == Phase::Precopy)
            .then_some(self.dirtied_in_tick as f64 * 10.0);
        let mut map = if source { self.map.clone() } else { arrived };
        map.rated_pages = match dirty {
            Some(_) => self.case.cells * self.case.cell_pages,
            None => 0,
        };
        // The destination does not know the rounds.
        let [done, total] = match in_precopy && !source {
            true => [0, 0],
            false => [self.done, self.total],
        };
        State {
            at_ms: self.at_ms,
            phase: self.phase,
            round: match in_precopy && source {
                true => self.rounds.last().map_or(0, |round| round.round),
                false => 0,
            },
            done_pages: done,
            total_pages: total,
            stage,
            peer_stage,
            guest_at: match self.phase {
                Phase::Connecting | Phase::Disks | Phase::Precopy | Phase::Unknown => {
                    GuestAt::Source
                }
                Phase::Switchover if source && !complete => GuestAt::Paused,
                Phase::Switchover | Phase::Postcopy => GuestAt::Destination,
            },
            pages: self.pages,
            bytes: Bytes {
                disks: Some(0),
                ..self.bytes
            },
            repeats: source.then_some(self.repeats),
            bytes_per_second: rate,
            dirty_pages_per_second: dirty,
            time_left: (total > done).then(|| time_left(total - done, self.case)),
            missing_pages: (self.phase == Phase::Postcopy).then_some(missing),
            waiting_pages: match source {
                true => 0,
                false => self.arrived.waiting.iter().sum(),
            },
            requests: match source {
                true => LatencySummary::default(),
                false => self.latencies.requests(),
            },
            downtime_ms: handed_over.then_some(DOWNTIME),
            likely_downtime_ms: (handed_over && source).then_some(LIKELY_DOWNTIME),
            switchover: match handed_over {
                true => steps.iter().map(step).collect(),
                false => Vec::new(),
            },
            rounds: if source {
                self.rounds.clone()
            } else {
                Vec::new()
            },
            outages: self.outages.clone(),
            map,
            ..State::new(side)
        }
    }
}

fn step((step, at_ms): &(&'static str, f64)) -> SwitchoverStep {
    SwitchoverStep {
        step: (*step).into(),
        at_ms: *at_ms,
    }
}

#[allow(clippy::cast_precision_loss)] // Seconds.
fn time_left(pages: u64, case: &RecordedCase) -> TimeLeft {
    let likely_s = pages as f64 / (case.link_pages * 1000 / TICK) as f64;
    TimeLeft {
        low_s: likely_s * 0.8,
        likely_s,
        high_s: (case.mode != Mode::Precopy).then_some(likely_s * 1.5),
    }
}
