//! Sends the pages that would be lost with the guest's process, before *commit*.
//!
//! In post-copy the source keeps the pages that it has not sent. Those in files remain when the
//! guest's process ends, and the migration continues. Next to files, a guest has some private
//! memory, of firmware and devices: without those few pages the files would be worth nothing. So
//! they are sent while the guest is paused. If all of the memory is private, it is lost with the
//! process in any case, and nothing is sent here.

use hikkoshi_link::BackgroundSender;
use hikkoshi_memory::{Backing, GuestRam, PageReader, PageRun};
use hikkoshi_pages::PageRange;

use crate::report::Counters;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::private_blocks::{MAX_SENT_BEFORE_COMMIT, sent_before_commit};
use crate::source::unsent::UnsentPages;

/// Pages in one frame.
const PAGES_PER_READ: usize = 64;

/// The pages to send: for each block its number and its unsent pages.
#[derive(Debug)]
pub(crate) struct PrivatePages(Vec<(usize, Vec<PageRange>)>);

impl PrivatePages {
    /// Looks for them. The guest is paused, and no thread claims pages yet.
    pub(crate) fn find(ram: &GuestRam, unsent: &UnsentPages) -> Self {
        let mut room = MAX_SENT_BEFORE_COMMIT;
        let mut found = Vec::new();
        for (number, pages) in sent_before_commit(ram) {
            let runs: Vec<_> = unsent.runs_in(pages).collect();
            let count = runs.iter().map(|run| run.len()).sum::<u64>();
            if let Some(rest) = room.checked_sub(count) {
                room = rest;
                found.push((number, runs));
            }
        }
        Self(found)
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
        let mut reader = PageReader::new(PAGES_PER_READ);
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
            if let Some(memory) = shared.ram.backings().get(number).and_then(Backing::private) {
                memory.set_sent();
            }
        }
        Ok(())
    }
}

fn send_run(
    shared: &MigrationContext,
    reader: &mut PageReader,
    run: PageRange,
    link: &mut BackgroundSender,
) -> Result<(), SourceFailure> {
    reader.runs(&shared.ram, run, |run| {
        let (pages, sent) = match run {
            PageRun::Data(range, content) => {
                Counters::add(&shared.counters.background, range.len());
                (range.len(), link.pages(range, content, &shared.cancel))
            }
            PageRun::Zeros(range) => {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hikkoshi_linux::Process;
    use hikkoshi_memory::{PrivateMemory, RamFile};
    use hikkoshi_pages::{PAGE_BYTES, RamBlock, RamLayout};

    use super::*;
    use crate::source::private_blocks::may_be_lost;

    /// A guest with a block in a file, if `main_in_file`, and private blocks of these numbers of
    /// pages.
    fn guest(main_in_file: bool, private: &[u64]) -> GuestRam {
        let own = Arc::new(Process::open(std::process::id()).unwrap());
        let block = |id: String, pages: u64| RamBlock {
            id,
            bytes: pages * PAGE_BYTES,
            host_page: PAGE_BYTES,
            guest: Vec::new(),
        };
        let in_process = |pages: u64| -> Backing {
            let memory = PrivateMemory::open(Arc::clone(&own), 0, pages * PAGE_BYTES, false);
            memory.unwrap().into()
        };
        let mut blocks = vec![block("main".into(), 4096)];
        let mut backings = vec![if main_in_file {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.set_len(4096 * PAGE_BYTES).unwrap();
            RamFile::new(file, 0).into()
        } else {
            in_process(4096)
        }];
        for (number, &pages) in private.iter().enumerate() {
            blocks.push(block(format!("private{number}"), pages));
            backings.push(in_process(pages));
        }
        GuestRam::new(RamLayout::new(blocks).unwrap(), backings).unwrap()
    }

    #[test]
    fn blocks_that_do_not_fit_together_may_be_lost() {
        const NONE: [usize; 0] = [];
        let lost = |pages: &[u64]| may_be_lost(&guest(true, pages));
        assert_eq!(lost(&[64, 32]), NONE);
        assert_eq!(lost(&[MAX_SENT_BEFORE_COMMIT]), NONE);
        // UEFI (3.5 MiB) beside its variables (0.5 MiB) and an option ROM.
        assert_eq!(lost(&[896, 128, 64]), [1]);
        assert_eq!(lost(&[MAX_SENT_BEFORE_COMMIT + 1, 64]), [1]);
        assert_eq!(may_be_lost(&guest(false, &[64])), [0, 1]);
    }

    #[test]
    fn few_unsent_pages_of_a_large_block_are_sent_after_the_small_blocks() {
        let ram = guest(true, &[896, 128, 64]);
        let unsent = UnsentPages::empty(ram.layout().all().len(), false);
        let sent = |unsent: &UnsentPages| {
            let found = PrivatePages::find(&ram, unsent).0;
            found
                .into_iter()
                .map(|(number, _)| number)
                .collect::<Vec<_>>()
        };
        for (_, pages) in ram.layout().blocks().skip(2) {
            unsent.insert(pages);
        }
        let (_, first) = ram.layout().blocks().nth(1).unwrap();
        unsent.insert(first);
        assert_eq!(sent(&unsent), [3, 2]);
        assert!(unsent.claim(first, 256).is_some());
        assert_eq!(sent(&unsent), [3, 2, 1]);
    }
}
