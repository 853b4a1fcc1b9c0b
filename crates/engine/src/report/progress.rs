//! Progress reports while a migration runs.

use std::fmt::Debug;
use std::time::Duration;

/// The phase that a migration is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Links are opened, machines are compared.
    Connecting,
    /// Pages are sent while the guest runs at the source.
    Precopy,
    /// The guest is paused.
    Switchover,
    /// The guest runs at the destination, pages follow.
    Postcopy,
}

/// The state of a migration at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The phase.
    pub phase: Phase,
    /// The present pre-copy round, counted from 1.
    pub round: u32,
    /// Pages of this phase (of this round) that are done.
    pub done_pages: u64,
    /// Pages of this phase (of this round) in total.
    pub total_pages: u64,
    /// Bytes sent or received in total.
    pub bytes: u64,
    /// Bytes a second, recently.
    pub bytes_per_second: f64,
}

impl Progress {
    /// How long the rest of this phase (of this round) takes at the present rate, if that is known.
    #[allow(clippy::cast_precision_loss)]
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.total_pages.saturating_sub(self.done_pages) as f64 * 4096.0;
        Duration::try_from_secs_f64(left / self.bytes_per_second).ok()
    }
}

/// Receives progress reports. Called often and from several threads: must return at once.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use hikkoshi_engine::Observer;
/// use hikkoshi_engine::report::Progress;
///
/// /// Keeps the number of bytes for another thread, and prints notices.
/// #[derive(Debug, Default)]
/// struct Meter {
///     bytes: AtomicU64,
/// }
///
/// impl Observer for Meter {
///     fn progress(&self, progress: &Progress) {
///         self.bytes.store(progress.bytes, Ordering::Relaxed);
///     }
///
///     fn notice(&self, text: &str) {
///         eprintln!("{text}");
///     }
/// }
///
/// // For `Watch` at the source, or `ReceiveWatch` at the destination.
/// let observer: Arc<dyn Observer> = Arc::new(Meter::default());
/// # observer.notice("a sentence");
/// ```
pub trait Observer: Send + Sync + Debug {
    /// The present state, a few times a second.
    fn progress(&self, progress: &Progress);

    /// A sentence for the operator.
    fn notice(&self, text: &str);
}

/// Ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn progress(&self, _: &Progress) {}
    fn notice(&self, _: &str) {}
}
