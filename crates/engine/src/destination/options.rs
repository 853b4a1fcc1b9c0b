//! The operator's options at the destination.

use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use crate::Priority;
use crate::retry::RetryFor;
use hikkoshi_link::DEFAULT_STALL_TIMEOUT;

/// The most threads that read faults, however many processors a guest has: each needs a stack, and
/// 64 of them are faster than one userfaultfd.
pub const MAX_FAULT_THREADS: u16 = 64;

/// Virtual processors that one fault thread serves by default. A fault takes a fault thread some 10
/// µs and a guest's thread at least 50, so four processors that do nothing but fault keep one
/// thread busy.
const VCPUS_A_THREAD: u32 = 4;

/// The destination's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationOptions {
    /// How many threads read the guest's faults: up to [`MAX_FAULT_THREADS`]; by default a number
    /// that suits the guest's processors and this machine's.
    pub fault_threads: Option<NonZeroU16>,
    /// Whether the threads between a fault and the installed page poll instead of sleeping. Each of
    /// them uses a whole core until every page is here.
    pub poll: bool,
    /// Whether these threads have priority over those that receive background pages.
    pub priority: Priority,
    /// Rebuild transparent huge pages once every page is here, at most this many bytes a second.
    pub collapse: Option<NonZeroU64>,
    /// How long to wait for a source whose links were lost, once the guest may run here; time with
    /// links makes up for as much time without. Nothing is lost when the time is over: another
    /// engine can resume the migration.
    pub retry_for: RetryFor,
    /// How long a link may stall before it counts as lost.
    pub stall_timeout: Duration,
    /// How long the source may be silent, before the guest could run here. Then the migration is
    /// cancelled, and the guest keeps running at the source.
    pub peer_timeout: Duration,
}

impl Default for DestinationOptions {
    fn default() -> Self {
        Self {
            fault_threads: None,
            poll: false,
            priority: Priority::default(),
            collapse: None,
            retry_for: RetryFor::NEVER,
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            peer_timeout: Self::DEFAULT_PEER_TIMEOUT,
        }
    }
}

impl DestinationOptions {
    /// A [`peer_timeout`](Self::peer_timeout) that is enough for any honest source, also for one
    /// whose guest takes minutes to pause.
    pub const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(300);

    /// The number of fault threads for a guest of `vcpus` processors.
    pub(crate) fn fault_threads_for(&self, vcpus: u32) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = match self.fault_threads {
            Some(threads) => usize::from(threads.get()),
            None => usize::try_from(vcpus.div_ceil(VCPUS_A_THREAD))
                .unwrap_or(usize::MAX)
                // More than half the cores would only compete with the threads that receive the
                // pages.
                .min(cores.div_ceil(2)),
        };
        threads.clamp(1, usize::from(MAX_FAULT_THREADS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_suit_the_guest_and_are_bounded() {
        let options = DestinationOptions::default();
        assert_eq!(options.fault_threads_for(0), 1);
        assert_eq!(options.fault_threads_for(4), 1);
        let cores = std::thread::available_parallelism().unwrap().get();
        let many = options.fault_threads_for(u32::MAX);
        assert_eq!(many, cores.div_ceil(2).min(64));
        let told = |threads| DestinationOptions {
            fault_threads: NonZeroU16::new(threads),
            ..options
        };
        assert_eq!(told(3).fault_threads_for(1), 3);
        assert_eq!(told(u16::MAX).fault_threads_for(1), 64);
    }
}
