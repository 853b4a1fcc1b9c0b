//! The plan, as `--json` writes it (`docs/evacuating.md`).

use hikkoshi_account::{Mode, Predicted};
use hikkoshi_evacuation::{Change, Evacuation, Met, Order, Plan, Refusal, Within};
use serde::Serialize;

use crate::output::estimate::predicted;

/// The plan.
#[derive(Debug, Serialize)]
pub(crate) struct PlanReport {
    /// In the order in which they begin.
    pub(super) moves: Vec<MoveReport>,
    /// Guests that stay.
    pub(super) stays: Vec<StayReport>,
    pub(super) destinations: Vec<DestinationReport>,
    /// Moves that are under way at a time.
    pub(super) at_once: usize,
    pub(super) order: &'static str,
    /// The time of the whole.
    pub(super) total_ms: Predicted,
    /// What the guests lose of their time, together: pauses and page faults.
    pub(super) felt_ms: Predicted,
    /// `null`: there is no deadline.
    pub(super) within: Option<WithinReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct MoveReport {
    pub(super) guest: String,
    pub(super) to: String,
    pub(super) mode: Mode,
    pub(super) memory_bytes: u64,
    pub(super) begins_ms: Predicted,
    pub(super) ends_ms: Predicted,
    pub(super) total_ms: Predicted,
    pub(super) downtime_ms: Predicted,
    pub(super) felt_ms: Predicted,
}

#[derive(Debug, Serialize)]
pub(super) struct StayReport {
    pub(super) guest: String,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct DestinationReport {
    pub(super) to: String,
    pub(super) guests: usize,
    /// What they need of its memory.
    pub(super) memory_bytes: u64,
    /// `null`: not known.
    pub(super) free_memory_bytes: Option<u64>,
    pub(super) line_bytes_per_second: Predicted,
}

#[derive(Debug, Serialize)]
pub(super) struct WithinReport {
    pub(super) deadline_ms: f64,
    /// `yes`, `likely`, `unlikely` or `no`.
    pub(super) met: &'static str,
    pub(super) changes: Vec<ChangeReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChangeReport {
    pub(super) change: String,
    pub(super) total_ms: Predicted,
    pub(super) met: &'static str,
}

impl PlanReport {
    /// `not_movable`: guests that are not part of the evacuation, and why.
    pub(crate) fn new(
        evacuation: &Evacuation,
        plan: &Plan,
        not_movable: &[(String, String)],
        within: Option<&Within>,
    ) -> Self {
        let moves = plan.moves.iter().map(|it| MoveReport {
            guest: evacuation.guests[it.guest].name.clone(),
            to: evacuation.destinations[it.destination].name.clone(),
            mode: it.mode,
            memory_bytes: evacuation.guests[it.guest].memory,
            begins_ms: predicted(it.begins, 1e3),
            ends_ms: predicted(it.ends, 1e3),
            total_ms: predicted(it.total, 1e3),
            downtime_ms: predicted(it.downtime, 1e3),
            felt_ms: predicted(it.felt, 1e3),
        });
        let without_place = plan.refused.iter().map(|it| StayReport {
            guest: evacuation.guests[it.guest].name.clone(),
            reason: refusal_text(&it.why, evacuation),
        });
        let not_movable = not_movable.iter().map(|(guest, why)| StayReport {
            guest: guest.clone(),
            reason: why.clone(),
        });
        let destinations = evacuation.destinations.iter().enumerate();
        let destinations = destinations.map(|(number, it)| {
            let there = || {
                plan.moves
                    .iter()
                    .filter(|other| other.destination == number)
            };
            DestinationReport {
                to: it.name.clone(),
                guests: there().count(),
                memory_bytes: there().map(|it| evacuation.guests[it.guest].needs()).sum(),
                free_memory_bytes: Some(it.free_memory).filter(|_| it.processors < u32::MAX),
                line_bytes_per_second: predicted(it.line.rate, 1.0),
            }
        });
        Self {
            moves: moves.collect(),
            stays: without_place.chain(not_movable).collect(),
            destinations: destinations.collect(),
            at_once: plan.at_once,
            order: match plan.order {
                Order::Named => "named",
                Order::Shortest => "shortest_first",
                Order::Longest => "longest_first",
            },
            total_ms: predicted(plan.total, 1e3),
            felt_ms: predicted(plan.felt, 1e3),
            within: within.map(|within| WithinReport {
                deadline_ms: within.seconds * 1e3,
                met: met(within.met),
                changes: within
                    .changes
                    .iter()
                    .map(|(change, total, then)| ChangeReport {
                        change: change_text(change, evacuation),
                        total_ms: predicted(*total, 1e3),
                        met: met(*then),
                    })
                    .collect(),
            }),
        }
    }

    /// Whether each guest has a destination, and the deadline is likely met, if there is one.
    pub(crate) fn is_whole(&self) -> bool {
        let in_time = |it: &WithinReport| ["yes", "likely"].contains(&it.met);
        self.stays.is_empty() && self.within.as_ref().is_none_or(in_time)
    }
}

const fn met(met: Met) -> &'static str {
    match met {
        Met::Yes => "yes",
        Met::Likely => "likely",
        Met::Unlikely => "unlikely",
        Met::No => "no",
    }
}

fn change_text(change: &Change, evacuation: &Evacuation) -> String {
    match change {
        Change::AtOnce(number) => format!("{number} moves at once"),
        Change::NoBandwidthLimit => "no limit of the bandwidth".to_owned(),
        Change::Mode(mode) => format!("--mode {mode}"),
        Change::Compress => "--migrate-option=--compress=auto".to_owned(),
        Change::FasterLines(factor) => format!("lines that are {factor} times as fast"),
        Change::Without(guests) => {
            let names = guests.iter().map(|&it| evacuation.guests[it].name.as_str());
            format!("without {}", names.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Why a guest has no destination, for people.
pub(crate) fn refusal_text(why: &Refusal, evacuation: &Evacuation) -> String {
    match why {
        Refusal::Mode { mode, obstacles } => {
            let how = mode.map_or_else(String::new, |mode| format!(" by {mode}"));
            format!("it cannot be moved{how}: {}", obstacles.join("; "))
        }
        Refusal::Nowhere(why) => {
            let names = evacuation.destinations.iter().map(|it| &it.name);
            let each = names.zip(why).map(|(name, why)| format!("{name}: {why}"));
            match why.is_empty() {
                true => "there is no destination".to_owned(),
                false => each.collect::<Vec<_>>().join("; "),
            }
        }
    }
}
