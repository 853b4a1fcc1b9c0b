//! Estimates the capacity of a background link without filling queues.
//!
//! Time is divided into intervals of some milliseconds. If no round trip in an interval was as
//! short as on the empty path, there was a queue all the time. Then the delivered bytes are the
//! line's capacity, and the pace is set slightly below it, so that the queue drains. Without a
//! queue the pace grows slowly, and faster after a long time without one. So the queue is empty
//! most of the time and the line is still full. Delay as the signal is from Vegas (Brakmo and
//! Peterson, 1995), a pace derived from it from TIMELY (Mittal et al., SIGCOMM 2015).
//!
//! The largest recent delivery rate, as in BBR, does not work: a token bucket (`tc tbf`, a cloud
//! provider's shaper) saves unused capacity and passes more than its rate, without any queue, until
//! the bucket is empty and a queue builds up.

use std::time::{Duration, Instant};

/// The shortest interval: longer than the jitter of a token bucket and of a processor.
const INTERVAL: Duration = Duration::from_millis(4);

/// TCP_INFO samples that an interval needs.
const MIN_SAMPLES: u32 = 4;

/// How much longer than on the empty path a round trip must be, in seconds, to count as a queue…
const QUEUE_DELAY: f64 = 60e-6;

/// … and at least this share of the empty path's round trip.
const QUEUE_DELAY_SHARE: f64 = 0.25;

/// The pace relative to the rate that is delivered through a queue.
const DRAINING_FACTOR: f64 = 0.93;

/// How many intervals the largest delivery rate covers: in some of them a thread waits for its
/// processor, which is not the line's limit.
const RECENT: usize = 8;

/// A queue this long, in seconds, that lasts for more than [`RECENT`] intervals is drained at half
/// the pace, for up to [`FAST_DRAINING`] intervals.
const LONG_QUEUE: f64 = 1e-3;

/// See [`LONG_QUEUE`].
const FAST_DRAINING: usize = 8 * RECENT;

/// The growth of the pace in an interval without a queue…
const GROWTH: f64 = 1.02;

/// … and before the first queue, or after [`QUIET`] intervals without one.
const FAST_GROWTH: f64 = 1.25;

/// See [`FAST_GROWTH`].
const QUIET: usize = 32;

/// The pace is at most this many times the delivered rate: beyond that, growth has no effect.
const MAX_OVER_DELIVERED: f64 = 2.0;

/// The time in which the rate of the line is forgotten by half: longer than requested pages fill it
/// without a pause.
const LINE_HALF_LIFE: f64 = 15.0;

/// The lowest pace, in bytes a second: without sent data nothing can be measured.
const MIN_PACE: f64 = 100e3;

/// How often the pace is halved for one interval, on all links of a migration at once. Then all
/// queues of this migration drain, and the round trip of the empty path can be measured again.
const DRAINING: Duration = Duration::from_millis(512);

/// … but at most once in this many round trips.
const DRAINING_TRIPS: f64 = 64.0;

/// The measurements of one interval.
#[derive(Debug, Clone, Copy)]
struct Interval {
    start: Instant,
    acked: u64,
    samples: u32,
    shortest: f64,
}

/// The estimate of one link's capacity.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// A common point in time for all links of a migration.
    epoch: Instant,
    /// The empty path's round trip in seconds, from the last draining, and the shortest since.
    empty: f64,
    shortest: f64,
    /// When to drain again, and whether the link drains now.
    drain_at: Instant,
    draining: bool,
    /// The shortest round trip of the previous interval.
    draining_from: f64,
    /// The line has become slower, and there is a long queue.
    fast_draining: bool,
    /// `None`: the next sample begins one.
    interval: Option<Interval>,
    /// In bytes a second.
    pace: Option<f64>,
    /// The delivered rates of the recent intervals and of the last one, in bytes a second.
    delivered: [f64; RECENT],
    last: f64,
    /// The number of intervals, and of successive ones with and without a queue.
    intervals: usize,
    standing: usize,
    clear: usize,
    /// There was a queue.
    had_queue: bool,
    /// The largest rate that was delivered while data was queued, in bytes a second, slowly
    /// forgotten: what the line carries, also while others fill it.
    line: f64,
}

impl Capacity {
    /// A new link without measurements. `epoch` is the same for all links of a migration.
    pub(crate) fn new(epoch: Instant, now: Instant) -> Self {
        let mut capacity = Self {
            epoch,
            empty: f64::INFINITY,
            shortest: f64::INFINITY,
            drain_at: now,
            draining: false,
            draining_from: f64::INFINITY,
            fast_draining: false,
            interval: None,
            pace: None,
            delivered: [0.0; RECENT],
            last: MIN_PACE,
            intervals: 0,
            standing: 0,
            clear: 0,
            had_queue: false,
            line: 0.0,
        };
        capacity.drain_at = capacity.next_draining(now);
        capacity
    }

    /// When to drain next: rarely on a long path, but at the same times on all links.
    fn next_draining(&self, now: Instant) -> Instant {
        let least = self.shortest.min(16.0) * DRAINING_TRIPS;
        let mut period = DRAINING.as_secs_f64();
        while self.shortest.is_finite() && period < least {
            period *= 2.0;
        }
        let passed = now.saturating_duration_since(self.epoch).as_secs_f64();
        self.epoch + Duration::from_secs_f64(((passed / period).floor() + 1.0) * period)
    }

    /// The pace that keeps the line full and its queue empty, in bytes a second; `None` until there
    /// was a queue.
    pub(crate) fn pace(&self) -> Option<f64> {
        let pace = self.pace.filter(|_| self.had_queue)?;
        if self.draining || self.fast_draining {
            return Some(pace.min(self.last) / 2.0);
        }
        Some(pace)
    }

    /// Whether the link drains its queue now.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// The estimated capacity of the line in bytes a second, and the round trip of the empty path
    /// in seconds.
    pub(crate) fn estimate(&self) -> Option<(f64, f64)> {
        Some((self.pace?.max(self.recent()), self.empty))
    }

    /// What the line carries, in bytes a second, as far as it was seen.
    pub(crate) fn line(&self) -> f64 {
        self.line
    }

    /// The largest recent delivery rate, in bytes a second.
    fn recent(&self) -> f64 {
        self.delivered.iter().copied().fold(0.0, f64::max)
    }

    /// Discards the interval: nothing was sent for some time, so it has no valid measurement.
    pub(crate) fn idle(&mut self) {
        self.interval = None;
    }

    /// Accounts for a TCP_INFO sample: the peer's kernel has acknowledged `acked` bytes in total,
    /// and the round trip now takes `round_trip` seconds. `all`: nothing is in flight.
    pub(crate) fn on_sample(&mut self, acked: u64, all: bool, round_trip: f64, now: Instant) {
        if round_trip <= 0.0 {
            return;
        }
        self.empty = self.empty.min(round_trip);
        self.shortest = self.shortest.min(round_trip);
        let Some(interval) = &mut self.interval else {
            self.interval = Some(Interval {
                start: now,
                acked,
                samples: 0,
                shortest: f64::INFINITY,
            });
            return;
        };
        interval.samples += 1;
        interval.shortest = interval.shortest.min(round_trip);
        // A slow thread sends too little to fill a queue, even if the round trip looks long:
        // acknowledgements also wait for processors.
        if all {
            interval.shortest = 0.0;
        }
        let length = now - interval.start;
        let trips = Duration::from_secs_f64(self.empty.min(1.0) * 2.0);
        if length < INTERVAL.max(trips) || interval.samples < MIN_SAMPLES {
            return;
        }
        let ended = *interval;
        *interval = Interval {
            start: now,
            acked,
            samples: 0,
            shortest: f64::INFINITY,
        };
        #[allow(clippy::cast_precision_loss)]
        let bytes = acked.saturating_sub(ended.acked) as f64;
        if self.draining {
            // While the round trip becomes shorter, a queue drains.
            if ended.shortest > self.draining_from * 0.8 {
                self.draining = false;
                self.standing = 0;
                // The old value is out of date.
                self.empty = std::mem::replace(&mut self.shortest, f64::INFINITY);
            }
            self.draining_from = ended.shortest;
            return;
        }
        self.line *= (-length.as_secs_f64() / LINE_HALF_LIFE).exp2();
        self.update(bytes / length.as_secs_f64(), ended.shortest);
        if now >= self.drain_at {
            self.draining = true;
            self.draining_from = f64::INFINITY;
            self.shortest = f64::INFINITY;
            self.drain_at = self.next_draining(now);
        }
    }

    fn update(&mut self, delivered: f64, shortest: f64) {
        let delivered = delivered.max(MIN_PACE);
        self.last = delivered;
        self.intervals += 1;
        let at = self.intervals % RECENT;
        if let Some(slot) = self.delivered.get_mut(at) {
            *slot = delivered;
        }
        let recent = self.recent();
        if shortest > self.empty + QUEUE_DELAY.max(self.empty * QUEUE_DELAY_SHARE) {
            self.clear = 0;
            self.had_queue = true;
            self.line = self.line.max(delivered);
            self.standing += 1;
            // From here on the queue drains. If it does not, the line may carry much less than
            // before: set the pace again when the old intervals are no longer among the recent
            // ones. If the queue still does not drain, it belongs to other traffic, or the path is
            // longer now: a lower pace would not help. The next draining measures the path.
            if self.standing == 1 {
                self.pace = Some((delivered * DRAINING_FACTOR).max(recent / 2.0));
            } else if self.standing == RECENT + 1 {
                self.pace = Some(recent * DRAINING_FACTOR);
                self.fast_draining = shortest > self.empty + LONG_QUEUE;
            } else if self.standing > FAST_DRAINING {
                self.fast_draining = false;
            }
        } else {
            self.standing = 0;
            self.fast_draining = false;
            self.clear += 1;
            let growth = if self.clear > QUIET || !self.had_queue {
                FAST_GROWTH
            } else {
                GROWTH
            };
            let pace = self.pace.unwrap_or(delivered);
            self.pace = Some(
                (pace * growth)
                    .min(recent * MAX_OVER_DELIVERED)
                    .max(pace.min(recent)),
            );
            // After a long time without a queue, the pace is not a limit.
            self.had_queue &= self.clear <= 8 * QUIET;
        }
    }
}
