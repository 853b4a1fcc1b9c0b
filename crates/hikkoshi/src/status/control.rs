//! What clients of the control socket ask for, done by the engine.

use std::fmt;
use std::time::Duration;

use hikkoshi_control::{Change, Changed, Command, Outcome, RefusalReason, Set};
use hikkoshi_engine::{ControlRefused, LimitChange, SourceControl};

use crate::args::MAX_DOWNTIME_MS;
use crate::output::units::{downtime_limit, limit};

/// Does what a client asks for. `notice` is for the operator of the migration.
pub(super) fn handle(command: Command, control: &SourceControl, notice: &dyn Fn(&str)) -> Outcome {
    let done = match command {
        Command::Set(set) => match change(set) {
            Ok(change) => control.change(change).map(|before| {
                let changed = changed(set, before);
                notice(&format!("'hikkoshi set': {}", ShownChange(&changed)));
                Outcome::Changed(changed)
            }),
            Err(refused) => return refused,
        },
        Command::Switch => control.switch().map(|()| {
            notice("'hikkoshi switch': pre-copy ends now, and post-copy follows");
            Outcome::Switching
        }),
        Command::Cancel => control.cancel().map(|()| {
            notice("'hikkoshi cancel': the migration is cancelled");
            Outcome::Cancelling
        }),
    };
    done.unwrap_or_else(|refused| Outcome::refused(reason(refused), refused.to_string()))
}

/// The change that a client asks for, by the rules of the command line.
fn change(set: Set) -> Result<LimitChange, Outcome> {
    let invalid = |what: String| Err(Outcome::refused(RefusalReason::Invalid, what));
    if set == Set::default() {
        return invalid("no limit is given".to_owned());
    }
    if set.bandwidth == Some(Some(0)) {
        return invalid("the bandwidth must be at least a byte per second".to_owned());
    }
    let is_allowed = |ms: &u64| (1..=MAX_DOWNTIME_MS).contains(ms);
    if set.max_downtime_ms.is_some_and(|ms| !is_allowed(&ms)) {
        return invalid(format!(
            "the limit of the downtime must be between 1 and {MAX_DOWNTIME_MS} ms"
        ));
    }
    Ok(LimitChange {
        max_downtime: set.max_downtime_ms.map(Duration::from_millis),
        bandwidth: set.bandwidth,
    })
}

fn changed(set: Set, before: hikkoshi_engine::MigrationLimits) -> Changed {
    Changed {
        bandwidth: set.bandwidth.map(|new| Change {
            old: before.bandwidth,
            new,
        }),
        max_downtime_ms: set.max_downtime_ms.map(|new| Change {
            old: u64::try_from(before.max_downtime.as_millis()).unwrap_or(u64::MAX),
            new,
        }),
    }
}

/// Limits that were changed, for people.
pub(crate) struct ShownChange<'a>(pub(crate) &'a Changed);

impl fmt::Display for ShownChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(Change { old, new }) = self.0.bandwidth {
            let (old, new) = (limit(old), limit(new));
            parts.push(format!("bandwidth: {old} -> {new}"));
        }
        if let Some(Change { old, new }) = self.0.max_downtime_ms {
            let (old, new) = (downtime_limit(old), downtime_limit(new));
            parts.push(format!("max-downtime: {old} -> {new}"));
        }
        f.write_str(&parts.join(", "))
    }
}

fn reason(refused: ControlRefused) -> RefusalReason {
    match refused {
        ControlRefused::NoDowntimeLimit(_)
        | ControlRefused::NoPrecopy
        | ControlRefused::NoPostcopy => RefusalReason::Mode,
        ControlRefused::NotBegun
        | ControlRefused::Connecting
        | ControlRefused::CopyingDisks
        | ControlRefused::Cancelled
        | ControlRefused::Switched
        | ControlRefused::PrecopyEnded
        | ControlRefused::AllSent
        | ControlRefused::InPostcopy => RefusalReason::Phase,
        ControlRefused::HandingOver | ControlRefused::HandedOver => RefusalReason::TooLate,
        ControlRefused::Ended => RefusalReason::Ended,
        ControlRefused::Bandwidth(_) => RefusalReason::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// What a migration that has not begun answers, and the notices to its operator.
    fn answered(command: Command) -> (Outcome, Vec<String>) {
        let notices = RefCell::new(Vec::new());
        let notice = |text: &str| notices.borrow_mut().push(text.to_owned());
        let outcome = handle(command, &SourceControl::new(), &notice);
        (outcome, notices.into_inner())
    }

    #[test]
    fn limits_have_the_bounds_of_the_command_line() {
        for (bandwidth, max_downtime_ms, expected) in [
            (None, None, RefusalReason::Invalid),
            (Some(Some(0)), None, RefusalReason::Invalid),
            (None, Some(0), RefusalReason::Invalid),
            (
                Some(None),
                Some(MAX_DOWNTIME_MS + 1),
                RefusalReason::Invalid,
            ),
            (Some(Some(1)), Some(MAX_DOWNTIME_MS), RefusalReason::Phase),
        ] {
            let set = Set {
                bandwidth,
                max_downtime_ms,
            };
            match answered(Command::Set(set)) {
                (Outcome::Refused(refusal), notices) => {
                    assert_eq!(refusal.reason, expected, "{set:?}");
                    assert!(notices.is_empty(), "{notices:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn changes_are_shown_with_the_limits_before() {
        let changed = Changed {
            bandwidth: Some(Change {
                old: None,
                new: Some(5000),
            }),
            max_downtime_ms: Some(Change { old: 300, new: 20 }),
        };
        assert_eq!(
            ShownChange(&changed).to_string(),
            "bandwidth: none -> 0.0048 MiB/s, max-downtime: 300 ms -> 20 ms"
        );
    }
}
