//! Read-copy-update (RCU), to free detached tables and to make a new log setting known to all
//! threads.
//!
//! Every operation on the tables is a read-side critical section: it adds to a counter when it
//! starts and subtracts when it ends, without a lock and without waiting. A thread that has
//! detached something calls [`Rcu::synchronize`] to wait until all sections that were active at
//! that time have ended. There are two sets of counters, as in Linux's SRCU. Each synchronization
//! switches the set that new sections use, so it ends even if new operations keep starting.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering, cpu_relax};
use crate::spinlock::SpinLock;

/// One pair of counters. Processors rarely share one, so cache lines are rarely contended.
const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    readers: [AtomicU64; 2],
}

#[derive(Debug)]
pub(crate) struct Rcu {
    set: AtomicUsize,
    shards: [Shard; SHARDS],
    waiting: SpinLock<()>,
}

impl Rcu {
    pub(crate) fn new() -> Self {
        let shard = |_| Shard {
            readers: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        Self {
            set: AtomicUsize::new(0),
            shards: core::array::from_fn(shard),
            waiting: SpinLock::new(()),
        }
    }

    /// Starts a read-side critical section, which ends when the guard is dropped. Do not hold the
    /// guard during a call to the hypervisor.
    pub(crate) fn read(&self) -> ReadGuard<'_> {
        // The stacks of different processors are at different addresses.
        let mark = 0u8;
        let shard = if cfg!(loom) {
            0
        } else {
            ((&raw const mark).addr() >> 13) % SHARDS
        };
        let set = self.set.load(Ordering::Relaxed) & 1;
        let counter = &self.shards[shard].readers[set];
        // Acquire: a section that starts after `synchronize` has read this counter sees everything
        // that was done before `synchronize`.
        counter.fetch_add(1, Ordering::AcqRel);
        ReadGuard { counter }
    }

    /// Waits until all read-side critical sections that were active at the call have ended. The
    /// caller must not hold a guard.
    pub(crate) fn synchronize(&self) {
        let _one_at_a_time = self.waiting.lock();
        // Twice: an operation may have read the number of the set before the previous
        // synchronization and entered that set after it.
        for _ in 0..2 {
            let old = self.set.fetch_add(1, Ordering::AcqRel) & 1;
            for shard in &self.shards {
                // A read-modify-write, not a load: it is part of the counter's modification order,
                // so that an operation that starts later sees everything done before.
                while shard.readers[old].fetch_add(0, Ordering::AcqRel) != 0 {
                    cpu_relax();
                }
            }
        }
    }
}

/// A read-side critical section.
#[derive(Debug)]
pub(crate) struct ReadGuard<'a> {
    counter: &'a AtomicU64,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::AcqRel);
    }
}
