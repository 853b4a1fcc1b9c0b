//! The disk workload: a disk that is read and written while the guest is moved.
//!
//! **Why.** In a direct read (`O_DIRECT`) the device writes guest memory: the page is marked as
//! written when the read is submitted, and the data arrives later. A migration that copies such a
//! page in between loses the data, and nothing else in this guest would detect it.
//!
//! **Model.** The disk is a file or a block device of numbered pages ([`crate::page`]); the lab
//! fills it. A [`store::Store`] divides it into chunks and stores the generation of each. An
//! [`arena::Arena`] is the memory that chunks are read into; each of its slots stores what was last
//! read into it. Several [`io_thread`] threads take a free slot, check its content, and read
//! another chunk into it, or write one from it. One [`checker`] repeatedly compares the whole arena
//! with the data read into it. A slot and a chunk are locked while they are used, so a slot is
//! never checked while data arrives in it. A slot is checked before it is filled again, so a stale
//! page is never overwritten without being detected.
//!
//! A [`tree`] of files is created, renamed, read and removed besides, so that the file system's own
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

/// The state of the main thread for the disk and the tree, if there are any.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    counters: Arc<Counters>,
    /// Threads that answer a sweep.
    sweepers: usize,
    before: [u64; 6],
}

impl Disk {
    /// Starts the threads that the options request.
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

    /// The number of threads that answer a sweep.
    pub(crate) fn sweepers(&self) -> usize {
        self.sweepers
    }

    /// The number of pages that the last sweep has checked.
    pub(crate) fn swept_pages(&self) -> u64 {
        self.counters.swept.swap(0, Relaxed)
    }

    /// The operations since the last call, as `reads=… writes=… …`; `None` without a disk.
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
