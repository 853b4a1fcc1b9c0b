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

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::batch::Batch;
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
        match Arc::into_inner(batch).and_then(Batch::into_failure) {
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
