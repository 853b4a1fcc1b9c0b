//! What a background link can carry, found out without filling queues.
//!
//! Time is cut into intervals of some milliseconds. If the round trip in an
//! interval was never as short as the empty path's, a queue stood somewhere
//! all the time; then the bytes delivered are exactly what there is to have,
//! and the pace is set a little below that, so that the queue drains. If none
//! stood, the pace is raised a little, more and more the longer none stands.
//! So the queue is empty most of the time and the line full all the same.
//! Delay as the signal is Vegas's idea (Brakmo and Peterson, 1995), and
//! TIMELY's to set a pace by it (Mittal et al., SIGCOMM 2015).
//!
//! The largest recent delivery rate, BBR's measure, would not do: a token
//! bucket (`tc tbf`, a cloud provider's shaper) saves up what was not used and
//! lets more through than it can sustain, without any queue, until the bucket
//! is empty and there is one.

use std::time::{Duration, Instant};

/// The shortest interval: long beside a token bucket's and a processor's
/// fits.
const INTERVAL: Duration = Duration::from_millis(4);

/// Looks that an interval needs to tell something.
const LOOKS: u32 = 4;

/// How much longer than the empty path's a round trip must be, in seconds, to
/// tell of a queue…
const STANDING: f64 = 60e-6;

/// … and at least this share of the empty path's.
const STANDING_SHARE: f64 = 0.25;

/// The pace beside what is delivered through a standing queue.
const BELOW: f64 = 0.93;

/// Intervals whose largest delivery counts: in some a thread had to wait for
/// its processor, which says nothing about the line.
const RECENT: usize = 8;

/// A queue that long, in seconds, that stays for more than [`RECENT`] intervals
/// is drained at half the pace, for up to [`HURRY`].
const LONG: f64 = 1e-3;

/// See [`LONG`].
const HURRY: usize = 8 * RECENT;

/// How the pace grows in an interval without a queue…
const GROWTH: f64 = 1.02;

/// … and before the first queue or after [`PATIENCE`] intervals without one.
const FAST_GROWTH: f64 = 1.25;

/// See [`FAST_GROWTH`].
const PATIENCE: usize = 32;

/// The pace is no more than so many times what is delivered: growth that has
/// no effect tells nothing.
const AHEAD: f64 = 2.0;

/// The least pace, bytes a second: something must be sent to learn anything.
const LEAST: f64 = 100e3;

/// How often the pace is halved for one interval, on all links of a migration
/// at once, so that every queue of ours drains and the round trip of the empty
/// path shows, whatever it has become.
const DRAINING: Duration = Duration::from_millis(512);

/// … and no more often than so many round trips.
const DRAINING_TRIPS: f64 = 64.0;

/// One interval's observations.
#[derive(Debug, Clone, Copy)]
struct Interval {
    begun: Instant,
    acked: u64,
    looks: u32,
    shortest: f64,
}

/// What is known of one link's capacity.
#[derive(Debug)]
pub(super) struct Capacity {
    /// The same for all links of a migration.
    zero: Instant,
    /// The empty path's round trip, seconds, as of the last draining, and the
    /// shortest since.
    empty: f64,
    shortest: f64,
    /// When to drain again, and whether the link does.
    drain_at: Instant,
    draining: bool,
    /// The shortest round trip of the interval before.
    draining_from: f64,
    /// The line has become slower, and much is queued.
    hurry: bool,
    /// None: the next look begins one.
    interval: Option<Interval>,
    /// Bytes a second.
    pace: Option<f64>,
    /// What the last intervals delivered, and the very last, bytes a second.
    delivered: [f64; RECENT],
    last: f64,
    /// Intervals so far, and in a row with and without a queue.
    intervals: usize,
    standing: usize,
    clear: usize,
    /// A queue has been seen.
    seen: bool,
}

impl Capacity {
    /// Of a link of which nothing is known. `zero` is a moment that all links
    /// of a migration agree on.
    pub(super) fn new(zero: Instant, now: Instant) -> Self {
        let mut capacity = Self {
            zero,
            empty: f64::INFINITY,
            shortest: f64::INFINITY,
            drain_at: now,
            draining: false,
            draining_from: f64::INFINITY,
            hurry: false,
            interval: None,
            pace: None,
            delivered: [0.0; RECENT],
            last: LEAST,
            intervals: 0,
            standing: 0,
            clear: 0,
            seen: false,
        };
        capacity.drain_at = capacity.next_draining(now);
        capacity
    }

    /// When to drain next: rarely on a long path, but on all links of it at
    /// the same moments.
    fn next_draining(&self, now: Instant) -> Instant {
        let least = self.shortest.min(16.0) * DRAINING_TRIPS;
        let mut period = DRAINING.as_secs_f64();
        while self.shortest.is_finite() && period < least {
            period *= 2.0;
        }
        let passed = now.saturating_duration_since(self.zero).as_secs_f64();
        self.zero + Duration::from_secs_f64(((passed / period).floor() + 1.0) * period)
    }

    /// The pace that keeps the line full and its queue empty, in bytes a
    /// second; none while no queue has been seen.
    pub(super) fn pace(&self) -> Option<f64> {
        let pace = self.pace.filter(|_| self.seen)?;
        if self.draining || self.hurry {
            return Some(pace.min(self.last) / 2.0);
        }
        Some(pace)
    }

    /// Whether the queue is made to drain at present.
    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// What the line is believed to carry, in bytes a second, and how long it
    /// takes there and back when it is empty, in seconds.
    pub(super) fn known(&self) -> Option<(f64, f64)> {
        Some((self.pace?.max(self.recent()), self.empty))
    }

    /// The largest recent delivery, bytes a second.
    fn recent(&self) -> f64 {
        self.delivered.iter().copied().fold(0.0, f64::max)
    }

    /// Nothing was sent for a while, which says nothing about the link.
    pub(super) fn idle(&mut self) {
        self.interval = None;
    }

    /// The peer's kernel has acknowledged `acked` bytes in all, and the round
    /// trip is `round_trip` seconds at present; `all`: nothing is on its way.
    pub(super) fn look(&mut self, acked: u64, all: bool, round_trip: f64, now: Instant) {
        if round_trip <= 0.0 {
            return;
        }
        self.empty = self.empty.min(round_trip);
        self.shortest = self.shortest.min(round_trip);
        let Some(interval) = &mut self.interval else {
            self.interval = Some(Interval {
                begun: now,
                acked,
                looks: 0,
                shortest: f64::INFINITY,
            });
            return;
        };
        interval.looks += 1;
        interval.shortest = interval.shortest.min(round_trip);
        // A slow thread sends too little to fill a queue, whatever the round
        // trip seems to be: acknowledgements wait for processors, too.
        if all {
            interval.shortest = 0.0;
        }
        let length = now - interval.begun;
        let trips = Duration::from_secs_f64(self.empty.min(1.0) * 2.0);
        if length < INTERVAL.max(trips) || interval.looks < LOOKS {
            return;
        }
        let ended = *interval;
        *interval = Interval {
            begun: now,
            acked,
            looks: 0,
            shortest: f64::INFINITY,
        };
        #[allow(clippy::cast_precision_loss)]
        let bytes = acked.saturating_sub(ended.acked) as f64;
        if self.draining {
            // As long as it becomes shorter, there was a queue to drain.
            if ended.shortest > self.draining_from * 0.8 {
                self.draining = false;
                self.standing = 0;
                // What was known before is old.
                self.empty = std::mem::replace(&mut self.shortest, f64::INFINITY);
            }
            self.draining_from = ended.shortest;
            return;
        }
        self.learn(bytes / length.as_secs_f64(), ended.shortest);
        if now >= self.drain_at {
            self.draining = true;
            self.draining_from = f64::INFINITY;
            self.shortest = f64::INFINITY;
            self.drain_at = self.next_draining(now);
        }
    }

    fn learn(&mut self, delivered: f64, shortest: f64) {
        let delivered = delivered.max(LEAST);
        self.last = delivered;
        self.intervals += 1;
        let at = self.intervals % RECENT;
        if let Some(slot) = self.delivered.get_mut(at) {
            *slot = delivered;
        }
        let recent = self.recent();
        if shortest > self.empty + STANDING.max(self.empty * STANDING_SHARE) {
            self.clear = 0;
            self.seen = true;
            self.standing += 1;
            // From here on the queue drains. If it does not, the line may
            // carry much less than it did lately; look once more when that is
            // forgotten. And if it still does not, it is not a queue of ours,
            // or the path is longer now: slowing down more would not help. The
            // next draining will tell.
            if self.standing == 1 {
                self.pace = Some((delivered * BELOW).max(recent / 2.0));
            } else if self.standing == RECENT + 1 {
                self.pace = Some(recent * BELOW);
                self.hurry = shortest > self.empty + LONG;
            } else if self.standing > HURRY {
                self.hurry = false;
            }
        } else {
            self.standing = 0;
            self.hurry = false;
            self.clear += 1;
            let growth = if self.clear > PATIENCE || !self.seen {
                FAST_GROWTH
            } else {
                GROWTH
            };
            let pace = self.pace.unwrap_or(delivered);
            self.pace = Some((pace * growth).min(recent * AHEAD).max(pace.min(recent)));
            // Long without a queue: the pace bounds nothing.
            self.seen &= self.clear <= 8 * PATIENCE;
        }
    }
}
