//! Sends the pages that would be lost with the guest's process, before *commit*.
//!
//! In post-copy the source keeps the pages that it has not sent. Those in files remain when the
//! guest's process ends, and the migration continues. Next to files, a guest has some private
//! memory, of firmware and devices: without those few pages the files would be worth nothing. So
//! they are sent while the guest is paused. If all of the memory is private, it is lost with the
//! process in any case. Then only what the monitor reads when it resumes the guest is sent here:
//! QEMU writes the whole of a flash memory to its image, and would wait for each page.

use hikkoshi_link::{BackgroundSender, LinkError};
use hikkoshi_memory::{Backing, GuestRam, PageReader, PageRun};
use hikkoshi_pages::PageRange;

use crate::report::{Cell, Counters};
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::private_blocks::{MAX_SENT_BEFORE_COMMIT, sent_before_commit, smallest_first};
use crate::source::repeat_counter::SentAs;
use crate::source::unsent::UnsentPages;

/// Pages in one frame.
const PAGES_PER_READ: usize = 64;

/// The most pages that are sent only because the monitor reads them when it resumes the guest: 1
/// MiB, 0.9 ms at 10 Gbit/s. UEFI's variables have 132; its code is not read.
const MAX_READ_AT_RESUME: u64 = 256;

/// The pages to send: for each block its number and its unsent pages.
#[derive(Debug)]
pub(crate) struct PrivatePages(Vec<(usize, Vec<PageRange>)>);

impl PrivatePages {
    /// Looks for them. The guest is paused, and no thread claims pages yet. `read_at_resume` are
    /// the blocks that the monitor reads when it resumes the guest.
    pub(crate) fn find(ram: &GuestRam, unsent: &UnsentPages, read_at_resume: &[usize]) -> Self {
        let (mut room, mut blocks) = (MAX_SENT_BEFORE_COMMIT, sent_before_commit(ram));
        if blocks.is_empty() {
            room = MAX_READ_AT_RESUME;
            blocks = smallest_first(ram, |number| read_at_resume.contains(&number));
        }
        let mut found = Vec::new();
        for (number, pages) in blocks {
            let runs: Vec<_> = unsent.runs_in(pages).collect();
            let count = runs.iter().map(|run| run.len()).sum::<u64>();
            if let Some(rest) = room.checked_sub(count) {
                room = rest;
                found.push((number, runs));
            }
        }
        Self(found)
    }

    /// Sends them on an idle link, without a limit of the bandwidth: the guest is paused until they
    /// have arrived. The destination has been told of all stale pages.
    pub(crate) fn send<'a>(
        self,
        shared: &MigrationContext,
        unsent: &UnsentPages,
        link: &'a mut BackgroundSender,
    ) -> Result<PagesOnTheirWay<'a>, SourceFailure> {
        let before = link.sent();
        link.set_unlimited(true);
        let mut reader = PageReader::new(PAGES_PER_READ);
        for (_, runs) in &self.0 {
            for &run in runs {
                // A page that was requested meanwhile may still be on its way on the urgent link:
                // it is sent a second time.
                while unsent.claim(run, u64::MAX).is_some() {}
                send_run(shared, &mut reader, run, link)?;
            }
        }
        link.flush(&shared.cancel).map_err(failed)?;
        Ok(PagesOnTheirWay {
            link,
            before,
            pages: self,
        })
    }
}

/// Pages that are on their way.
#[derive(Debug)]
#[must_use = "they may not have arrived"]
pub(crate) struct PagesOnTheirWay<'a> {
    link: &'a mut BackgroundSender,
    /// Bytes that the link had sent before.
    before: u64,
    pages: PrivatePages,
}

impl PagesOnTheirWay<'_> {
    /// Waits until they have been installed.
    pub(crate) fn wait_until_installed(
        self,
        shared: &MigrationContext,
    ) -> Result<(), SourceFailure> {
        let doing = "waiting for the pages of firmware and devices to arrive";
        let arrived = self.link.drain(&shared.cancel);
        self.link.set_unlimited(false);
        arrived.map_err(SourceFailure::link(doing))?;
        Counters::add(
            &shared.counters.background_bytes,
            self.link.sent().saturating_sub(self.before),
        );
        for (number, _) in self.pages.0 {
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
        let counters = &shared.counters;
        let (range, sent) = match run {
            PageRun::Data(range, content) => {
                Counters::add(&counters.background, range.len());
                shared.sent.in_postcopy(counters, range, SentAs::Content);
                (range, link.pages(range, content, &shared.cancel))
            }
            PageRun::Zeros(range) => {
                Counters::add(&counters.zero, range.len());
                shared.sent.in_postcopy(counters, range, SentAs::Mark);
                (range, link.zeros(range, &shared.cancel))
            }
        };
        shared.map.add(Cell::Background, range);
        shared.progress.done(range.len());
        sent.map_err(failed)
    })
}

fn failed(cause: LinkError) -> SourceFailure {
    let doing = "sending the pages of firmware and devices";
    SourceFailure::Link { doing, cause }
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
        let block = |id: String, pages: u64| RamBlock::new(id, pages * PAGE_BYTES, PAGE_BYTES);
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
    fn of_private_memory_only_what_is_read_at_resume_is_sent() {
        // UEFI's code and variables, and an option ROM.
        let ram = guest(false, &[896, 132, 64]);
        let unsent = UnsentPages::empty(ram.layout().all().len(), false);
        unsent.insert(ram.layout().all());
        let sent = |read: &[usize]| {
            let found = PrivatePages::find(&ram, &unsent, read).0;
            found
                .into_iter()
                .map(|(number, _)| number)
                .collect::<Vec<_>>()
        };
        assert_eq!(sent(&[]), [0_usize; 0]);
        assert_eq!(sent(&[1, 2]), [2]);
    }

    #[test]
    fn few_unsent_pages_of_a_large_block_are_sent_after_the_small_blocks() {
        let ram = guest(true, &[896, 128, 64]);
        let unsent = UnsentPages::empty(ram.layout().all().len(), false);
        let sent = |unsent: &UnsentPages| {
            let found = PrivatePages::find(&ram, unsent, &[1]).0;
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
