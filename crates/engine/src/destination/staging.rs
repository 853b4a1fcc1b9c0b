//! Huge pages in pieces.
//!
//! The kernel installs a huge page whole or not at all, but it travels in
//! 4 KiB pieces that urgent pages can overtake. The pieces meet here, in any
//! order and from any link (`book.rs`), in buffers that are set aside when
//! post-copy is made ready: they take memory when they are first used.
//!
//! **How many.** A source ends a huge page before it begins another on the same
//! link (`hikkoshi_wire`'s essay), so that there are no more incomplete ones
//! than links and unanswered requests. What is asked for is bounded here
//! (`turns.rs`); what may be in flight on a link is allowed for. A peer that
//! still finds no slot does not keep to this, and is refused.

use hikkoshi_faults::{Errno, PageBuffer};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamLayout};

use super::book::{Book, TooManyPartial};

/// Huge pages of one size that are asked for at once take at most so many
/// bytes, but one is always possible.
const ASKED_BYTES: u64 = 64 << 20;

/// Most huge pages that are asked for at once.
const ASKED: u64 = 32;

/// A link may have pieces of so many bytes of huge pages in flight: with
/// several links taking turns in one huge page, a late one may hold up some.
const IN_FLIGHT_BYTES: u64 = 16 << 20;

/// The most gaps of a huge page that are asked for one by one.
pub(super) const GAPS: usize = 16;

/// How much there is to set aside for huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// Bytes in a huge page.
    pub(super) host_page: u64,
    /// Huge pages that are asked for at once.
    pub(super) asked: u64,
    /// Huge pages that may be incomplete at once.
    pub(super) slots: u64,
}

impl Size {
    /// For each size of huge pages in `layout`, with a source that sends over
    /// so many background links.
    pub(super) fn all(layout: &RamLayout, links: u16) -> Vec<Self> {
        let mut sizes: Vec<Self> = Vec::new();
        for (block, _) in layout.blocks() {
            let host_page = block.host_page;
            if host_page == PAGE_BYTES {
                continue;
            }
            let there = block.bytes / host_page;
            match sizes.iter_mut().find(|size| size.host_page == host_page) {
                Some(size) => size.slots += there,
                None => sizes.push(Self {
                    host_page,
                    asked: (ASKED_BYTES / host_page).clamp(1, ASKED),
                    slots: there,
                }),
            }
        }
        for size in &mut sizes {
            let a_link = (IN_FLIGHT_BYTES / size.host_page).max(1);
            let most = u64::from(links) * a_link + size.asked;
            // No more than there are.
            size.slots = size.slots.min(most);
            size.asked = size.asked.min(size.slots);
        }
        sizes
    }

    /// Memory that putting huge pages together may take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.host_page.saturating_mul(self.slots)
    }
}

/// Huge pages of one size that have arrived in part.
#[derive(Debug)]
pub(super) struct Staging {
    book: Book,
    buffers: Box<[PageBuffer]>,
    /// Whether a buffer is given back to the system after each use.
    lends: bool,
}

/// A huge page that is whole. Its buffer is free again when this is dropped:
/// the page must be booked as received before.
#[derive(Debug)]
pub(super) struct Whole<'a> {
    staging: &'a Staging,
    slot: usize,
}

impl Whole<'_> {
    /// Its content.
    pub(super) fn buffer(&self) -> Option<&PageBuffer> {
        self.staging.buffers.get(self.slot)
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.staging.leave(self.slot, true);
    }
}

impl Staging {
    /// # Errors
    /// When there is no address space for the buffers.
    pub(super) fn new(size: Size) -> Result<Self, Errno> {
        let bytes = usize::try_from(size.host_page).map_err(|_| Errno::NOMEM)?;
        let slots = usize::try_from(size.slots).map_err(|_| Errno::NOMEM)?;
        Ok(Self {
            book: Book::new(size.host_page / PAGE_BYTES, slots),
            buffers: (0..slots)
                .map(|_| PageBuffer::new(bytes))
                .collect::<Result<_, _>>()?,
            lends: size.host_page > ASKED_BYTES,
        })
    }

    /// Adds `piece` of the huge page `whole`; gives it when that made it
    /// complete. A piece that arrives twice is taken once. `missing` says
    /// whether the huge page has not been received yet.
    pub(super) fn add(
        &self,
        whole: PageRange,
        piece: PageRange,
        content: &[u8],
        missing: impl Fn() -> bool,
    ) -> Result<Option<Whole<'_>>, TooManyPartial> {
        let slot = self.book.enter(whole.start())?;
        // It may have become whole since the caller looked, and left its slot.
        if !missing() {
            self.leave(slot, true);
            return Ok(None);
        }
        let place = |page: Page| page.index() - whole.start().index();
        let piece = PageRange::from_len(Page::new(place(piece.start())), piece.len());
        let mut written = 0;
        while let Some(run) = self.book.claim(slot, piece) {
            self.write(slot, run, piece, content);
            written += run.len();
        }
        if written > 0 && self.book.written(slot, written) {
            return Ok(Some(Whole {
                staging: self,
                slot,
            }));
        }
        self.leave(slot, false);
        Ok(None)
    }

    /// Tells which parts of the huge page `whole` have not arrived: up to
    /// [`GAPS`] ranges, the last of which may reach over some that have.
    pub(super) fn gaps(&self, whole: PageRange, mut each: impl FnMut(PageRange)) {
        let Some(slot) = self.book.enter_existing(whole.start()) else {
            each(whole);
            return;
        };
        if let Some(missing) = self.book.missing(slot) {
            let there = |range: PageRange| {
                PageRange::from_len(
                    whole.start().saturating_add(range.start().index()),
                    range.len(),
                )
            };
            let mut last: Option<PageRange> = None;
            for (number, run) in missing.runs(missing.all()).enumerate() {
                last = match last {
                    Some(last) if number >= GAPS => Some(PageRange::new(last.start(), run.end())),
                    Some(last) => {
                        each(there(last));
                        Some(run)
                    }
                    None => Some(run),
                };
            }
            // Nothing: all of it has been claimed and is being written.
            if let Some(last) = last {
                each(there(last));
            }
        }
        self.leave(slot, false);
    }

    fn write(&self, slot: usize, run: PageRange, piece: PageRange, content: &[u8]) {
        let bytes = |range: PageRange| usize::try_from(range.bytes()).unwrap_or(usize::MAX);
        let skip = bytes(PageRange::new(piece.start(), run.start()));
        let part = content
            .get(skip..)
            .and_then(|rest| rest.get(..bytes(run)))
            .unwrap_or_default();
        let at = usize::try_from(run.start().index()).unwrap_or(usize::MAX / PAGE_SIZE) * PAGE_SIZE;
        let fits = self
            .buffers
            .get(slot)
            .is_some_and(|buffer| buffer.write(at, part));
        debug_assert!(fits && part.len() == bytes(run));
    }

    fn leave(&self, slot: usize, done: bool) {
        self.book.leave(slot, done, || {
            if self.lends
                && let Some(buffer) = self.buffers.get(slot)
            {
                buffer.clear();
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use hikkoshi_pages::RamBlock;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    const HUGE: u64 = 512;

    fn staging(slots: u64) -> Staging {
        Staging::new(Size {
            host_page: HUGE * PAGE_BYTES,
            asked: 1,
            slots,
        })
        .unwrap()
    }

    fn content(page: Page) -> [u8; PAGE_SIZE] {
        [(page.index() % 251) as u8; PAGE_SIZE]
    }

    fn add<'a>(
        staging: &'a Staging,
        whole: PageRange,
        piece: PageRange,
    ) -> Result<Option<Whole<'a>>, TooManyPartial> {
        let bytes: Vec<u8> = piece.iter().flat_map(content).collect();
        staging.add(whole, piece, &bytes, || true)
    }

    fn check(whole: PageRange, complete: &Whole<'_>) {
        let words = complete.buffer().unwrap().words();
        for (page, words) in whole.iter().zip(words.chunks(512)) {
            let expected = u64::from_ne_bytes([content(page)[0]; 8]);
            assert!(
                words
                    .iter()
                    .all(|word| word.load(Ordering::Relaxed) == expected),
                "{page:?}"
            );
        }
    }

    fn huge(number: u64) -> PageRange {
        PageRange::from_len(Page::new(number * HUGE), HUGE)
    }

    /// Two huge pages cut into pieces of any lengths, shuffled, some twice.
    fn pieces() -> impl Strategy<Value = Vec<(u64, PageRange)>> {
        let cuts = || prop::collection::vec(1..40u64, 30..60);
        (cuts(), cuts(), prop::collection::vec(any::<bool>(), 120))
            .prop_map(|(one, two, twice)| {
                let mut all = Vec::new();
                let mut twice = twice.into_iter().cycle();
                for (number, lengths) in [(3, one), (8, two)] {
                    let whole: PageRange = huge(number);
                    let mut rest = whole;
                    let mut lengths = lengths.into_iter().cycle();
                    while !rest.is_empty() {
                        let end = rest.start().saturating_add(lengths.next().unwrap());
                        let (piece, tail) = rest.split_at(end.min(whole.end()));
                        all.push((number, piece));
                        if twice.next().unwrap() && piece.len() % 5 == 0 {
                            all.push((number, piece));
                        }
                        rest = tail;
                    }
                }
                all
            })
            .prop_shuffle()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pieces_meet_in_any_order(pieces in pieces()) {
            let staging = staging(2);
            let mut arrived = [PageBitmap::empty(HUGE), PageBitmap::empty(HUGE)];
            let mut complete = [0, 0];
            for (number, piece) in pieces {
                let which = usize::from(number == 8);
                let whole = huge(number);
                if complete[which] > 0 {
                    continue; // As the installer does.
                }
                // What is asked for meanwhile is what has not come, and all of it.
                let gone = arrived[which].clone_missing();
                let asked = PageBitmap::empty(HUGE);
                staging.gaps(whole, |gap| {
                    asked.set_range(place(whole, gap));
                });
                for page in gone.all() {
                    prop_assert!(asked.get(page) || !gone.get(page));
                }
                let last = add(&staging, whole, piece).unwrap();
                arrived[which].set_range(place(whole, piece));
                let full = arrived[which].count() == HUGE;
                prop_assert_eq!(last.is_some(), full);
                if let Some(last) = last {
                    check(whole, &last);
                    complete[which] += 1;
                    arrived[which] = PageBitmap::full(HUGE);
                }
            }
            prop_assert_eq!(complete, [1, 1]);
        }
    }

    fn place(whole: PageRange, piece: PageRange) -> PageRange {
        let first = piece.start().index() - whole.start().index();
        PageRange::from_len(Page::new(first), piece.len())
    }

    use hikkoshi_pages::PageBitmap;

    trait Missing {
        fn clone_missing(&self) -> PageBitmap;
    }

    impl Missing for PageBitmap {
        fn clone_missing(&self) -> PageBitmap {
            let missing = PageBitmap::full(self.pages());
            for run in self.runs(self.all()) {
                missing.clear_range(run);
            }
            missing
        }
    }

    #[test]
    fn threads_put_huge_pages_together() {
        let staging = staging(4);
        for round in 0..20 {
            let whole = [0, 1, 2, 3].map(|number| huge(round * 4 + number));
            let made = std::sync::atomic::AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let (staging, made) = (&staging, &made);
                    scope.spawn(move || {
                        for step in 0..HUGE {
                            for whole in whole {
                                // Each thread comes from another side; two of
                                // them bring every page.
                                let at = (step * 7 + thread / 2 * 256) % HUGE;
                                if at % 2 != thread % 2 && thread < 2 {
                                    continue;
                                }
                                let page = whole.start().saturating_add(at);
                                let done = made.load(Ordering::SeqCst);
                                let bit = 1 << (whole.start().index() / HUGE % 4);
                                let bytes = content(page);
                                let last = staging
                                    .add(whole, PageRange::one(page), &bytes, || {
                                        made.load(Ordering::SeqCst) & bit == 0 && done & bit == 0
                                    })
                                    .unwrap();
                                if let Some(last) = last {
                                    check(whole, &last);
                                    let before = made.fetch_or(bit, Ordering::SeqCst);
                                    assert_eq!(before & bit, 0, "whole twice");
                                }
                            }
                        }
                    });
                }
            });
            assert_eq!(made.into_inner(), 0b1111, "round {round}");
        }
    }

    #[test]
    fn only_the_gaps_are_asked_for() {
        let staging = staging(2);
        let whole = huge(5);
        let asked = || {
            let mut asked = Vec::new();
            staging.gaps(whole, |gap| asked.push(gap));
            asked
        };
        assert_eq!(asked(), [whole]);
        let part = |from: u64, to: u64| {
            let at = |place| whole.start().saturating_add(place);
            PageRange::new(at(from), at(to))
        };
        assert!(add(&staging, whole, part(0, 8)).unwrap().is_none());
        assert!(add(&staging, whole, part(100, 108)).unwrap().is_none());
        assert_eq!(asked(), [part(8, 100), part(108, 512)]);
        // Too many gaps: the last one reaches to the end of what is missing.
        for piece in 20..40 {
            let piece = part(piece * 12, piece * 12 + 4);
            assert!(add(&staging, whole, piece).unwrap().is_none());
        }
        let gaps = asked();
        assert_eq!(gaps.len(), GAPS);
        assert_eq!(gaps.last().unwrap().end(), whole.end());
        assert_eq!(gaps[0], part(8, 100));
    }

    #[test]
    fn a_peer_cannot_fill_the_memory_with_pieces() {
        let staging = staging(6);
        let begin = |number: u64| {
            let whole = huge(number);
            add(&staging, whole, PageRange::one(whole.start())).map(|last| last.is_some())
        };
        for number in 0..6 {
            assert_eq!(begin(number), Ok(false));
        }
        let error = begin(6).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the source sends pieces of more than 6 huge pages at once"
        );
        assert_eq!(begin(0), Ok(false), "one that was begun goes on");
    }

    #[test]
    fn as_many_slots_as_a_source_may_need() {
        let layout = |blocks: &[(u64, u64)]| {
            let blocks = blocks
                .iter()
                .enumerate()
                .map(|(number, &(bytes, host_page))| RamBlock {
                    id: number.to_string(),
                    bytes,
                    host_page,
                    guest: Vec::new(),
                });
            RamLayout::new(blocks.collect()).unwrap()
        };
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        let small = layout(&[(4 * GIB, PAGE_BYTES)]);
        assert_eq!(Size::all(&small, 4), []);
        let mixed = layout(&[
            (GIB, 2 * MIB),
            (MIB, PAGE_BYTES),
            (8 * GIB, GIB),
            (4 * MIB, 2 * MIB),
        ]);
        let [two, gib] = Size::all(&mixed, 4)[..] else {
            panic!()
        };
        assert_eq!((two.asked, two.slots), (32, 4 * 8 + 32));
        assert_eq!(two.bytes(), 128 * MIB);
        assert_eq!((gib.asked, gib.slots), (1, 5));
        assert_eq!(gib.bytes(), 5 * GIB);
        // Never more than there are.
        let few = layout(&[(6 * MIB, 2 * MIB), (2 * GIB, GIB)]);
        let [two, gib] = Size::all(&few, 16)[..] else {
            panic!()
        };
        assert_eq!((two.asked, two.slots), (3, 3));
        assert_eq!((gib.asked, gib.slots), (1, 2));
    }
}
