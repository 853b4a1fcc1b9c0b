//! Finds out that a destination hangs while the source's guest waits for it.
//!
//! Each write of the guest waits for the destination's disk. A destination that does not answer,
//! because its VMM or its storage hangs, or the line has failed without a sign, would stop the
//! guest. So the source ends the connection of a disk on which requests are outstanding and nothing
//! makes progress: then the copy fails, and the guest continues with its own disk.
//!
//! Progress is: an answer, bytes that the link takes, bytes that the destination's kernel has
//! acknowledged. So a slow line makes progress as long as it carries anything. A copy that waits
//! for the limit of the bandwidth has no request outstanding.

use std::time::{Duration, Instant};

use super::connection::Waiting;

/// How long the setup of a connection may make no progress, at most: QEMU does nothing else
/// meanwhile, and the whole guest may wait for it.
const MAX_SETUP: Duration = Duration::from_secs(10);

/// How many times longer [long requests](Waiting::LongRequest) may take: five minutes by default. A
/// flush writes what the destination's kernel keeps in memory, which can be gigabytes.
const LONG_REQUEST_FACTOR: u32 = 15;

/// How long a connection may make no progress whose VMM waits for this. `None`: always.
/// `paused`: the guest is, and waits for every request.
pub(crate) fn patience(timeout: Duration, waiting: Waiting, paused: bool) -> Option<Duration> {
    match waiting {
        Waiting::Nothing | Waiting::Over => None,
        Waiting::Setup => Some(timeout.min(MAX_SETUP)),
        Waiting::LongRequest if !paused => Some(timeout.saturating_mul(LONG_REQUEST_FACTOR)),
        Waiting::Request | Waiting::LongRequest => Some(timeout),
    }
}

/// What changes when something is carried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Bytes that the destination's kernel has acknowledged, if it can be known.
    pub(super) acknowledged: Option<u64>,
}

/// Measures how long nothing has been carried although something should be.
#[derive(Debug)]
pub(super) struct StallTimer {
    timeout: Duration,
    position: Position,
    since: Instant,
}

impl StallTimer {
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        Self {
            timeout,
            position: Position::default(),
            since: now,
        }
    }

    /// Whether the connection has stalled by `now`, and for how long it may. Call it now and then.
    /// `paused`: the guest is.
    pub(super) fn has_stalled(
        &mut self,
        (waiting, paused): (Waiting, bool),
        position: Position,
        now: Instant,
    ) -> Option<Duration> {
        let limit = patience(self.timeout, waiting, paused);
        let limit = limit.filter(|_| position == self.position);
        let Some(limit) = limit else {
            (self.position, self.since) = (position, now);
            return None;
        };
        (now - self.since > limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn at(received: u64, sent: u64, acknowledged: u64) -> Position {
        Position {
            received,
            sent,
            acknowledged: Some(acknowledged),
        }
    }

    /// For how many seconds, up to an hour, nothing was found with this wait.
    fn seconds(waiting: Waiting, paused: bool) -> Option<u64> {
        let begun = Instant::now();
        let mut timer = StallTimer::new(TIMEOUT, begun);
        (0..3600).find(|second| {
            let now = begun + SECOND * u32::try_from(*second).unwrap();
            let wait = (waiting, paused);
            (timer.has_stalled(wait, at(1, 2, 3), now)).is_some()
        })
    }

    #[test]
    fn outstanding_requests_without_progress_are_a_stall() {
        assert_eq!(seconds(Waiting::Request, false), Some(21));
        assert_eq!(seconds(Waiting::Setup, false), Some(11));
        assert_eq!(seconds(Waiting::LongRequest, false), Some(301));
        let paused = seconds(Waiting::LongRequest, true);
        assert_eq!(paused, Some(21), "the paused guest waits for a flush");
    }

    #[test]
    fn any_timeout_is_possible() {
        let begun = Instant::now();
        let mut timer = StallTimer::new(Duration::MAX, begun);
        let wait = (Waiting::LongRequest, false);
        for seconds in [0, 100] {
            let now = begun + SECOND * seconds;
            assert_eq!(timer.has_stalled(wait, at(1, 2, 3), now), None);
        }
    }

    #[test]
    fn an_idle_connection_does_not_stall() {
        assert_eq!(seconds(Waiting::Nothing, true), None);
        assert_eq!(seconds(Waiting::Over, true), None);
    }

    #[test]
    fn a_byte_in_either_direction_is_progress() {
        let begun = Instant::now();
        let mut timer = StallTimer::new(TIMEOUT, begun);
        let mut now = begun;
        let mut position = at(0, 0, 0);
        for step in 0..30 {
            match step % 3 {
                0 => position.received += 1,
                1 => position.sent += 1,
                _ => position.acknowledged = position.acknowledged.map(|bytes| bytes + 1),
            }
            now += TIMEOUT - SECOND;
            let wait = (Waiting::Request, false);
            assert_eq!(timer.has_stalled(wait, position, now), None);
        }
        now += TIMEOUT + SECOND;
        let wait = (Waiting::Request, false);
        assert_eq!(timer.has_stalled(wait, position, now), Some(TIMEOUT));
    }

    #[test]
    fn a_request_after_a_long_idle_time_has_the_whole_time() {
        let begun = Instant::now();
        let mut timer = StallTimer::new(TIMEOUT, begun);
        let position = at(5, 5, 5);
        let later = begun + 100 * TIMEOUT;
        let mut at_time = |waiting, now| timer.has_stalled((waiting, false), position, now);
        assert_eq!(at_time(Waiting::Nothing, later), None);
        assert_eq!(at_time(Waiting::Request, later + SECOND), None);
        assert_eq!(
            at_time(Waiting::Request, later + TIMEOUT + SECOND),
            Some(TIMEOUT)
        );
    }
}
