//! Pre-copy on one link: a chunk's log is taken, and what it says is sent.

use std::sync::Arc;

use hikkoshi_pages::PageRange;

use super::Move;
use super::crew::Round;
use super::error::SourceFailure;
use super::owed::Owed;
use super::pieces::{Piece, PieceReader};
use crate::link::BackgroundSender;
use crate::stats::Counters;

/// Pages sent in one frame, 1 MiB.
const PIECE: usize = 256;

/// Sends chunks on one link. Everything in it is its worker's own.
#[derive(Debug)]
pub(super) struct ChunkSender {
    shared: Move,
    link: BackgroundSender,
    /// Learns which pages are written often.
    owed: Arc<Owed>,
    reader: PieceReader,
    runs: Vec<PageRange>,
    /// The last run of data that was seen in the RAM files.
    data: PageRange,
}

impl ChunkSender {
    pub(super) fn new(shared: &Move, link: BackgroundSender, owed: &Arc<Owed>) -> Self {
        Self {
            shared: shared.clone(),
            link,
            owed: Arc::clone(owed),
            reader: PieceReader::new(PIECE),
            runs: Vec::new(),
            data: PageRange::EMPTY,
        }
    }

    pub(super) fn into_link(self) -> BackgroundSender {
        self.link
    }

    /// Sends chunks of `round` until there are no more, and waits until they
    /// have arrived.
    pub(super) fn round(&mut self, round: &Round) -> Result<(), SourceFailure> {
        // Data found in a former round may be a hole by now (a balloon), and
        // only the first round looks for data.
        self.data = PageRange::EMPTY;
        while let Some(chunk) = round.next(self.shared.ram.layout()) {
            self.shared.check()?;
            let before = self.link.sent();
            self.chunk(chunk, round)?;
            let counters = &self.shared.counters;
            Counters::add(&counters.precopy_bytes, self.link.sent() - before);
            self.shared
                .progress
                .tell(&*self.shared.observer, counters.bytes().precopy);
        }
        if round.has_failed() {
            return Ok(());
        }
        self.link
            .drain(&self.shared.cancel)
            .map_err(SourceFailure::link(
                "waiting for pre-copied pages to arrive",
            ))
    }

    /// The log is taken right before the chunk is sent: it is never stale, and
    /// a page that is dirtied again before its turn is sent once.
    fn chunk(&mut self, chunk: PageRange, round: &Round) -> Result<(), SourceFailure> {
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        let taken = round.log.take(chunk, &mut |run| {
            self.owed.written(run);
            runs.push(run);
        });
        let sent = taken.map_err(SourceFailure::from).and_then(|()| {
            if round.first {
                runs.clear();
                self.find_data(chunk, &mut runs)?;
                let data: u64 = runs.iter().map(|r| r.len()).sum();
                Counters::add(&self.shared.counters.zero, chunk.len() - data);
                self.shared.progress.done(chunk.len() - data);
            }
            runs.iter().try_for_each(|&run| self.send(run))
        });
        self.runs = runs;
        sent
    }

    /// Collects the parts of `chunk` that the RAM file has data for.
    ///
    /// A hole that is written after this look is in the dirty log, which was
    /// taken before. So holes are looked for anew in every chunk; what was
    /// data once may be taken for data later.
    fn find_data(
        &mut self,
        chunk: PageRange,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), SourceFailure> {
        let mut rest = chunk;
        while !rest.is_empty() {
            if !self.data.contains(rest.start()) {
                match self.shared.ram.data_run(rest)? {
                    Some(run) => self.data = run,
                    None => return Ok(()),
                }
            }
            let data = self.data.intersect(rest);
            runs.push(data);
            rest = PageRange::new(data.end(), rest.end());
        }
        Ok(())
    }

    fn send(&mut self, run: PageRange) -> Result<(), SourceFailure> {
        let (shared, link) = (&self.shared, &mut self.link);
        self.reader.pieces(&shared.ram, run, |piece| {
            let (pages, result) = match piece {
                Piece::Data(range, content) => {
                    Counters::add(&shared.counters.precopy, range.len());
                    (range.len(), link.pages(range, content, &shared.cancel))
                }
                Piece::Zeros(range) => {
                    Counters::add(&shared.counters.zero, range.len());
                    (range.len(), link.zeros(range, &shared.cancel))
                }
            };
            result.map_err(SourceFailure::link("sending pages"))?;
            shared.progress.done(pages);
            Ok(())
        })
    }
}
