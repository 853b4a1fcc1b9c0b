//! What is known of the guests, the destinations and the lines.

use std::collections::{BTreeMap, BTreeSet};

use hikkoshi_engine::{Mode, SourceOptions};
use hikkoshi_estimate::{CompressedPages, Line, Span};

use crate::share::shares;

/// What a guest takes of a destination beyond its memory, in bytes: QEMU itself.
pub const QEMU_MEMORY: u64 = 128 << 20;

/// The part of a line that is divided among several moves: pages that a guest waits for find the
/// rest free.
const DIVIDED: f64 = 0.95;

/// Moves at a time, unless the limits say otherwise: more are not tried.
pub(crate) const MOST_AT_ONCE: usize = 8;

/// A host that is to be emptied.
#[derive(Debug, Clone)]
pub struct Evacuation {
    /// The guests, in the order in which they were named.
    pub guests: Vec<Guest>,
    /// Where they may go.
    pub destinations: Vec<Destination>,
    /// The limits of this host, and of the line from it.
    pub source: Limits,
    /// What the line from this host carries, in bytes a second, to all destinations together.
    pub source_rate: f64,
    /// The processors of this host.
    pub processors: u32,
    /// The mode of all moves; `None`: for each guest the one that is recommended.
    pub mode: Option<Mode>,
    /// The options of the moves. Mode and bandwidth are not used.
    pub options: SourceOptions,
}

/// A guest, as measured.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// All of its memory, in bytes.
    pub memory: u64,
    /// The features of this host's processors that it may use, if it may use all of them; otherwise
    /// none.
    pub features: BTreeSet<String>,
    /// What an estimate needs. Its compression is chosen by the options.
    pub measured: hikkoshi_estimate::Guest,
    /// What each method makes of its content.
    pub compressed: Vec<CompressedPages>,
    /// The modes in which it can be moved.
    pub modes: Vec<Mode>,
    /// Why it cannot in the others.
    pub obstacles: Vec<String>,
    /// From the start of a move until its first byte, alone, s: the guest is checked, and the
    /// destination starts a machine for it. The line is not used.
    pub prepare: Span,
}

/// A host that guests may go to.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Its name.
    pub name: String,
    /// The memory that guests may take there, in bytes.
    pub free_memory: u64,
    /// Its processors.
    pub processors: u32,
    /// Their features; `None`: not known.
    pub features: Option<BTreeSet<String>>,
    /// The guests that it does not take, and why.
    pub refuses: BTreeMap<String, String>,
    /// The line to it from this host.
    pub line: Line,
    /// Its limits.
    pub limits: Limits,
}

/// The limits of a host and of its line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Moves at a time; `None`: as many as pays.
    pub at_once: Option<usize>,
    /// Bytes a second of all moves together, without pages that a guest waits for; `None`: what the
    /// line carries.
    pub bandwidth: Option<u64>,
}

impl Guest {
    /// What it needs of a destination's memory, in bytes.
    #[must_use]
    pub fn needs(&self) -> u64 {
        self.memory.saturating_add(QEMU_MEMORY)
    }
}

impl Evacuation {
    /// What each line carries, in bytes a second: this host's, then that of each destination.
    #[must_use]
    pub fn capacities(&self) -> Vec<f64> {
        let limited = |rate: f64, limits: &Limits| match limits.bandwidth {
            Some(limit) => rate.min(float(limit)),
            None => rate,
        };
        let own = limited(self.source_rate, &self.source);
        let of = |it: &Destination| limited(it.line.rate.likely, &it.limits);
        std::iter::once(own)
            .chain(self.destinations.iter().map(of))
            .collect()
    }

    /// What each of the moves under way to these destinations gets, in bytes a second. A move that
    /// is alone can have all of its lines.
    #[must_use]
    pub fn shares(&self, to: &[usize]) -> Vec<f64> {
        let paths: Vec<_> = to.iter().map(|&it| [0, 1 + it]).collect();
        let part = if to.len() > 1 { DIVIDED } else { 1.0 };
        let capacities: Vec<_> = self.capacities().iter().map(|it| it * part).collect();
        shares(&paths, &capacities)
    }

    /// How many moves there can be at a time from this host.
    pub(crate) fn most_at_once(&self) -> usize {
        self.source.at_once.unwrap_or(MOST_AT_ONCE).max(1)
    }
}

impl Destination {
    /// How many moves there can be at a time to it.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.limits.at_once.unwrap_or(usize::MAX).max(1)
    }
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
