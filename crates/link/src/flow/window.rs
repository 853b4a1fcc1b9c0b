//! How many background bytes may be on their way, and how fast they follow.
//!
//! Whatever of a background link is in the network stands before an urgent
//! page in its queues. So in post-copy a link keeps to a pace just below what
//! the line carries ([`Capacity`]), in pieces that are short on the wire, and
//! what the kernel has been given but the peer's kernel has not got is bounded
//! near the bandwidth-delay product: should the line become slower, no more
//! than that can queue up.
//!
//! The kernel keeps the pace and tells the round trip: a thread has to wait
//! for a processor now and then, for longer than a queue lasts.

use std::time::{Duration, Instant};

use super::capacity::Capacity;

/// What the peer may have received and not applied, in pre-copy: the only
/// bound, and above what the kernel puts on its way by itself.
const BULK_LIMIT: u64 = 16 << 20;

/// … and in post-copy, for all links together, or so many bandwidth-delay
/// products of each if that is more.
const APPLYING_LIMIT: u64 = 4 << 20;

/// See [`APPLYING_LIMIT`].
const APPLYING_TRIPS: f64 = 2.0;

/// The bound in post-copy before anything has been measured.
const FIRST_LIMIT: u64 = 128 << 10;

/// The bound for all links together on sockets that have nothing to measure:
/// what 10 ms of a 1 Gbit/s line hold, should there be a tunnel behind them. A
/// quarter of it while somebody waits for pages.
const BLIND_LIMIT: u64 = 1 << 20;

/// Bandwidth-delay products that may be on their way: above 1 so that a
/// growing pace can be kept.
const GAIN: f64 = 1.25;

/// What else may be with the kernel, in seconds of the line's time: what it
/// sends while the thread waits for its processor. The kernel keeps it back
/// from the network while somebody waits for pages.
const STOCK: f64 = 1e-3;

/// … and at least so many bytes, over all links: on a busy machine a thread
/// waits for some milliseconds.
const LEAST_STOCK: u64 = 256 << 10;

/// … of which so much is left while somebody waits for pages: whoever asks for
/// a page that is among them waits for all before it.
const PRESSING_STOCK: f64 = 0.25;

/// How long a piece may take on the wire, in seconds: while somebody
/// waits for pages, and while nobody does.
const PIECE_TIME: (f64, f64) = (66e-6, 200e-6);

/// The smallest piece: a page. The largest: what a core handles in some ten
/// microseconds.
const PIECES: (u64, u64) = (4 << 10, 32 << 10);

/// A pause that long with nothing on its way says nothing about the line.
const IDLE: Duration = Duration::from_millis(1);

/// What a piece has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing.
    Not,
    /// The peer's next acknowledgement.
    Acknowledgement,
    /// The kernel, which needs so long to get rid of what it has.
    For(Duration),
}

/// The flow control of one background link.
#[derive(Debug)]
pub(super) struct Window {
    /// Bytes given to the kernel, got by the peer's kernel (never more than
    /// sent), and applied by the peer.
    sent: u64,
    got: u64,
    applied: u64,
    /// Bytes that the kernel counts and this does not.
    offset: u64,
    /// When something was sent or got last.
    active: Instant,
    /// Background links of this migration.
    links: u64,
    /// In post-copy.
    capacity: Option<Capacity>,
    /// In post-copy, where the kernel has nothing to tell.
    blind: bool,
    /// Somebody waits for pages.
    pressing: bool,
}

impl Window {
    /// A link with nothing sent yet, in pre-copy.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            sent: 0,
            got: 0,
            applied: 0,
            offset: 0,
            active: now,
            links: 1,
            capacity: None,
            blind: false,
            pressing: false,
        }
    }

    /// From now on somebody may wait for a page. The link is one of `links`,
    /// `zero` a moment that all of them agree on.
    pub(super) fn bound(&mut self, zero: Instant, links: u64, now: Instant) {
        self.links = links.max(1);
        self.capacity = Some(Capacity::new(zero, now));
    }

    /// The kernel does not tell how the connection fares (a unix socket).
    pub(super) fn go_blind(&mut self) {
        self.capacity = None;
        self.blind = true;
    }

    /// Whether somebody waits for pages at present.
    pub(super) fn press(&mut self, pressing: bool) {
        self.pressing = pressing;
    }

    /// Bytes sent on the link so far, headers included.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that the peer has not applied yet.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.applied
    }

    /// The pace for the kernel to keep, in bytes a second; none: as fast as it
    /// goes, while nobody waits for pages.
    pub(super) fn pace(&self) -> Option<f64> {
        let capacity = self.capacity.as_ref()?;
        capacity
            .pace()
            .filter(|_| self.pressing || capacity.is_draining())
    }

    /// How large a piece should be, in bytes: a power of two of pages.
    // Positive, and `as` saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn piece(&self) -> u64 {
        let (smallest, largest) = PIECES;
        let Some(capacity) = &self.capacity else {
            return largest;
        };
        let (rate, _) = capacity.known().unwrap_or_default();
        let (pressing, calm) = PIECE_TIME;
        let time = if self.pressing { pressing } else { calm };
        1 << ((rate * time) as u64).clamp(smallest, largest).ilog2()
    }

    /// What the next piece of `bytes` has to wait for.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn wait(&self, bytes: u64) -> Wait {
        if self.in_flight() == 0 {
            return Wait::Not;
        }
        let applying = match &self.capacity {
            None if self.blind && self.pressing => BLIND_LIMIT / 4,
            None if self.blind => BLIND_LIMIT,
            None => BULK_LIMIT,
            Some(capacity) => match capacity.known() {
                None => FIRST_LIMIT,
                Some((rate, empty)) => {
                    let mut stock = (rate * STOCK).max((LEAST_STOCK / self.links) as f64);
                    if self.pressing {
                        stock *= PRESSING_STOCK;
                    }
                    let limit = (rate * empty * GAIN + stock) as u64 + 2 * self.piece();
                    let kernel = self.sent - self.got + bytes;
                    if kernel > limit && self.sent > self.got {
                        // Long enough for several pieces: waking up costs.
                        let excess = (kernel - limit) as f64 + stock / 4.0;
                        let time = excess / rate.max(1.0);
                        return Wait::For(Duration::from_secs_f64(time.min(1.0)));
                    }
                    let trips = rate * empty * APPLYING_TRIPS * self.links as f64;
                    APPLYING_LIMIT.max(trips as u64)
                }
            },
        };
        if self.in_flight() + bytes <= applying / self.links {
            Wait::Not
        } else {
            Wait::Acknowledgement
        }
    }

    /// `bytes` more were sent.
    pub(super) fn on_sent(&mut self, bytes: u64, now: Instant) {
        if let Some(capacity) = &mut self.capacity
            && self.got == self.sent
            && now.saturating_duration_since(self.active) > IDLE
        {
            capacity.idle();
        }
        self.sent += bytes;
        self.active = now;
    }

    /// What the kernel says: `got` bytes in all have arrived in the peer's
    /// kernel, and a round trip takes `round_trip` seconds at present.
    pub(super) fn look(&mut self, got: u64, round_trip: f64, now: Instant) {
        let Some(capacity) = &mut self.capacity else {
            return;
        };
        // The kernel also counts what came before the first byte counted
        // here: the difference shows when everything has arrived.
        self.offset = self.offset.max(got.saturating_sub(self.sent));
        let arrived = got.saturating_sub(self.offset).min(self.sent);
        if arrived > self.got {
            self.got = arrived;
            self.active = now;
        }
        capacity.look(got, self.got == self.sent, round_trip, now);
    }

    /// The peer has applied `total` bytes since the link began; `false` when
    /// that cannot be: more than was sent, or less than it said before.
    #[must_use]
    pub(super) fn on_ack(&mut self, total: u64) -> bool {
        if total > self.sent || total < self.applied {
            return false;
        }
        self.applied = total;
        true
    }
}

#[cfg(test)]
#[path = "simulated_path.rs"]
mod tests;
