//! Guests that write at a rate, moved with the dirty log taken in different ranges.

use std::fmt;

use hikkoshi_lab::{Pattern, Workload as GuestWorkload};
use serde::{Deserialize, Serialize};

/// The guest's memory, MiB. By default the log is taken in ranges of 2 MiB, so in
/// [`DEFAULT_RANGES`].
pub(crate) const WRITTEN_RAM_MIB: u64 = 256;
/// The number of ranges that the log is taken in by default.
pub(crate) const DEFAULT_RANGES: u32 = 128;
/// The memory that it writes to, MiB.
const WRITTEN_MIB: u64 = 160;
/// Pages that a network of 1 Gbit/s carries a second, with all headers.
const PAGES_PER_SECOND: u64 = 28_800;

/// A guest that writes pages while it is moved over a network of 1 Gbit/s.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) struct Written {
    /// The nano guest under KVM, instead of Linux under TCG.
    pub nano: bool,
    /// Writes its pages in sequence, instead of at random.
    pub in_sequence: bool,
    /// Pages that it writes while 100 pages are sent.
    pub per_100_sent: u64,
}

impl Written {
    /// The guests that are measured, by pre-copy.
    pub(super) const ALL: [Self; 5] = [
        Self::new(false, false, 50),
        Self::new(false, false, 75),
        Self::new(false, true, 75),
        Self::new(true, false, 75),
        Self::new(true, true, 75),
    ];
    /// The one that is moved by hybrid, too.
    pub(super) const HYBRID: Self = Self::new(false, false, 75);

    const fn new(nano: bool, in_sequence: bool, per_100_sent: u64) -> Self {
        Self {
            nano,
            in_sequence,
            per_100_sent,
        }
    }

    /// The workload of the test guest.
    pub(super) fn guest_workload(self) -> GuestWorkload {
        GuestWorkload::dirty(WRITTEN_MIB)
            .pattern(match self.in_sequence {
                true => Pattern::Sequential,
                false => Pattern::Random,
            })
            .rate(PAGES_PER_SECOND * self.per_100_sent / 100)
    }

    /// The name in filters and tables.
    pub(super) fn name(self) -> &'static str {
        match (self.nano, self.in_sequence, self.per_100_sent) {
            (false, false, 50) => "ranges-random-50",
            (false, false, _) => "ranges-random-75",
            (false, true, _) => "ranges-sequence-75",
            (true, false, _) => "ranges-nano-random-75",
            (true, true, _) => "ranges-nano-sequence-75",
        }
    }
}

impl fmt::Display for Written {
    /// The description in tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guest = if self.nano { "nano, KVM" } else { "Linux, TCG" };
        let order = match self.in_sequence {
            true => "in sequence",
            false => "at random",
        };
        #[allow(clippy::cast_precision_loss)] // at most 100
        let per_sent = self.per_100_sent as f64 / 100.0;
        write!(f, "{guest}, {order}, {per_sent}")
    }
}
