//! The window of a background link: how many bytes may be in flight, and how fast they are sent.
//!
//! An urgent page queues in the network behind all background data that is there. So in post-copy a
//! link sends at a pace just below the line's capacity ([`Capacity`]), in pieces that are short on
//! the wire. The bytes that the sending kernel has, and the peer's kernel has not yet received, are
//! bounded near the bandwidth-delay product: if the line becomes slower, no more than that can
//! queue.
//!
//! The kernel keeps the pace and measures the round trip, because a thread sometimes waits for a
//! processor for longer than a queue lasts.

use std::time::{Duration, Instant};

use crate::flow::capacity::Capacity;

/// In pre-copy: how many bytes the peer may have received and not applied. It is the only limit,
/// and above what the kernel keeps in flight by itself.
const BULK_LIMIT: u64 = 16 << 20;

/// In post-copy: how many bytes the peer may have received and not applied, for all links together;
/// or this many bandwidth-delay products of each link if that is more.
const APPLYING_LIMIT: u64 = 4 << 20;

/// See [`APPLYING_LIMIT`].
const APPLYING_TRIPS: f64 = 2.0;

/// The limit in post-copy before anything has been measured.
const FIRST_LIMIT: u64 = 128 << 10;

/// The limit for all links together on sockets without TCP_INFO: what a 1 Gbit/s line carries in 10
/// ms, in case there is a tunnel behind them. A quarter of it applies while the guest waits for
/// pages.
const NO_TCP_INFO_LIMIT: u64 = 1 << 20;

/// How many bandwidth-delay products may be in flight: above 1 so that a growing pace can be
/// reached.
const GAIN: f64 = 1.25;

/// What the kernel may have beyond that, in seconds of the line's time: it sends this while the
/// thread waits for its processor. While the guest waits for pages, the kernel paces it.
const KERNEL_RESERVE: f64 = 1e-3;

/// … and at least this many bytes, over all links: on a busy machine a thread waits for some
/// milliseconds.
const MIN_KERNEL_RESERVE: u64 = 256 << 10;

/// … of which this share remains while the guest waits for pages: a requested page that is among
/// them waits for all before it.
const URGENT_RESERVE_SHARE: f64 = 0.25;

/// How long what the kernel was given may take, in seconds, if the line carries it: the guest may
/// wait for a page that is in there. While requested pages fill the line, as those of 2 MiB do,
/// hardly any capacity is found for the rest.
const LONGEST_IN_KERNEL: f64 = 20e-3;

/// … but at most with this share of the line: at its full rate no queue would ever be drained.
const LEAST_PACE_SHARE: f64 = 0.125;

/// How long a piece may take on the wire, in seconds: while the guest waits for pages, and while it
/// does not. The latter is about half of what [`MIN_KERNEL_RESERVE`] takes on a line of 1 Gbit/s.
const PIECE_TIME: (f64, f64) = (66e-6, 1.2e-3);

/// The smallest piece: one page. The largest pieces, while the guest waits for pages and while it
/// does not: what a core handles in about ten and about forty microseconds. Each piece has a cost.
const SMALLEST_PIECE: u64 = 4 << 10;
const LARGEST_PIECES: (u64, u64) = (32 << 10, 128 << 10);

/// After a pause this long with nothing in flight, the measurements are not valid.
const IDLE: Duration = Duration::from_millis(1);

/// What the next piece has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    None,
    /// The peer's next acknowledgement.
    Acknowledgement,
    /// The kernel, which needs this long to send what it has.
    For(Duration),
}

/// The flow control of one background link.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bytes given to the kernel, received by the peer's kernel (never more than sent), and applied
    /// by the peer.
    sent: u64,
    received: u64,
    applied: u64,
    /// Bytes that the kernel counts and `sent` does not.
    offset: u64,
    /// When bytes were last sent or received.
    active: Instant,
    /// The number of background links of this migration.
    links: u64,
    /// In post-copy with TCP_INFO.
    capacity: Option<Capacity>,
    /// In post-copy without TCP_INFO.
    no_tcp_info: bool,
    /// The guest waits for pages.
    guest_waits: bool,
}

impl Window {
    /// The window of a new link, in pre-copy.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            sent: 0,
            received: 0,
            applied: 0,
            offset: 0,
            active: now,
            links: 1,
            capacity: None,
            no_tcp_info: false,
            guest_waits: false,
        }
    }

    /// Starts post-copy: from now on the guest may wait for a page. The link is one of `links`;
    /// `epoch` is the same for all of them.
    pub(crate) fn start_postcopy(&mut self, epoch: Instant, links: u64, now: Instant) {
        self.links = links.max(1);
        self.capacity = Some(Capacity::new(epoch, now));
    }

    /// Switches to a constant limit: the kernel provides no TCP_INFO (a unix socket).
    pub(crate) fn set_no_tcp_info(&mut self) {
        self.capacity = None;
        self.no_tcp_info = true;
    }

    /// Sets whether the guest waits for pages.
    pub(crate) fn set_guest_waits(&mut self, guest_waits: bool) {
        self.guest_waits = guest_waits;
    }

    /// Bytes sent on the link so far, including headers.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that the peer has not applied.
    pub(crate) fn in_flight(&self) -> u64 {
        self.sent - self.applied
    }

    /// The pace for the kernel to keep, in bytes a second; `None`: no limit, while the guest waits
    /// for no pages.
    pub(crate) fn pace(&self) -> Option<f64> {
        let capacity = self.capacity.as_ref()?;
        let pace = capacity
            .pace()
            .filter(|_| self.guest_waits || capacity.is_draining())?;
        Some(pace.max(self.least_pace(capacity.line())))
    }

    /// The pace at which the kernel sends all it has in [`LONGEST_IN_KERNEL`], if that is a small
    /// part of the line. As if it had at least what may be there while the guest waits, so that the
    /// last bytes are not the slowest.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn least_pace(&self, line: f64) -> f64 {
        let reserve = MIN_KERNEL_RESERVE as f64 * URGENT_RESERVE_SHARE / self.links as f64;
        let kernel = (self.sent - self.received) as f64;
        (kernel.max(reserve) / LONGEST_IN_KERNEL).min(line * LEAST_PACE_SHARE)
    }

    /// The size of the next piece, in bytes: a power of two of pages.
    // The value is positive, and `as` saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn piece(&self) -> u64 {
        let Some(capacity) = &self.capacity else {
            return LARGEST_PIECES.0;
        };
        let (rate, _) = capacity.estimate().unwrap_or_default();
        let (time, largest) = match self.guest_waits {
            true => (PIECE_TIME.0, LARGEST_PIECES.0),
            // Two of them are what the kernel may have.
            false => {
                let half = MIN_KERNEL_RESERVE / self.links / 2;
                let most = half.clamp(LARGEST_PIECES.0, LARGEST_PIECES.1);
                (PIECE_TIME.1, most)
            }
        };
        1 << ((rate * time) as u64)
            .clamp(SMALLEST_PIECE, largest)
            .ilog2()
    }

    /// What the next piece of `bytes` has to wait for.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn wait(&self, bytes: u64) -> Wait {
        if self.in_flight() == 0 {
            return Wait::None;
        }
        let applying = match &self.capacity {
            None if self.no_tcp_info && self.guest_waits => NO_TCP_INFO_LIMIT / 4,
            None if self.no_tcp_info => NO_TCP_INFO_LIMIT,
            None => BULK_LIMIT,
            Some(capacity) => match capacity.estimate() {
                None => FIRST_LIMIT,
                Some((rate, empty)) => {
                    let pieces = (2 * self.piece()) as f64;
                    let mut reserve =
                        (rate * KERNEL_RESERVE).max((MIN_KERNEL_RESERVE / self.links) as f64);
                    let queued = if self.guest_waits {
                        reserve *= URGENT_RESERVE_SHARE;
                        reserve + pieces
                    } else {
                        reserve.max(pieces)
                    };
                    let limit = (rate * empty * GAIN + queued) as u64;
                    let kernel = self.sent - self.received + bytes;
                    if kernel > limit && self.sent > self.received {
                        // Long enough for several pieces: each wake-up has a cost.
                        let share = if self.guest_waits { 0.25 } else { 0.5 };
                        let excess = (kernel - limit) as f64 + reserve * share;
                        let time = excess / rate.max(1.0);
                        return Wait::For(Duration::from_secs_f64(time.min(1.0)));
                    }
                    let trips = rate * empty * APPLYING_TRIPS * self.links as f64;
                    APPLYING_LIMIT.max(trips as u64)
                }
            },
        };
        if self.in_flight() + bytes <= applying / self.links {
            Wait::None
        } else {
            Wait::Acknowledgement
        }
    }

    /// Accounts for `bytes` that were sent.
    pub(crate) fn on_sent(&mut self, bytes: u64, now: Instant) {
        if let Some(capacity) = &mut self.capacity
            && self.received == self.sent
            && now.saturating_duration_since(self.active) > IDLE
        {
            capacity.idle();
        }
        self.sent += bytes;
        self.active = now;
    }

    /// Accounts for the kernel's TCP_INFO: `received` bytes in total have arrived in the peer's
    /// kernel, and the round trip now takes `round_trip` seconds.
    pub(crate) fn on_sample(&mut self, received: u64, round_trip: f64, now: Instant) {
        let Some(capacity) = &mut self.capacity else {
            return;
        };
        // The kernel also counts bytes from before the first byte counted here. The difference is
        // known when everything has arrived.
        self.offset = self.offset.max(received.saturating_sub(self.sent));
        let arrived = received.saturating_sub(self.offset).min(self.sent);
        if arrived > self.received {
            self.received = arrived;
            self.active = now;
        }
        capacity.on_sample(received, self.received == self.sent, round_trip, now);
    }

    /// The peer reports that it has applied `total` bytes in total. Returns `false` if that is
    /// impossible: more than was sent, or less than it reported before.
    #[must_use]
    pub(crate) fn on_ack(&mut self, total: u64) -> bool {
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
