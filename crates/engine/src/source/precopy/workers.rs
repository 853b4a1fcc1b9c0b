//! The workers of pre-copy: one thread for each background link.
//!
//! A round is one batch or several (`batch.rs`). A batch is divided into chunks
//! that an atomic cursor hands out, so a slow link takes fewer of them. Within a
//! round a page lies in one chunk, so it is sent once, on one link.
//!
//! **A round ends when every link has been drained**: everything sent on it has
//! been applied at the destination. A page that is dirtied again may be sent on
//! another link in the next round, and links are not ordered among each other.
//! Without the drain the older copy could arrive last and remain.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::batch::{Batch, BatchRest};
use crate::source::precopy::chunk_sender::ChunkSender;
use crate::source::unsent::UnsentPages;
use hikkoshi_link::{BackgroundSender, Stream};
use hikkoshi_linux::PriorityClass;
use hikkoshi_linux::sandbox_thread;

/// All workers of one migration.
#[derive(Debug)]
pub(crate) struct PrecopyWorkers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    batches: SyncSender<Arc<Batch>>,
    /// A message for each finished batch; its result is in the batch.
    done: Receiver<()>,
    thread: JoinHandle<BackgroundSender>,
}

impl PrecopyWorkers {
    /// Starts a worker for each link. When one link ends, its worker ends all of
    /// `streams`: the others may be blocked on a peer that does not exist any more.
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
                    priority.apply(PriorityClass::Background);
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
                        // Before the report: after all reports, the main thread is the
                        // only owner of the batch.
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

    /// Sends a batch. If it is the round's last one, every link is empty when this
    /// returns. Returns what was not sent.
    pub(crate) fn run(&self, batch: Batch) -> Result<BatchRest, SourceFailure> {
        let batch = Arc::new(batch);
        self.begin(&batch)?;
        self.finish(batch)
    }

    /// Waits until every link is empty.
    pub(crate) fn empty_links(&self) -> Result<(), SourceFailure> {
        self.run(Batch::taken(Vec::new(), true)).map(drop)
    }

    /// Queues a batch for all workers. One more may be queued while they work on it;
    /// [`finish`](Self::finish) this one before a third.
    pub(crate) fn begin(&self, batch: &Arc<Batch>) -> Result<(), SourceFailure> {
        let queued = self
            .0
            .iter()
            .map(|worker| worker.batches.send(Arc::clone(batch)).is_ok());
        // Queues it for all workers before waiting for any.
        if queued.fold(true, |all, one| all & one) {
            Ok(())
        } else {
            Err(SourceFailure::ThreadDied)
        }
    }

    /// Waits until the workers have finished `batch`, which must be the oldest queued
    /// one. Returns what was not sent.
    pub(crate) fn finish(&self, batch: Arc<Batch>) -> Result<BatchRest, SourceFailure> {
        let alive = self
            .0
            .iter()
            .fold(true, |all, worker| all & worker.done.recv().is_ok());
        match Arc::into_inner(batch).map(Batch::into_rest) {
            Some(Err(failure)) => Err(failure),
            Some(rest) if alive => rest,
            _ => Err(SourceFailure::ThreadDied),
        }
    }

    /// Ends the workers and returns their links, which are empty.
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
