//! Pre-copy on one link: sends the dirty pages of chunks.

use std::sync::Arc;

use hikkoshi_pages::PageRange;

use crate::report::{Cell, Counters};
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::batch::{Batch, Work};
use crate::source::precopy::collector::Collector;
use crate::source::repeat_counter::SentAs;
use crate::source::unsent::UnsentPages;
use hikkoshi_link::BackgroundSender;
use hikkoshi_memory::{PageReader, PageRun};

/// Pages sent in one frame, 1 MiB.
const PAGES_PER_READ: usize = 256;

/// Sends chunks on one link. It belongs to one worker.
#[derive(Debug)]
pub(crate) struct ChunkSender {
    shared: MigrationContext,
    link: BackgroundSender,
    collector: Collector,
    reader: PageReader,
    runs: Vec<PageRange>,
}

impl ChunkSender {
    pub(crate) fn new(
        shared: &MigrationContext,
        link: BackgroundSender,
        unsent: &Arc<UnsentPages>,
    ) -> Self {
        Self {
            shared: shared.clone(),
            link,
            collector: Collector::new(shared, unsent),
            reader: PageReader::new(PAGES_PER_READ),
            runs: Vec::new(),
        }
    }

    pub(crate) fn into_link(self) -> BackgroundSender {
        self.link
    }

    /// Sends chunks of `batch` until there are no more, or it ends early. If it is the round's last
    /// batch, waits until everything sent on this link has arrived.
    pub(crate) fn batch(&mut self, batch: &Batch) -> Result<(), SourceFailure> {
        self.collector.begin();
        while let Some(number) = batch.next() {
            self.shared.check()?;
            let before = self.link.sent();
            match batch.work() {
                Work::Log { log, first } => {
                    // Taken right before the range is sent, the log is never
                    // stale, and a page that is dirtied again before its turn
                    // is sent once.
                    let mut runs = std::mem::take(&mut self.runs);
                    runs.clear();
                    let sent = self
                        .collector
                        .collect(log, *first, number, &mut runs)
                        .and_then(|exists| self.send(&runs, batch).map(|()| exists));
                    self.runs = runs;
                    if !sent? {
                        break;
                    }
                }
                Work::Taken(chunks) => {
                    let runs = usize::try_from(number).ok().and_then(|n| chunks.get(n));
                    let Some(runs) = runs else { break };
                    self.send(runs, batch)?;
                }
            }
            let counters = &self.shared.counters;
            Counters::add(&counters.precopy_bytes, self.link.sent() - before);
        }
        if batch.has_failed() || !batch.is_last() {
            return Ok(());
        }
        self.link
            .drain(&self.shared.cancel)
            .map_err(SourceFailure::link(
                "waiting for pre-copied pages to arrive",
            ))
    }

    /// Sends pages of `batch` until the batch has failed or ends early.
    fn send(&mut self, runs: &[PageRange], batch: &Batch) -> Result<(), SourceFailure> {
        for part in runs
            .iter()
            .flat_map(|run| run.chunks(PAGES_PER_READ as u64))
        {
            if batch.has_failed() {
                break;
            }
            if batch.ends_early() {
                batch.leave(part);
                continue;
            }
            self.send_run(part)?;
        }
        Ok(())
    }

    fn send_run(&mut self, run: PageRange) -> Result<(), SourceFailure> {
        let (shared, link) = (&self.shared, &mut self.link);
        self.reader.runs(&shared.ram, run, |run| {
            let counters = &shared.counters;
            let (range, result) = match run {
                PageRun::Data(range, content) => {
                    Counters::add(&counters.precopy, range.len());
                    shared.sent.in_precopy(counters, range, SentAs::Content);
                    (range, link.pages(range, content, &shared.cancel))
                }
                PageRun::Zeros(range) => {
                    Counters::add(&counters.zero, range.len());
                    shared.sent.in_precopy(counters, range, SentAs::Mark);
                    (range, link.zeros(range, &shared.cancel))
                }
            };
            shared.map.add(Cell::Copied, range);
            result.map_err(SourceFailure::link("sending pages"))?;
            shared.progress.done(range.len());
            Ok(())
        })
    }
}
