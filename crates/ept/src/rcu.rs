//! Who is inside the tables, so that a table taken out is not freed under somebody's feet, and a new
//! setting of the log is known to everybody before its effects are relied upon.
//!
//! Every operation *enters* and *leaves*: one addition to a counter each, no lock, no waiting. Whoever
//! has taken something out *waits* until all that were inside at that moment have left. There are two
//! sets of counters, and the one that is entered changes with each wait, so that a wait ends even if
//! new operations keep coming.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering, cpu_relax};
use crate::spinlock::SpinLock;

/// Counters a set. Processors share one only by chance: cache lines don't travel much.
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

    /// Enters; leaves when the guard is dropped. Must not be held across a call to the outside.
    pub(crate) fn read(&self) -> ReadGuard<'_> {
        // Stacks of different processors lie at different addresses.
        let mark = 0u8;
        let shard = if cfg!(loom) {
            0
        } else {
            ((&raw const mark).addr() >> 13) % SHARDS
        };
        let set = self.set.load(Ordering::Relaxed) & 1;
        let counter = &self.shards[shard].readers[set];
        // Acquire: comes after a wait's look at the counter => sees what was done before that wait.
        counter.fetch_add(1, Ordering::AcqRel);
        ReadGuard { counter }
    }

    /// Returns when everybody who was inside at the call has left. The caller must not be inside.
    pub(crate) fn synchronize(&self) {
        let _one_at_a_time = self.waiting.lock();
        // Twice: an operation may have read the number of the set before the previous wait, and entered
        // that set after it.
        for _ in 0..2 {
            let old = self.set.fetch_add(1, Ordering::AcqRel) & 1;
            for shard in &self.shards {
                // A read-modify-write, not a load: it takes its place in the counter's order of
                // changes, so that an operation that enters later sees everything done before.
                while shard.readers[old].fetch_add(0, Ordering::AcqRel) != 0 {
                    cpu_relax();
                }
            }
        }
    }
}

/// Somebody is inside the tables.
#[derive(Debug)]
pub(crate) struct ReadGuard<'a> {
    counter: &'a AtomicU64,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::AcqRel);
    }
}
