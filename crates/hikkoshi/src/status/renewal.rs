//! When the recording of a migration that runs is stored again. If the engine is killed, the file
//! has what happened until then.

use std::time::{Duration, Instant};

use hikkoshi_account::{GuestAt, Phase, Stage, State};

/// The longest time between two times, unless writing takes long.
const PERIOD: Duration = Duration::from_secs(5);

/// Writing may take one part in so many of the time.
const SHARE: u32 = 100;

/// How long a change is not stored while the guest is paused: the guest must not wait for a CPU
/// because of it. If the guest is paused for longer, something has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// What is stored at once when it changes.
type Place = (Phase, Stage, GuestAt);

/// Says when the recording must be stored again.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// When it is due again if nothing changes. `None`: nothing was stored yet.
    next: Option<Instant>,
    stored: Option<Place>,
    paused: Option<Instant>,
}

impl Renewal {
    /// Whether the recording with this state must be stored now.
    pub(super) fn is_due(&mut self, state: &State, now: Instant) -> bool {
        if state.guest_at == GuestAt::Paused {
            let paused = *self.paused.get_or_insert(now);
            if now.saturating_duration_since(paused) < PAUSE {
                return false;
            }
        } else {
            self.paused = None;
        }
        self.next.is_none_or(|next| now >= next) || self.stored != Some(place(state))
    }

    /// The recording with this state was stored, or storing it failed.
    pub(super) fn stored(&mut self, state: &State, begun: Instant, ended: Instant) {
        let took = ended.saturating_duration_since(begun);
        self.next = Some(ended + PERIOD.max(took.saturating_mul(SHARE)));
        self.stored = Some(place(state));
    }
}

fn place(state: &State) -> Place {
    (state.phase, state.stage, state.guest_at)
}

#[cfg(test)]
mod tests {
    use super::super::sampler::tests::precopy_state;
    use super::*;
    use hikkoshi_handover::SourceStage;

    const TICK: Duration = Duration::from_millis(100);

    #[test]
    fn changes_are_stored_at_once_and_the_rest_now_and_then() {
        let mut renewal = Renewal::default();
        let mut now = Instant::now();
        let mut state = precopy_state();
        assert!(renewal.is_due(&state, now));
        renewal.stored(&state, now, now);
        let mut times = 0;
        for _ in 0..100 {
            now += TICK;
            if renewal.is_due(&state, now) {
                times += 1;
                renewal.stored(&state, now, now);
            }
        }
        assert_eq!(times, 2, "in 10 s");
        state.stage = Stage::Source(SourceStage::HandedOver);
        assert!(renewal.is_due(&state, now));
        renewal.stored(&state, now, now);
        assert!(!renewal.is_due(&state, now));
    }

    #[test]
    fn nothing_is_stored_in_a_short_switchover() {
        let mut renewal = Renewal::default();
        let mut now = Instant::now();
        let mut state = precopy_state();
        renewal.stored(&state, now, now);
        state.phase = Phase::Switchover;
        state.guest_at = GuestAt::Paused;
        now += PERIOD;
        assert!(!renewal.is_due(&state, now));
        // The guest runs again.
        state.guest_at = GuestAt::Destination;
        assert!(renewal.is_due(&state, now + TICK));
        renewal.stored(&state, now, now);
        // A guest that stays paused.
        state.guest_at = GuestAt::Paused;
        assert!(!renewal.is_due(&state, now));
        assert!(renewal.is_due(&state, now + PAUSE));
    }

    #[test]
    fn storing_takes_a_small_part_of_the_time() {
        let mut renewal = Renewal::default();
        let now = Instant::now();
        let state = precopy_state();
        let ended = now + Duration::from_millis(300);
        renewal.stored(&state, now, ended);
        assert!(!renewal.is_due(&state, ended + Duration::from_secs(29)));
        assert!(renewal.is_due(&state, ended + Duration::from_secs(30)));
    }
}
