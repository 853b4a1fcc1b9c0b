//! How often each thread of the guest's process has faulted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::guest::{DestinationGuest, ThreadName};
use crate::report::{FaultKind, ThreadFaults};

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

    /// Faults by thread, most first. Those of the kernel's workers are one entry: which of them
    /// takes a fault means nothing.
    pub(crate) fn account(&self, faulted: &FaultCounts) -> Vec<ThreadFaults> {
        let mut all = Vec::new();
        let mut asynchronous = 0;
        for &(thread, count) in &faulted.threads {
            let name = self.0.get(&thread).cloned().flatten();
            let named = name.unwrap_or_else(|| ThreadName {
                name: format!("thread {thread}"),
                kind: FaultKind::Other,
            });
            if named.kind == FaultKind::Asynchronous {
                asynchronous += count;
                continue;
            }
            all.push(ThreadFaults {
                thread: named.name,
                kind: named.kind,
                count,
            });
        }
        for (thread, kind, count) in [
            ("kernel workers", FaultKind::Asynchronous, asynchronous),
            ("other threads", FaultKind::Other, faulted.others),
        ] {
            if count > 0 {
                all.push(ThreadFaults {
                    thread: thread.into(),
                    kind,
                    count,
                });
            }
        }
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.thread.cmp(&b.thread)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_the_kernel_are_one_entry() {
        let counters = FaultCounters::new();
        for (thread, faults) in [(10, 3), (11, 4), (12, 5), (13, 6)] {
            (0..faults).for_each(|_| counters.faulted(Some(thread)));
        }
        let named = |name: &str, kind| {
            let name = name.to_owned();
            Some(ThreadName { name, kind })
        };
        let names = ThreadNames(HashMap::from([
            (10, named("kworker/0:1-events", FaultKind::Asynchronous)),
            (11, named("CPU 0/KVM", FaultKind::Vcpu(0))),
            (12, named("kworker/1:0-events", FaultKind::Asynchronous)),
            (13, None),
        ]));
        let account = names.account(&counters.faulted_so_far()).into_iter();
        let account: Vec<_> = account.map(|f| (f.thread, f.kind, f.count)).collect();
        let expected = [
            ("kernel workers", FaultKind::Asynchronous, 8),
            ("thread 13", FaultKind::Other, 6),
            ("CPU 0/KVM", FaultKind::Vcpu(0), 4),
        ];
        assert_eq!(
            account,
            expected.map(|(thread, kind, count)| (thread.to_owned(), kind, count))
        );
    }

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
