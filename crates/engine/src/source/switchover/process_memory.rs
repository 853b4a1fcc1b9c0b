//! Sends the pages that would be lost with the guest's process, before *commit*.
//!
//! In post-copy the source keeps the pages that it has not sent. Those in files remain when the
//! guest's process ends, and the migration continues. Next to files, a guest has some private
//! memory, of firmware and devices: without those few pages the files would be worth nothing. So
//! they are sent while the guest is paused. If all of the memory is private, it is lost with the
//! process in any case, and nothing is sent here.

use hikkoshi_link::BackgroundSender;
use hikkoshi_memory::{Backing, GuestRam, Piece, PieceReader};
use hikkoshi_pages::PageRange;

use crate::report::Counters;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::unsent::UnsentPages;

/// The most pages that are sent here, 4 MiB: 3.4 ms at 10 Gbit/s. The memory of firmware has less
/// than one MiB; a larger block (video memory, a plugged DIMM) follows in post-copy.
const MOST: u64 = 1024;

/// Pages in one frame.
const PIECE: usize = 64;

/// The pages to send: for each block its number and its unsent pages.
#[derive(Debug)]
pub(crate) struct ProcessPages(Vec<(usize, Vec<PageRange>)>);

impl ProcessPages {
    /// Looks for them. The guest is paused, and no thread claims pages yet.
    pub(crate) fn find(ram: &GuestRam, unsent: &UnsentPages) -> Self {
        if ram
            .backings()
            .iter()
            .all(|backing| backing.file().is_none())
        {
            return Self(Vec::new());
        }
        let blocks = ram.layout().blocks().zip(ram.backings()).enumerate();
        let private = blocks.filter(|(_, (_, backing))| backing.process().is_some());
        let mut found: Vec<_> = private
            .map(|(number, ((_, pages), _))| {
                let runs: Vec<_> = unsent.runs_in(pages).collect();
                let count = runs.iter().map(|run| run.len()).sum::<u64>();
                (count, number, runs)
            })
            .collect();
        found.sort_by_key(|(count, number, _)| (*count, *number));
        let mut sum = 0;
        found.retain(|(count, ..)| {
            sum += count;
            sum <= MOST
        });
        let found = found.into_iter().map(|(_, number, runs)| (number, runs));
        Self(found.collect())
    }

    /// Sends them on an idle link, and waits until they have been installed. The destination is
    /// ready.
    pub(crate) fn send(
        self,
        shared: &MigrationContext,
        unsent: &UnsentPages,
        link: &mut BackgroundSender,
    ) -> Result<(), SourceFailure> {
        let before = link.sent();
        let mut reader = PieceReader::new(PIECE);
        for (_, runs) in &self.0 {
            for &run in runs {
                // A page that was requested meanwhile may still be on its way on the urgent link:
                // it is sent a second time.
                while unsent.claim(run, u64::MAX).is_some() {}
                send_run(shared, &mut reader, run, link)?;
            }
        }
        let doing = "waiting for the pages of firmware and devices to arrive";
        link.drain(&shared.cancel)
            .map_err(SourceFailure::link(doing))?;
        Counters::add(
            &shared.counters.background_bytes,
            link.sent().saturating_sub(before),
        );
        for (number, _) in self.0 {
            if let Some(memory) = shared.ram.backings().get(number).and_then(Backing::process) {
                memory.set_sent();
            }
        }
        Ok(())
    }
}

fn send_run(
    shared: &MigrationContext,
    reader: &mut PieceReader,
    run: PageRange,
    link: &mut BackgroundSender,
) -> Result<(), SourceFailure> {
    reader.pieces(&shared.ram, run, |piece| {
        let (pages, sent) = match piece {
            Piece::Data(range, content) => {
                Counters::add(&shared.counters.background, range.len());
                (range.len(), link.pages(range, content, &shared.cancel))
            }
            Piece::Zeros(range) => {
                Counters::add(&shared.counters.zero, range.len());
                (range.len(), link.zeros(range, &shared.cancel))
            }
        };
        shared.progress.done(pages);
        sent.map_err(SourceFailure::link(
            "sending the pages of firmware and devices",
        ))
    })
}
