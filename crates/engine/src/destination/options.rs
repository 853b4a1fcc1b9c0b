//! What an operator may choose at the destination.

use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use crate::Priority;
use crate::RetryFor;
use hikkoshi_link::PEER_TIMEOUT;

/// Most threads that read faults, however many processors a guest has: each
/// costs a stack, and 64 of them outrun what one userfaultfd hands out.
pub const MAX_FAULT_THREADS: u16 = 64;

/// Virtual processors that one fault thread serves, unless told otherwise. A
/// fault takes a thread some 10 µs and a guest's thread at least 50, so that
/// four processors that do nothing but fault keep one thread busy.
const VCPUS_A_THREAD: u32 = 4;

/// How the destination goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationOptions {
    /// How many threads read the guest's faults: up to [`MAX_FAULT_THREADS`];
    /// by default as many as suit the guest's processors and this machine's.
    pub fault_threads: Option<NonZeroU16>,
    /// Whether the threads on the way from a fault to the installed page spin
    /// instead of sleeping. Each of them takes a whole core until every page
    /// is here.
    pub poll: bool,
    /// Whether these threads come before those that receive background pages.
    pub priority: Priority,
    /// Rebuild transparent huge pages once every page is here, at most so many
    /// bytes a second.
    pub collapse: Option<NonZeroU64>,
    /// Once the guest may run here: for how long to wait for a source whose
    /// links were lost; time with links makes up for as much without. Nothing
    /// is lost when that is over: another engine can take the migration up.
    pub retry_for: RetryFor,
    /// How long a link may stall before it counts as lost.
    pub stall_timeout: Duration,
    /// Until the guest could run here: how long the source may send nothing of
    /// it before it is given up. Its guest runs on there.
    pub patience: Duration,
}

impl Default for DestinationOptions {
    fn default() -> Self {
        Self {
            fault_threads: None,
            poll: false,
            priority: Priority::default(),
            collapse: None,
            retry_for: RetryFor::NEVER,
            stall_timeout: PEER_TIMEOUT,
            patience: Self::PATIENCE,
        }
    }
}

impl DestinationOptions {
    /// The [`patience`](Self::patience) that any honest source needs less of,
    /// one whose guest takes its minutes to stop included.
    pub const PATIENCE: Duration = Duration::from_secs(300);

    /// The number of fault threads for a guest of `vcpus` processors.
    pub(crate) fn fault_threads_for(&self, vcpus: u32) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = match self.fault_threads {
            Some(threads) => usize::from(threads.get()),
            None => usize::try_from(vcpus.div_ceil(VCPUS_A_THREAD))
                .unwrap_or(usize::MAX)
                // More than half the cores would only take turns with those
                // who receive the pages.
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
