//! How often each thread of the guest's process has faulted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::guest::{DestinationGuest, ThreadName};
use crate::report::ThreadFaults;

/// Threads that are counted separately.
const THREADS: usize = 1024;

/// Entries in which a thread may be counted.
const PROBES: usize = 32;

/// Counts faults by thread. Of fixed size, without a lock.
#[derive(Debug)]
pub(crate) struct FaultCounters {
    counts: Box<[Count]>,
    /// Faults of threads without an entry, or whose number the kernel did not report.
    others: AtomicU64,
}

/// How often each thread has faulted, at one moment.
#[derive(Debug, Clone)]
pub(crate) struct FaultCounts {
    threads: Vec<(u32, u64)>,
    others: u64,
}

#[derive(Debug, Default)]
struct Count {
    /// The thread's number; 0: free.
    thread: AtomicU32,
    faults: AtomicU64,
}

impl FaultCounters {
    pub(crate) fn new() -> Self {
        Self {
            counts: (0..THREADS).map(|_| Count::default()).collect(),
            others: AtomicU64::new(0),
        }
    }

    /// Counts a fault of `thread`. The numbers only grow and no other memory depends on them, so
    /// `Relaxed` is enough.
    pub(crate) fn faulted(&self, thread: Option<u32>) {
        let count = thread.and_then(|thread| self.place(thread));
        let count = count.map_or(&self.others, |count| &count.faults);
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn place(&self, thread: u32) -> Option<&Count> {
        let start = usize::try_from(thread).ok()?;
        (0..PROBES)
            .filter_map(|probe| self.counts.get((start + probe) % THREADS))
            .find(|count| {
                let taken =
                    count
                        .thread
                        .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
                taken.map_or_else(|owner| owner == thread, |_| true)
            })
    }

    /// The counts so far.
    pub(crate) fn faulted_so_far(&self) -> FaultCounts {
        FaultCounts {
            threads: self.threads().collect(),
            others: self.others.load(Ordering::Relaxed),
        }
    }

    fn threads(&self) -> impl Iterator<Item = (u32, u64)> {
        let counted = self.counts.iter().map(|count| {
            (
                count.thread.load(Ordering::Relaxed),
                count.faults.load(Ordering::Relaxed),
            )
        });
        counted.filter(|&(thread, _)| thread != 0)
    }
}

/// The threads' names. Looked up while the threads live: some have ended when the account is
/// written.
#[derive(Debug, Default)]
pub(crate) struct ThreadNames(HashMap<u32, Option<ThreadName>>);

impl ThreadNames {
    /// Looks up the names of threads that have faulted since the last call.
    pub(crate) fn update(&mut self, counters: &FaultCounters, guest: &dyn DestinationGuest) {
        for (thread, _) in counters.threads() {
            self.0
                .entry(thread)
                .or_insert_with(|| guest.name_thread(thread));
        }
    }

    /// Faults by thread, most first.
    pub(crate) fn account(&self, faulted: &FaultCounts) -> Vec<ThreadFaults> {
        let named = faulted.threads.iter().map(|&(thread, count)| {
            let name = self.0.get(&thread).cloned().flatten();
            let (name, vcpu) = name.map_or_else(
                || (format!("thread {thread}"), None),
                |named| (named.name, named.vcpu),
            );
            ThreadFaults {
                thread: name,
                vcpu,
                count,
            }
        });
        let mut all: Vec<_> = named.collect();
        if faulted.others > 0 {
            all.push(ThreadFaults {
                thread: "other threads".into(),
                vcpu: None,
                count: faulted.others,
            });
        }
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.thread.cmp(&b.thread)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_fault_is_lost() {
        let counters = FaultCounters::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Some threads share an entry.
                    for round in 0..30_000u32 {
                        counters.faulted(Some(5 + round % 3 * 1024));
                        counters.faulted(None);
                    }
                });
            }
        });
        let account = ThreadNames::default().account(&counters.faulted_so_far());
        let counts: Vec<_> = account
            .iter()
            .map(|faults| (faults.thread.as_str(), faults.count))
            .collect();
        assert_eq!(
            counts,
            [
                ("other threads", 120_000),
                ("thread 1029", 40_000),
                ("thread 2053", 40_000),
                ("thread 5", 40_000)
            ]
        );
        let many = FaultCounters::new();
        for thread in 1..5000 {
            many.faulted(Some(thread));
        }
        let total: u64 = ThreadNames::default()
            .account(&many.faulted_so_far())
            .iter()
            .map(|f| f.count)
            .sum();
        assert_eq!(total, 4999);
    }
}
