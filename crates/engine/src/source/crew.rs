//! The workers of pre-copy: one thread a background link, for as long as there
//! are rounds.
//!
//! A round's work is cut into chunks that are handed out by an atomic cursor:
//! a link that is slow takes fewer of them. Within a round a page lies in one
//! chunk, so it travels on one link, once.
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
use hikkoshi_pages::{Page, PageRange, RamLayout};

use super::Move;
use super::chunk::ChunkSender;
use super::error::SourceFailure;
use super::owed::{CHUNK, Owed};
use crate::confine::confine;
use crate::link::{BackgroundSender, Stream};
use crate::priority::Rank;

/// All workers of one migration.
#[derive(Debug)]
pub(super) struct Crew(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    orders: SyncSender<Arc<Round>>,
    /// Hears of each order's end; what it came to is in the round.
    done: Receiver<()>,
    thread: JoinHandle<BackgroundSender>,
}

/// One pass over all memory.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) log: Arc<dyn DirtyLog>,
    /// The first one sends everything that is not a hole in the RAM files: the
    /// destination began with nothing but holes.
    pub(super) first: bool,
    /// The number of the next chunk.
    cursor: AtomicU64,
    failed: AtomicBool,
    /// What went wrong first; what follows from it does not count.
    failure: OnceLock<SourceFailure>,
}

impl Round {
    pub(super) fn new(log: Arc<dyn DirtyLog>, first: bool) -> Self {
        Self {
            log,
            first,
            cursor: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Work that nobody else does; `None` when there is no more, or no point
    /// in it.
    pub(super) fn next(&self, layout: &RamLayout) -> Option<PageRange> {
        loop {
            if self.failed.load(Ordering::Relaxed) {
                return None;
            }
            // Only a number: what a worker does about its chunk depends on
            // nothing that another one has done.
            let number = self.cursor.fetch_add(1, Ordering::Relaxed);
            let chunk = chunk(layout, number)?;
            if !chunk.is_empty() {
                return Some(chunk);
            }
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn fail(&self, failure: SourceFailure) {
        let _ = self.failure.set(failure);
        self.failed.store(true, Ordering::Relaxed);
    }
}

/// The `number`th chunk; `None` beyond the last one. May be empty.
///
/// Chunks are cut where the guest's host pages are: the log of a huge page is
/// cleared as a whole, and two threads that each took a part of it could hide
/// it from each other for a round.
fn chunk(layout: &RamLayout, number: u64) -> Option<PageRange> {
    let all = layout.all();
    let cut = |number: u64| {
        let page = Page::new(number.saturating_mul(CHUNK));
        if all.contains(page) {
            layout.host_page_range(page).start()
        } else {
            all.end()
        }
    };
    (number.saturating_mul(CHUNK) < all.len())
        .then(|| PageRange::new(cut(number), cut(number.saturating_add(1))))
}

impl Crew {
    /// A worker for each link. When one link ends, its worker ends all of
    /// `streams`: the others may be blocked on a peer that is gone.
    pub(super) fn start(
        shared: &Move,
        links: Vec<BackgroundSender>,
        streams: &Arc<[Arc<Stream>]>,
        owed: &Arc<Owed>,
    ) -> Result<Self, SourceFailure> {
        let start = |(number, link)| {
            let (orders, ordered) = sync_channel::<Arc<Round>>(1);
            let (finished, done) = sync_channel(1);
            let mut sender = ChunkSender::new(shared, link, owed);
            let priority = shared.options.priority;
            let streams = Arc::clone(streams);
            let thread = thread::Builder::new()
                .name(format!("src-precopy-{number}"))
                .spawn(move || {
                    priority.take(Rank::Background);
                    confine();
                    while let Ok(round) = ordered.recv() {
                        if let Err(failure) = sender.round(&round) {
                            let ended =
                                matches!(&failure, SourceFailure::Link { cause, .. } if cause.is_end());
                            round.fail(failure);
                            if ended {
                                streams.iter().for_each(|stream| stream.shutdown());
                            }
                        }
                        // Before it is reported: whoever waits for the reports
                        // has the round, and the log in it, alone.
                        drop(round);
                        if finished.send(()).is_err() {
                            break;
                        }
                    }
                    sender.into_link()
                })
                .map_err(SourceFailure::Thread)?;
            Ok(Worker {
                orders,
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

    /// Does a round; when it returns, every link is empty.
    pub(super) fn round(&self, round: Round) -> Result<(), SourceFailure> {
        let round = Arc::new(round);
        let ordered = self
            .0
            .iter()
            .map(|worker| worker.orders.send(Arc::clone(&round)).is_ok());
        // All of them, before anybody is waited for.
        let mut alive = ordered.fold(true, |all, one| all & one);
        for worker in &self.0 {
            alive &= worker.done.recv().is_ok();
        }
        match Arc::into_inner(round).and_then(|round| round.failure.into_inner()) {
            Some(failure) => Err(failure),
            None if alive => Ok(()),
            None => Err(SourceFailure::ThreadDied),
        }
    }

    /// Ends the workers; gives their links back, which are empty.
    pub(super) fn disband(self) -> Result<Vec<BackgroundSender>, SourceFailure> {
        let (orders, threads): (Vec<_>, Vec<_>) = self
            .0
            .into_iter()
            .map(|worker| (worker.orders, worker.thread))
            .unzip();
        drop(orders);
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| SourceFailure::ThreadDied))
            .collect()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock};

    const HUGE: u64 = 2 << 20;

    fn layout(blocks: &[(u64, u64)]) -> RamLayout {
        let blocks = blocks
            .iter()
            .enumerate()
            .map(|(nth, &(bytes, host_page))| RamBlock {
                id: nth.to_string(),
                bytes,
                host_page,
                guest: Vec::new(),
            });
        RamLayout::new(blocks.collect()).unwrap()
    }

    #[test]
    fn chunks_cover_everything_once_and_cut_no_host_page() {
        for blocks in [
            &[(PAGE_BYTES, PAGE_BYTES)][..],
            &[(HUGE, PAGE_BYTES)],
            &[(HUGE + 7 * PAGE_BYTES, PAGE_BYTES)],
            &[
                (3 * PAGE_BYTES, PAGE_BYTES),
                (5 * HUGE, HUGE),
                (9 * PAGE_BYTES, PAGE_BYTES),
            ],
            &[(PAGE_BYTES, PAGE_BYTES), (1 << 30, 1 << 30), (HUGE, HUGE)],
        ] {
            let layout = layout(blocks);
            let mut end = Page::new(0);
            for number in 0.. {
                let Some(chunk) = chunk(&layout, number) else {
                    break;
                };
                if chunk.is_empty() {
                    continue;
                }
                assert_eq!(chunk.start(), end, "{blocks:?}");
                assert_eq!(layout.round_out(chunk), chunk, "{blocks:?}");
                end = chunk.end();
            }
            assert_eq!(end, layout.all().end(), "{blocks:?}");
        }
    }
}
