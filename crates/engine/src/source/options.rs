//! What the caller may choose.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use hikkoshi_wire::Mode;

use crate::retry::RetryFor;
use hikkoshi_link::PEER_TIMEOUT;
use hikkoshi_linux::Priority;

/// What to do when pre-copy does not converge within its rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenStalled {
    /// Say so and go on.
    GoOn,
    /// Switch; the rest follows in post-copy.
    Switch,
    /// Give up; the guest runs on at the source.
    Stop,
}

/// What is sent ahead of a page request's neighbours, in post-copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAhead {
    /// Nothing.
    Off,
    /// So many pages on either side of every request (at most 256); nothing
    /// around huge pages.
    Fixed(u32),
    /// 8 pages on either side to begin with; more of it where the guest reads
    /// on, less where it jumps about.
    Adaptive,
}

/// More links than this are had by asking for them: beyond it, what fills the
/// network is not processors.
const MOST_BY_DEFAULT: u16 = 8;

/// How to move a guest.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Which of the three modes.
    pub mode: Mode,
    /// How long the guest may be stopped, where pre-copy has the choice.
    pub max_downtime: Duration,
    /// Ceiling on background traffic, in bytes a second.
    pub bandwidth: Option<u64>,
    /// Rounds before the switch in hybrid mode.
    pub precopy_rounds: u32,
    /// Rounds after which pre-copy counts as not converging.
    pub max_rounds: u32,
    /// What to do then.
    pub when_stalled: WhenStalled,
    /// Whether the guest may be moved to processors that it can tell from those
    /// that it has.
    pub allow_cpu_mismatch: bool,
    /// Background links, in pre-copy and in post-copy: 1 to
    /// [`MAX_LINKS`](crate::MAX_LINKS). Each has a
    /// connection and a thread of its own at either side.
    pub links: u16,
    /// Whether devices are drained between taking the dirty log and copying, for
    /// a guest that needs it. Off only for tests and for measuring what it costs:
    /// without it, memory that disks write is lost.
    pub drain: bool,
    /// In post-copy, how long after the switch pages that nobody asked for are
    /// held back, those that are read ahead excepted. For measuring.
    pub background_delay: Duration,
    /// In post-copy, what is sent ahead of a page request's neighbours.
    pub read_ahead: ReadAhead,
    /// In post-copy after pre-copy: pages that were written often go before
    /// the others.
    pub hot_first: bool,
    /// In post-copy: pages that nobody asked for are sent outwards from the
    /// last one that somebody did ask for.
    pub follow: bool,
    /// In post-copy: what is in flight unasked is bounded, and stands back while
    /// somebody waits for a page. Off only for measuring what that costs.
    pub bound: bool,
    /// In post-copy: the thread that reads page requests spins instead of
    /// sleeping. Costs a processor.
    pub poll: bool,
    /// Whether threads that the guest waits for go before the others.
    pub priority: Priority,
    /// From the commit on: for how long to try to reach a destination again
    /// whose links were lost; time with links makes up for as much without.
    /// Nothing is lost when that is over: another engine can take the migration
    /// up.
    pub retry_for: RetryFor,
    /// How long a link may stall before it counts as lost.
    pub stall_timeout: Duration,
    /// Until *commit*: how long the destination may take nothing, or
    /// acknowledge nothing; and how much longer than `max_downtime` it may let
    /// the stopped guest wait until it is ready. Then the guest runs on here.
    pub patience: Duration,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Hybrid,
            max_downtime: Duration::from_millis(300),
            bandwidth: None,
            precopy_rounds: 1,
            max_rounds: 30,
            when_stalled: WhenStalled::GoOn,
            allow_cpu_mismatch: false,
            links: Self::default_links(),
            drain: true,
            background_delay: Duration::ZERO,
            read_ahead: ReadAhead::Adaptive,
            hot_first: true,
            follow: true,
            bound: true,
            poll: false,
            priority: Priority::ON,
            retry_for: RetryFor::NEVER,
            stall_timeout: PEER_TIMEOUT,
            patience: Self::PATIENCE,
        }
    }
}

impl SourceOptions {
    /// How long to be patient with a destination, unless told otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(60);

    /// As many background links as this machine keeps busy: half of its
    /// processors (the other half applies the pages, or runs the guest), at
    /// least 1, and at most 8.
    pub fn default_links() -> u16 {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        u16::try_from(processors / 2).map_or(MOST_BY_DEFAULT, |n| n.clamp(1, MOST_BY_DEFAULT))
    }

    /// Whether the switch may come before all memory has arrived.
    pub fn may_postcopy(&self) -> bool {
        self.mode != Mode::Precopy || self.when_stalled == WhenStalled::Switch
    }
}
