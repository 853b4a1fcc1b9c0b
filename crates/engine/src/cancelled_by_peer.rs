//! A migration that the other side has ended by *Cancel*.

/// What a side reports of it. `side` is the other one. `reason` is empty if a signal or a command
/// cancelled the migration there.
pub(crate) fn cancelled_by_peer(side: &str, reason: &str) -> String {
    match reason {
        "" => format!("cancelled at the {side}"),
        reason => format!("the {side} ended the migration: {reason}"),
    }
}
