//! How many background bytes may be on their way at once.
//!
//! Whatever is in flight on a background link stands before an urgent page in
//! the network's queue. So the bytes in flight are bounded near the link's
//! bandwidth-delay product, which is measured all the time from the peer's
//! acknowledgements: the largest recent delivery rate times the smallest
//! recent round-trip time, as congestion control by delivery rate does it
//! (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue
//! 14/5, 2016).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The bound in pre-copy, where nobody waits for a page: enough to fill a
/// 10 Gbit/s link with 3 ms of delay.
const BULK_LIMIT: u64 = 4 << 20;

/// The smallest bound in post-copy: two pieces, so that one can be applied
/// while the next is on the wire.
const MIN_LIMIT: u64 = 64 << 10;

/// The bound when post-copy begins and nothing has been measured.
const FIRST_LIMIT: u64 = 128 << 10;

/// How many bandwidth-delay products may be in flight: above 1 so that a
/// growing rate can be found.
const GAIN: f64 = 1.25;

/// How long a measured rate counts.
const RATE_MEMORY: Duration = Duration::from_millis(500);

/// How long a measured round trip counts. Then the link is left to run empty
/// once, so that the next measurement holds no queue of our own.
const ROUND_TRIP_MEMORY: Duration = Duration::from_secs(2);

/// The largest value within the last [`RATE_MEMORY`].
#[derive(Debug, Default)]
struct Largest(VecDeque<(Instant, f64)>);

impl Largest {
    /// Adds a sample and gives the largest one.
    fn add(&mut self, now: Instant, value: f64) -> f64 {
        while self.0.back().is_some_and(|&(_, v)| v <= value) {
            self.0.pop_back();
        }
        self.0.push_back((now, value));
        while self.0.front().is_some_and(|&(t, _)| now - t > RATE_MEMORY) {
            self.0.pop_front();
        }
        self.0.front().map_or(value, |&(_, v)| v)
    }
}

/// The smallest round trip since the link was last empty on purpose.
#[derive(Debug)]
struct RoundTrip {
    smallest: f64,
    since: Instant,
}

/// A piece on its way: the link's byte count after it, its size, and at its departure
/// the time, the bytes then acknowledged and when they were.
#[derive(Debug)]
struct Piece {
    end: u64,
    bytes: u64,
    left: Instant,
    acked: u64,
    acked_at: Instant,
}

/// The flow control of one background link.
#[derive(Debug)]
pub struct Window {
    sent: u64,
    acked: u64,
    acked_at: Instant,
    limit: u64,
    adaptive: bool,
    pieces: VecDeque<Piece>,
    round_trip: RoundTrip,
    rate: Largest,
    /// The link is left to run empty.
    draining: bool,
}

impl Window {
    /// A link with nothing sent yet, in pre-copy.
    pub fn new(now: Instant) -> Self {
        Self {
            sent: 0,
            acked: 0,
            acked_at: now,
            limit: BULK_LIMIT,
            adaptive: false,
            pieces: VecDeque::new(),
            round_trip: RoundTrip {
                smallest: f64::INFINITY,
                since: now,
            },
            rate: Largest::default(),
            draining: false,
        }
    }

    /// From now on somebody may wait for a page: bound what is in flight.
    pub fn bound(&mut self) {
        self.adaptive = true;
        self.limit = FIRST_LIMIT;
        self.rate = Largest::default();
        self.draining = true;
    }

    /// Bytes sent on the link so far, headers included.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that the peer has not applied yet.
    pub fn in_flight(&self) -> u64 {
        self.sent - self.acked
    }

    /// The bound in force, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether the next piece of `bytes` may leave. An idle link always takes
    /// one.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.in_flight() == 0 || (!self.draining && self.in_flight() + bytes <= self.limit)
    }

    /// `bytes` more were sent.
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        if self.in_flight() == 0 {
            // The pause before this piece says nothing about the link's rate.
            self.acked_at = now;
            if self.draining {
                self.draining = false;
                self.round_trip = RoundTrip {
                    smallest: f64::INFINITY,
                    since: now,
                };
            }
        }
        self.sent += bytes;
        self.pieces.push_back(Piece {
            end: self.sent,
            bytes,
            left: now,
            acked: self.acked,
            acked_at: self.acked_at,
        });
    }

    /// The peer has applied `total` bytes since the link began; `false` when
    /// that cannot be: more than was sent, or less than it said before.
    #[must_use]
    pub fn on_ack(&mut self, total: u64, now: Instant) -> bool {
        if total > self.sent || total < self.acked {
            return false;
        }
        self.acked = total;
        self.acked_at = now;
        let mut newest = None;
        while self.pieces.front().is_some_and(|p| p.end <= total) {
            newest = self.pieces.pop_front();
        }
        if let Some(piece) = newest.filter(|_| self.adaptive) {
            self.measure(&piece, now);
        }
        true
    }

    /// Learns from an acknowledged piece.
    #[allow(clippy::cast_precision_loss)]
    fn measure(&mut self, piece: &Piece, now: Instant) {
        let round_trip = (now - piece.left).as_secs_f64();
        let interval = (now - piece.acked_at).as_secs_f64();
        if round_trip <= 0.0 || interval <= 0.0 {
            return;
        }
        let rate = self
            .rate
            .add(now, (self.acked - piece.acked) as f64 / interval);
        self.round_trip.smallest = self.round_trip.smallest.min(round_trip);
        self.draining |= now - self.round_trip.since > ROUND_TRIP_MEMORY;
        // Positive, and `as` saturates.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let product = (rate * self.round_trip.smallest * GAIN) as u64;
        // One piece more: a product that is not a whole number of pieces
        // would otherwise never be exceeded, and no growth ever seen.
        self.limit = (product + piece.bytes).clamp(MIN_LIMIT, BULK_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of `rate` bytes a second and a fixed delay, run for `time`:
    /// what the window settles at, and what the link carried.
    fn run(rate: f64, delay: Duration, time: Duration) -> (u64, f64) {
        const PIECE: u64 = 32 << 10;
        let begin = Instant::now();
        let mut now = begin;
        let mut window = Window::new(now);
        window.bound();
        let mut free = now; // when the link has put the last piece on the wire
        let mut arrivals: VecDeque<(Instant, u64)> = VecDeque::new();
        while now - begin < time {
            while window.has_room(PIECE) {
                window.on_sent(PIECE, now);
                free = free.max(now) + Duration::from_secs_f64(PIECE as f64 / rate);
                arrivals.push_back((free + delay, window.sent()));
            }
            let (at, total) = arrivals.pop_front().unwrap();
            now = at;
            assert!(window.on_ack(total, now));
        }
        (
            window.limit(),
            window.acked as f64 / (now - begin).as_secs_f64(),
        )
    }

    #[test]
    fn settles_near_the_bandwidth_delay_product() {
        let rate = 1.25e9;
        let delay = Duration::from_micros(400);
        let (limit, carried) = run(rate, delay, Duration::from_secs(3));
        let product = rate * delay.as_secs_f64();
        assert!(limit as f64 > product, "{limit} is below {product}");
        assert!(
            (limit as f64) < 2.0 * product,
            "{limit} is far above {product}"
        );
        assert!(carried > 0.9 * rate, "carried only {carried}");
    }

    #[test]
    fn a_slow_short_link_has_the_smallest_window_and_is_full() {
        let rate = 125e6;
        let (limit, carried) = run(rate, Duration::from_micros(50), Duration::from_secs(3));
        assert!(limit <= 128 << 10, "{limit}");
        assert!(carried > 0.9 * rate, "carried only {carried}");
    }

    #[test]
    fn an_idle_link_takes_a_piece_of_any_size() {
        assert!(Window::new(Instant::now()).has_room(1 << 40));
    }

    #[test]
    fn an_impossible_acknowledgement_is_noticed() {
        let now = Instant::now();
        let mut window = Window::new(now);
        window.on_sent(100, now);
        assert!(!window.on_ack(101, now));
        assert!(window.on_ack(60, now));
        assert!(!window.on_ack(59, now));
    }
}
