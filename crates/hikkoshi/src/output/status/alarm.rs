//! What an operator must not overlook of a migration.

use std::time::Duration;

use hikkoshi_account::{Outage, Side, State};

use super::SeenMigration;
use crate::output::progress_line::waits;
use crate::output::units::seconds;

/// A line for each migration that has no links, or that no engine works on although it is not
/// finished.
pub(crate) fn alarms(all: &[&SeenMigration]) -> Vec<String> {
    all.iter().filter_map(|seen| alarm(seen)).collect()
}

fn alarm(seen: &SeenMigration) -> Option<String> {
    let guest = &seen.migration.guest;
    if let Some(unfinished) = &seen.unfinished {
        return Some(format!(
            "{guest}: NOT FINISHED, and no engine works on it: {}. Resume it: {}",
            unfinished.message, unfinished.resume
        ));
    }
    let state = seen.state.as_ref().filter(|_| seen.answers())?;
    let outage = state.outage()?;
    Some(format!("{guest}: {}", no_links(seen, state, outage)))
}

/// Since when there are no links, until when they are tried to be replaced, and what that means for
/// the guest.
pub(super) fn no_links(seen: &SeenMigration, state: &State, outage: &Outage) -> String {
    let migration = &seen.migration;
    let other = match (migration.side, migration.peer.as_str()) {
        (Side::Source, "") => "the destination".to_owned(),
        (Side::Destination, "") => "the source".to_owned(),
        (_, peer) => peer.to_owned(),
    };
    let since = |ms: u64| seconds(Duration::from_millis(ms));
    let lasted = since(outage.lasts_ms(state.at_ms));
    let until = match outage.until_ms {
        Some(until) => format!(
            "tried for {} more",
            since(until.saturating_sub(state.at_ms))
        ),
        None => "waiting without a limit".to_owned(),
    };
    format!("NO LINK to {other} for {lasted}, {until}; {}", waits(state))
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::{running, state};
    use super::super::{Engine, Unfinished};
    use super::*;
    use hikkoshi_account::{Mode, Phase, Stage};
    use hikkoshi_handover::DestinationStage;

    #[test]
    fn an_outage_and_a_killed_engine_are_alarms() {
        let mut seen = running(Mode::Postcopy);
        assert!(alarms(&[&seen]).is_empty());
        let mut now = state();
        now.phase = Phase::Postcopy;
        (now.at_ms, now.missing_pages) = (20_300, Some(38_656));
        now.outages = vec![Outage {
            from_ms: 8_000,
            before_ms: 0,
            to_ms: None,
            until_ms: Some(320_300),
        }];
        seen.state = Some(now);
        assert_eq!(
            alarms(&[&seen]),
            [
                "web: NO LINK to host-b:7000 for 12.3 s, tried for 300.0 s more; the guest may wait \
              for pages"
            ]
        );
        let state = seen.state.as_mut().unwrap();
        (state.stage, state.waiting_pages) = (Stage::Destination(DestinationStage::Running), 1);
        state.outages[0].until_ms = None;
        assert!(
            alarms(&[&seen])[0].ends_with("waiting without a limit; the guest waits for 1 page")
        );
        // It was killed.
        seen.engine = Engine::Gone;
        assert!(alarms(&[&seen]).is_empty());
        seen.unfinished = Some(Unfinished {
            journal: "/run/hikkoshi/destination-5-6.json".into(),
            stage: Stage::Destination(DestinationStage::Running),
            message: "the guest runs here and lacks pages".to_owned(),
            resume: "hikkoshi receive --resume=/run/hikkoshi/destination-5-6.json".into(),
        });
        assert_eq!(
            alarms(&[&seen]),
            [
                "web: NOT FINISHED, and no engine works on it: the guest runs here and lacks pages. \
              Resume it: hikkoshi receive --resume=/run/hikkoshi/destination-5-6.json"
            ]
        );
    }
}
