//! Counts the pages that are sent more than once, by the reason.
//!
//! A bit for each page says whether it was sent in pre-copy, another one whether it was sent in
//! post-copy. The thread that sends pages sets their bits, a word at a time, and sees which of them
//! were set. So the counts are exact, and there is no pass over the bitmaps. No lock is taken.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_pages::{PageBitmap, PageRange, RamLayout};

use crate::report::{Counters, Repeat};
use crate::source::bit_scan::words;
use crate::source::options::SourceOptions;
use hikkoshi_wire::Mode;

/// How pages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SentAs {
    /// With their content.
    Content,
    /// As a mark, because they hold only zeros.
    Mark,
}

/// The pages that this engine has sent.
#[derive(Debug)]
pub(crate) struct RepeatCounter {
    /// In pre-copy, if there is one.
    precopy: Option<PageBitmap>,
    /// In post-copy, if there may be one.
    postcopy: Option<PageBitmap>,
    /// The pages that the guest wrote to after they were sent in pre-copy, if the destination drops
    /// more than these: it has larger host pages.
    written: OnceLock<PageBitmap>,
    /// The links were lost in post-copy.
    links_lost: AtomicBool,
}

impl RepeatCounter {
    /// Nothing was sent yet, of a guest of `pages` pages.
    pub(crate) fn none(pages: u64, options: &SourceOptions) -> Self {
        let bitmap = |needed: bool| needed.then(|| PageBitmap::empty(pages));
        Self {
            precopy: bitmap(options.mode != Mode::Postcopy),
            postcopy: bitmap(options.may_postcopy()),
            written: OnceLock::new(),
            links_lost: AtomicBool::new(false),
        }
    }

    /// Another engine has sent pages, and it is not known which: nothing is counted.
    pub(crate) fn unknown() -> Self {
        Self {
            precopy: None,
            postcopy: None,
            written: OnceLock::new(),
            links_lost: AtomicBool::new(false),
        }
    }

    /// The destination's host pages are known. The guest is not paused yet.
    pub(crate) fn set_destination(&self, source: &RamLayout, destination: &RamLayout) {
        let larger = source
            .blocks()
            .zip(destination.blocks())
            .any(|((here, _), (there, _))| there.host_page > here.host_page);
        if larger && let Some(precopy) = &self.precopy {
            let _ = self.written.set(PageBitmap::empty(precopy.pages()));
        }
    }

    /// The guest has written to these pages since pre-copy, as the dirty log says.
    pub(crate) fn note_written(&self, pages: PageRange) {
        if let Some(written) = self.written.get() {
            written.set_range(pages);
        }
    }

    /// The links were lost after *commit*. No thread sends pages.
    pub(crate) fn note_lost_links(&self) {
        self.links_lost.store(true, Ordering::Relaxed);
    }

    /// Counts pages that are sent in pre-copy.
    pub(crate) fn in_precopy(&self, counters: &Counters, pages: PageRange, sent: SentAs) {
        if let Some(precopy) = &self.precopy {
            let again = pages.len() - precopy.set_range(pages);
            count(counters, Repeat::Precopy, again, sent);
        }
    }

    /// Counts pages that are sent in post-copy, or before it because they would be lost with the
    /// guest's process.
    pub(crate) fn in_postcopy(&self, counters: &Counters, pages: PageRange, sent: SentAs) {
        let Some(postcopy) = &self.postcopy else {
            return;
        };
        let (mut twice, mut stale, mut whole) = (0, 0, 0);
        for (number, bits) in words(pages) {
            let first = postcopy.or_word(number, bits);
            twice += ones(bits & !first);
            let precopied = match &self.precopy {
                Some(precopy) => precopy.load_word(number) & first,
                None => 0,
            };
            let written = match self.written.get() {
                Some(written) => written.load_word(number),
                None => u64::MAX,
            };
            stale += ones(precopied & written);
            whole += ones(precopied & !written);
        }
        // A page is claimed once until links are lost. But those that are sent before *commit* may
        // be on their way already because they were requested.
        let why = match self.links_lost.load(Ordering::Relaxed) {
            true => Repeat::Resent,
            false => Repeat::Requested,
        };
        count(counters, why, twice, sent);
        count(counters, Repeat::Stale, stale, sent);
        count(counters, Repeat::HostPage, whole, sent);
    }
}

fn ones(bits: u64) -> u64 {
    u64::from(bits.count_ones())
}

fn count(counters: &Counters, why: Repeat, pages: u64, sent: SentAs) {
    if pages > 0 {
        let with_content = match sent {
            SentAs::Content => pages,
            SentAs::Mark => 0,
        };
        counters.repeats.add(why, pages, with_content);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::report::{Repeated, Repeats};
    use hikkoshi_pages::{PAGE_BYTES, Page, RamBlock};
    use proptest::prelude::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::from_len(Page::new(start), pages)
    }

    fn of_mode(mode: Mode) -> RepeatCounter {
        let options = SourceOptions {
            mode,
            ..SourceOptions::default()
        };
        RepeatCounter::none(1024, &options)
    }

    fn layout(host_page: u64) -> RamLayout {
        RamLayout::new(vec![RamBlock::new("ram", 1024 * PAGE_BYTES, host_page)]).unwrap()
    }

    fn repeated(pages: u64, with_content: u64) -> Repeated {
        Repeated {
            pages,
            bytes: with_content * PAGE_BYTES,
        }
    }

    #[test]
    fn a_hybrid_migration_is_counted_by_the_reason() {
        let (sent, counters) = (of_mode(Mode::Hybrid), Counters::default());
        sent.set_destination(&layout(PAGE_BYTES), &layout(PAGE_BYTES));
        // The first round: 0 to 600, without the hole 600 to 700.
        sent.in_precopy(&counters, range(0, 500), SentAs::Content);
        sent.in_precopy(&counters, range(500, 100), SentAs::Mark);
        assert_eq!(counters.repeats.all(), Repeats::default());
        // The second one: 70 pages again, 20 of them as a mark, and 10 of the hole.
        sent.in_precopy(&counters, range(40, 50), SentAs::Content);
        sent.in_precopy(&counters, range(590, 10), SentAs::Mark);
        sent.in_precopy(&counters, range(100, 10), SentAs::Mark);
        sent.in_precopy(&counters, range(600, 10), SentAs::Content);
        // Post-copy: 60 pages that were sent before, 5 that were not.
        sent.in_postcopy(&counters, range(60, 60), SentAs::Content);
        sent.in_postcopy(&counters, range(650, 5), SentAs::Content);
        // 3 pages of firmware that were requested meanwhile.
        sent.in_postcopy(&counters, range(62, 3), SentAs::Content);
        // 30 pages were on their way when the links were lost; 10 were not sent before.
        sent.note_lost_links();
        sent.in_postcopy(&counters, range(90, 40), SentAs::Content);
        sent.in_postcopy(&counters, range(650, 2), SentAs::Mark);
        assert_eq!(
            counters.repeats.all(),
            Repeats {
                precopy: repeated(70, 50),
                stale: repeated(60 + 10, 60 + 10),
                host_page: repeated(0, 0),
                resent: repeated(30 + 2, 30),
                requested: repeated(3, 3),
            }
        );
    }

    #[test]
    fn whole_host_pages_of_the_destination_are_told_apart() {
        let (sent, counters) = (of_mode(Mode::Hybrid), Counters::default());
        sent.set_destination(&layout(PAGE_BYTES), &layout(512 * PAGE_BYTES));
        sent.in_precopy(&counters, range(0, 1000), SentAs::Content);
        sent.note_written(range(100, 7));
        sent.note_written(range(104, 7));
        sent.in_postcopy(&counters, range(0, 512), SentAs::Content);
        let all = counters.repeats.all();
        assert_eq!(all.stale, repeated(11, 11));
        assert_eq!(all.host_page, repeated(501, 501));
        assert_eq!(all.precopy.pages + all.resent.pages, 0);
    }

    #[test]
    fn post_copy_alone_repeats_only_what_was_lost() {
        let (sent, counters) = (of_mode(Mode::Postcopy), Counters::default());
        sent.in_postcopy(&counters, range(0, 1024), SentAs::Content);
        assert_eq!(counters.repeats.all(), Repeats::default());
        sent.note_lost_links();
        sent.in_postcopy(&counters, range(1000, 24), SentAs::Content);
        let all = counters.repeats.all();
        assert_eq!((all.resent, all.stale.pages), (repeated(24, 24), 0));
        // Another engine does not know what was sent.
        let counters = Counters::default();
        for _ in 0..2 {
            RepeatCounter::unknown().in_postcopy(&counters, range(0, 9), SentAs::Content);
        }
        assert_eq!(counters.repeats.all(), Repeats::default());
    }

    proptest! {
        /// The counts are those of a list of what was sent.
        #[test]
        fn counts_are_those_of_each_page(
            runs in prop::collection::vec((0_u64..1024, 0_u64..200, 0_usize..3, any::<bool>()), 0..40),
            written in prop::collection::vec((0_u64..1024, 0_u64..100), 0..5),
        ) {
            let (sent, counters) = (of_mode(Mode::Hybrid), Counters::default());
            sent.set_destination(&layout(PAGE_BYTES), &layout(512 * PAGE_BYTES));
            let within = |start: u64, pages: u64| range(start, pages.min(1024 - start));
            let mut is_written = [false; 1024];
            for (start, pages) in written {
                sent.note_written(within(start, pages));
                for page in within(start, pages) {
                    is_written[usize::try_from(page.index()).unwrap()] = true;
                }
            }
            let mut expected = Repeats::default();
            let (mut before, mut after) = ([false; 1024], [false; 1024]);
            // In the order of a migration.
            for phase in 0..3 {
                if phase == 2 {
                    sent.note_lost_links();
                }
                for &(start, pages, of_phase, content) in &runs {
                    if of_phase != phase {
                        continue;
                    }
                    let run = within(start, pages);
                    let sent_as = if content { SentAs::Content } else { SentAs::Mark };
                    match phase {
                        0 => sent.in_precopy(&counters, run, sent_as),
                        _ => sent.in_postcopy(&counters, run, sent_as),
                    }
                    for page in run {
                        let page = usize::try_from(page.index()).unwrap();
                        let why = match (phase, before[page], after[page], is_written[page]) {
                            (0, true, _, _) => Some(&mut expected.precopy),
                            (1, _, true, _) => Some(&mut expected.requested),
                            (2, _, true, _) => Some(&mut expected.resent),
                            (1 | 2, true, false, true) => Some(&mut expected.stale),
                            (1 | 2, true, false, false) => Some(&mut expected.host_page),
                            _ => None,
                        };
                        if let Some(why) = why {
                            why.pages += 1;
                            why.bytes += if content { PAGE_BYTES } else { 0 };
                        }
                        match phase {
                            0 => before[page] = true,
                            _ => after[page] = true,
                        }
                    }
                }
            }
            prop_assert_eq!(counters.repeats.all(), expected);
        }
    }
}
