//! A disk that is read and written while the guest is moved.
//!
//! **Why.** A direct read (`O_DIRECT`) lets the device write guest memory: the page-table entry is
//! marked written when the read is submitted, and the data lands later. A migration that copies
//! such a page in between loses the data, and nothing else in this guest would notice.
//!
//! **Model.** The disk is a file or a block device whose pages each hold their own number
//! ([`crate::page`]); the laboratory fills it. A [`store::Store`] divides it into chunks and remembers
//! the generation of each. An [`arena::Arena`] is the memory that chunks are read into; each slot of
//! it remembers what was read into it last. Several [`io_thread`] threads take a free slot, check what
//! it holds, and read another chunk into it, or write one from it. One [`checker`] compares the whole
//! arena with what was read last, over and over. A slot and a chunk are locked while they are used:
//! so a slot is never checked while data lands in it, and because a slot is checked before it is
//! filled again, no page that went stale is overwritten unseen.
//!
//! A [`tree`] makes, renames, reads and removes files beside that, so that the file system's own
//! structures change as well.

mod arena;
mod checker;
mod context;
mod io_thread;
mod store;
mod tree;

use self::context::{Counters, DiskContext};
use crate::clock::Clock;
use crate::options::Options;
use crate::worker::{Commands, Event};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;

/// Both as the first thread knows them: the disk and the tree, if there are any.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    counters: Arc<Counters>,
    /// Threads that answer a sweep.
    sweepers: usize,
    before: [u64; 6],
}

impl Disk {
    /// Starts what the options ask for.
    pub(crate) fn start(
        options: &Options,
        clock: Clock,
        commands: &Arc<Commands>,
        events: &Sender<Event>,
    ) -> io::Result<Self> {
        let mut disk = Self::default();
        let context = DiskContext {
            clock,
            seed: options.seed,
            commands: Arc::clone(commands),
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
            arena.check_room_for(usage.threads)?;
            for number in 0..usage.threads {
                io_thread::start(number, usage, &store, &arena, context.clone())?;
            }
            checker::start(&store, &arena, context.clone())?;
            disk.sweepers += 1;
        }
        if let Some(folder) = &options.tree {
            tree::start(folder, options.tree_ms, context)?;
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
