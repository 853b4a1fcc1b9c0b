//! The map of a later engine, joined to the last one of the engine before.

use hikkoshi_account::{Map, Side};

/// The map of `later`, in which the pages of `before` count as well.
pub(super) fn join_map(side: Side, before: &Map, later: Map) -> Map {
    let arrived = sum(&before.by_request, &before.background);
    let sent = match side {
        // A source that resumes has no pre-copy of its own.
        Side::Source => largest(&before.sent, &later.sent),
        // Not known yet.
        Side::Destination if later.sent.is_empty() => before.sent.clone(),
        // Everything that is neither missing nor arrived since it was resumed.
        Side::Destination => without(&later.sent, &arrived),
    };
    Map {
        sent,
        by_request: sum(&before.by_request, &later.by_request),
        background: sum(&before.background, &later.background),
        ..later
    }
}

fn sum(one: &[u64], other: &[u64]) -> Vec<u64> {
    combined(one, other, u64::saturating_add)
}

fn largest(one: &[u64], other: &[u64]) -> Vec<u64> {
    combined(one, other, u64::max)
}

fn without(one: &[u64], other: &[u64]) -> Vec<u64> {
    combined(one, other, u64::saturating_sub)
}

/// Cell by cell. A list that is shorter has zeros at its end.
fn combined(one: &[u64], other: &[u64], combine: impl Fn(u64, u64) -> u64) -> Vec<u64> {
    let at = |list: &[u64], cell: usize| list.get(cell).copied().unwrap_or(0);
    let cells = 0..one.len().max(other.len());
    cells
        .map(|cell| combine(at(one, cell), at(other, cell)))
        .collect()
}
