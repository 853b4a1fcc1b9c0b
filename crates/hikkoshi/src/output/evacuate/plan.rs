//! The plan, as the journal and `--json` have it (`docs/evacuating.md`).

use hikkoshi_evacuation::{Change, Evacuation, Met, Order, Plan, Refusal, Within};
use hikkoshi_status::{
    DeadlineMet, EvacuationPlan, MoveOrder, PlannedChange, PlannedDeadline, PlannedDestination,
    PlannedMove, StayingGuest,
};

use crate::output::estimate::predicted;

/// The plan. `not_movable`: guests that are not part of the evacuation, and why.
pub(crate) fn plan_report(
    evacuation: &Evacuation,
    plan: &Plan,
    not_movable: &[(String, String)],
    within: Option<&Within>,
) -> EvacuationPlan {
    let moves = plan.moves.iter().map(|it| PlannedMove {
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
    let without_place = plan.refused.iter().map(|it| StayingGuest {
        guest: evacuation.guests[it.guest].name.clone(),
        reason: refusal_text(&it.why, evacuation),
    });
    let not_movable = not_movable.iter().map(|(guest, why)| StayingGuest {
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
        PlannedDestination {
            to: it.name.clone(),
            guests: there().count(),
            memory_bytes: there().map(|it| evacuation.guests[it.guest].needs()).sum(),
            free_memory_bytes: Some(it.free_memory).filter(|_| it.processors < u32::MAX),
            line_bytes_per_second: predicted(it.line.rate, 1.0),
        }
    });
    EvacuationPlan {
        moves: moves.collect(),
        stays: without_place.chain(not_movable).collect(),
        destinations: destinations.collect(),
        at_once: plan.at_once,
        order: match plan.order {
            Order::Named => MoveOrder::Named,
            Order::Shortest => MoveOrder::ShortestFirst,
            Order::Longest => MoveOrder::LongestFirst,
        },
        total_ms: predicted(plan.total, 1e3),
        felt_ms: predicted(plan.felt, 1e3),
        within: within.map(|within| deadline(within, evacuation)),
    }
}

fn deadline(within: &Within, evacuation: &Evacuation) -> PlannedDeadline {
    let changes = within.changes.iter();
    PlannedDeadline {
        deadline_ms: within.seconds * 1e3,
        met: met(within.met),
        changes: changes
            .map(|(change, total, then)| PlannedChange {
                change: change_text(change, evacuation),
                total_ms: predicted(*total, 1e3),
                met: met(*then),
            })
            .collect(),
    }
}

/// Whether each guest has a destination, and the deadline is likely met, if there is one.
pub(crate) fn is_whole(plan: &EvacuationPlan) -> bool {
    let in_time = |it: &PlannedDeadline| matches!(it.met, DeadlineMet::Yes | DeadlineMet::Likely);
    plan.stays.is_empty() && plan.within.as_ref().is_none_or(in_time)
}

const fn met(met: Met) -> DeadlineMet {
    match met {
        Met::Yes => DeadlineMet::Yes,
        Met::Likely => DeadlineMet::Likely,
        Met::Unlikely => DeadlineMet::Unlikely,
        Met::No => DeadlineMet::No,
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
