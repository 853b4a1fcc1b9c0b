//! The workers of pre-copy: one thread a background link, for as long as there
//! are rounds.
//!
//! A round's work comes as one batch or several, and is cut into chunks that
//! are handed out by an atomic cursor: a link that is slow takes fewer of them.
//! Within a round a page lies in one chunk, so it travels on one link, once.
//!
//! **A round ends when every link has been drained**: all that it sent has been
//! applied at the destination. A page that is dirtied again may travel on
//! another link in the next round, and nothing keeps two links in step: without
//! the drain the older copy could arrive last, and stay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_pages::PageRange;

use crate::source::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::chunk_sender::ChunkSender;
use crate::source::unsent::UnsentPages;
use hikkoshi_link::{BackgroundSender, Stream};
use hikkoshi_linux::Rank;
use hikkoshi_linux::sandbox_thread;

/// All workers of one migration.
#[derive(Debug)]
pub(crate) struct PrecopyWorkers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    batches: SyncSender<Arc<Batch>>,
    /// Hears of each order's end; what it came to is in the round.
    done: Receiver<()>,
    thread: JoinHandle<BackgroundSender>,
}

/// Work for all workers, in pieces that are handed out by an atomic cursor.
#[derive(Debug)]
pub(crate) struct Batch {
    work: Work,
    /// Whether its round ends with it.
    last: bool,
    /// The number of the next piece.
    cursor: AtomicU64,
    failed: AtomicBool,
    /// What went wrong first; what follows from it does not count.
    failure: OnceLock<SourceFailure>,
}

/// What there is to send.
#[derive(Debug)]
pub(crate) enum Work {
    /// All of the guest's memory. Whoever sends a chunk takes its log.
    Log {
        log: Arc<dyn DirtyLog>,
        /// The first round sends everything that is not a hole in the RAM
        /// files: the destination began with nothing but holes.
        first: bool,
    },
    /// Pages of some chunks, whose log was taken, and then all device writes
    /// under way have landed.
    Drained(Vec<Vec<PageRange>>),
}

impl Batch {
    /// A whole round.
    pub(crate) fn round(log: Arc<dyn DirtyLog>, first: bool) -> Self {
        Self::new(Work::Log { log, first }, true)
    }

    /// Part of a round; `last` if no other follows.
    pub(crate) fn drained(chunks: Vec<Vec<PageRange>>, last: bool) -> Self {
        Self::new(Work::Drained(chunks), last)
    }

    fn new(work: Work, last: bool) -> Self {
        Self {
            work,
            last,
            cursor: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// What it consists of.
    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// Whether its round ends with it.
    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    /// The number of a piece that no other worker has; `None` once there is no
    /// point in going on. May be beyond the last piece.
    pub(crate) fn next(&self) -> Option<u64> {
        // Only a number: what a worker does about its piece depends on nothing
        // that another one has done.
        (!self.has_failed()).then(|| self.cursor.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Makes the workers leave what they have not begun.
    pub(crate) fn abandon(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    fn fail(&self, failure: SourceFailure) {
        let _ = self.failure.set(failure);
        self.abandon();
    }
}

impl PrecopyWorkers {
    /// A worker for each link. When one link ends, its worker ends all of
    /// `streams`: the others may be blocked on a peer that is gone.
    pub(crate) fn start(
        shared: &MigrationContext,
        links: Vec<BackgroundSender>,
        streams: &Arc<[Arc<Stream>]>,
        unsent: &Arc<UnsentPages>,
    ) -> Result<Self, SourceFailure> {
        let start = |(number, link)| {
            let (batches, queued) = sync_channel::<Arc<Batch>>(1);
            let (finished, done) = sync_channel(1);
            let mut sender = ChunkSender::new(shared, link, unsent);
            let priority = shared.options.priority;
            let streams = Arc::clone(streams);
            let thread = thread::Builder::new()
                .name(format!("src-precopy-{number}"))
                .spawn(move || {
                    priority.take(Rank::Background);
                    sandbox_thread();
                    while let Ok(batch) = queued.recv() {
                        if let Err(failure) = sender.batch(&batch) {
                            let ended =
                                matches!(&failure, SourceFailure::Link { cause, .. } if cause.is_end());
                            batch.fail(failure);
                            if ended {
                                streams.iter().for_each(|stream| stream.shutdown());
                            }
                        }
                        // Before it is reported: whoever waits for the reports
                        // has the batch, and the log in it, alone.
                        drop(batch);
                        if finished.send(()).is_err() {
                            break;
                        }
                    }
                    sender.into_link()
                })
                .map_err(SourceFailure::Thread)?;
            Ok(Worker {
                batches,
                done,
                thread,
            })
        };
        (0..)
            .zip(links)
            .map(|(number, link): (usize, _)| start((number, link)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Does a batch. If it is its round's last one, every link is empty when
    /// this returns.
    pub(crate) fn run(&self, batch: Batch) -> Result<(), SourceFailure> {
        let batch = Arc::new(batch);
        self.begin(&batch)?;
        self.finish(batch)
    }

    /// Hands a batch to all workers. While they work on it another one may be
    /// handed out, but not a third: [`finish`](Self::finish) this one before.
    pub(crate) fn begin(&self, batch: &Arc<Batch>) -> Result<(), SourceFailure> {
        let queued = self
            .0
            .iter()
            .map(|worker| worker.batches.send(Arc::clone(batch)).is_ok());
        // All of them, before anybody is waited for.
        if queued.fold(true, |all, one| all & one) {
            Ok(())
        } else {
            Err(SourceFailure::ThreadDied)
        }
    }

    /// Waits until the workers are through with the oldest batch that was
    /// begun and not waited for, which is this one.
    pub(crate) fn finish(&self, batch: Arc<Batch>) -> Result<(), SourceFailure> {
        let alive = self
            .0
            .iter()
            .fold(true, |all, worker| all & worker.done.recv().is_ok());
        match Arc::into_inner(batch).and_then(|batch| batch.failure.into_inner()) {
            Some(failure) => Err(failure),
            None if alive => Ok(()),
            None => Err(SourceFailure::ThreadDied),
        }
    }

    /// Ends the workers; gives their links back, which are empty.
    pub(crate) fn into_links(self) -> Result<Vec<BackgroundSender>, SourceFailure> {
        let (batches, threads): (Vec<_>, Vec<_>) = self
            .0
            .into_iter()
            .map(|worker| (worker.batches, worker.thread))
            .unzip();
        drop(batches);
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| SourceFailure::ThreadDied))
            .collect()
    }
}
