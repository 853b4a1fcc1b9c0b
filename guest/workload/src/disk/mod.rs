//! A disk that is read and written while the guest is moved.
//!
//! **Why.** A direct read (`O_DIRECT`) lets the device write guest memory: the page-table entry is
//! marked written when the read is submitted, and the data lands later. A migration that copies
//! such a page in between loses the data, and nothing else in this guest would notice.
//!
//! **Model.** The disk is a file or a block device whose pages each hold their own number
//! ([`crate::page`]); the laboratory fills it. A [`store::Store`] divides it into chunks and remembers
//! the generation of each. An [`arena::Arena`] is the memory that chunks are read into; each slot of
//! it remembers what was read into it last. Several [`access`] threads take a free slot, check what
//! it holds, and read another chunk into it, or write one from it. One [`checker`] compares the whole
//! arena with what was read last, over and over. A slot and a chunk are locked while they are used:
//! so a slot is never checked while data lands in it, and because a slot is checked before it is
//! filled again, no page that went stale is overwritten unseen.
//!
//! A [`tree`] makes, renames, reads and removes files beside that, so that the file system's own
//! structures change as well.

mod access;
mod arena;
mod checker;
mod store;
mod tree;

use crate::clock::Clock;
use crate::options::Options;
use crate::worker::{Event, Orders};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;

/// What was done since the guest started. Each thread adds; the printing thread reads.
#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    read_pages: AtomicU64,
    written_pages: AtomicU64,
    files: AtomicU64,
    passes: AtomicU64,
    /// Pages checked by sweeps.
    swept: AtomicU64,
}

/// Both as the first thread knows them: the disk and the tree, if there are any.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    counters: Arc<Counters>,
    /// Threads that answer a sweep.
    sweepers: usize,
    before: [u64; 6],
}

/// What every thread of this module is given.
#[derive(Clone, Debug)]
struct Common {
    clock: Clock,
    seed: u64,
    orders: Arc<Orders>,
    counters: Arc<Counters>,
    events: Sender<Event>,
}

impl Common {
    fn is_stopped(&self) -> bool {
        self.orders.stop.load(Relaxed)
    }

    fn tell(&self, findings: &mut Vec<String>) {
        for finding in findings.drain(..) {
            // Without a first thread there is nobody left to hear it.
            let _ = self.events.send(Event::Bad(finding));
        }
    }
}

/// Answers the sweeps that are asked for.
#[derive(Debug, Default)]
struct Sweeps(u32);

impl Sweeps {
    /// Has every page checked by `check`, which gives their number, when a sweep is wanted.
    fn attend(
        &mut self,
        common: &Common,
        findings: &mut Vec<String>,
        check: impl FnOnce(&mut Vec<String>) -> usize,
    ) {
        let wanted = common.orders.sweeps.load(Relaxed);
        if wanted == self.0 {
            return;
        }
        self.0 = wanted;
        let pages = check(findings);
        common.tell(findings);
        common.counters.swept.fetch_add(pages as u64, Relaxed);
        // Pages of the workers' region only.
        let _ = common.events.send(Event::Swept { pages: 0 });
    }
}

impl Disk {
    /// Starts what the options ask for.
    pub(crate) fn start(
        options: &Options,
        clock: Clock,
        orders: &Arc<Orders>,
        events: &Sender<Event>,
    ) -> io::Result<Self> {
        let mut disk = Self::default();
        let common = Common {
            clock,
            seed: options.seed,
            orders: Arc::clone(orders),
            counters: Arc::clone(&disk.counters),
            events: events.clone(),
        };
        if let Some(path) = &options.disk {
            let usage = options.disk_use;
            let store = Arc::new(store::Store::open(
                path,
                usage.chunk_pages,
                usage.write_percent > 0,
            )?);
            let arena = Arc::new(arena::Arena::new(usage.mib, usage.chunk_pages)?);
            arena.has_room_for(usage.threads)?;
            for number in 0..usage.threads {
                access::start(number, usage, &store, &arena, common.clone())?;
            }
            checker::start(&store, &arena, common.clone())?;
            disk.sweepers += 1;
        }
        if let Some(folder) = &options.tree {
            tree::start(folder, options.tree_ms, common)?;
            disk.sweepers += 1;
        }
        Ok(disk)
    }

    /// How many threads answer a sweep.
    pub(crate) fn sweepers(&self) -> usize {
        self.sweepers
    }

    /// How many pages the sweep that is over has checked.
    pub(crate) fn swept_pages(&self) -> u64 {
        self.counters.swept.swap(0, Relaxed)
    }

    /// What was done since the last time, as `reads=… writes=… …`; `None` without a disk.
    pub(crate) fn since_last(&mut self) -> Option<String> {
        if self.sweepers == 0 {
            return None;
        }
        let counters = &self.counters;
        let now = [
            &counters.reads,
            &counters.writes,
            &counters.read_pages,
            &counters.written_pages,
            &counters.files,
            &counters.passes,
        ]
        .map(|counter| counter.load(Relaxed));
        let [reads, writes, read, written, files, passes] =
            std::array::from_fn(|at| now[at] - self.before[at]);
        self.before = now;
        Some(format!(
            "reads={reads} writes={writes} read_kib={} written_kib={} files={files} passes={passes}",
            read * 4,
            written * 4
        ))
    }
}

/// Rests for a time, less when a sweep is wanted or the guest ends.
fn rest(common: &Common, time: std::time::Duration, sweeps: &Sweeps) {
    const LOOK: std::time::Duration = std::time::Duration::from_millis(10);
    let until = std::time::Instant::now() + time;
    while std::time::Instant::now() < until
        && !common.is_stopped()
        && common.orders.sweeps.load(Relaxed) == sweeps.0
    {
        std::thread::sleep(LOOK.min(time));
    }
}
