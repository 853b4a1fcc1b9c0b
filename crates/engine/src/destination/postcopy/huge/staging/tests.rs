use super::*;
use hikkoshi_pages::RamBlock;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const HUGE: u64 = 512;

fn staging(slots: u64) -> Staging {
    Staging::new(Size {
        host_page: HUGE * PAGE_BYTES,
        requested: 1,
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
) -> Result<Option<CompletePage<'a>>, TooManyPartial> {
    let bytes: Vec<u8> = piece.iter().flat_map(content).collect();
    staging.add(whole, piece, &bytes, || true)
}

fn check(whole: PageRange, complete: &CompletePage<'_>) {
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
            let requested = PageBitmap::empty(HUGE);
            staging.gaps(whole, |gap| {
                requested.set_range(place(whole, gap));
            });
            for page in gone.all() {
                prop_assert!(requested.get(page) || !gone.get(page));
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
    // One for each huge page, and one for each thread: it may still be clearing
    // that of one that is whole, or have come too late for it.
    let staging = staging(4 + 4);
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
    let requested = || {
        let mut requested = Vec::new();
        staging.gaps(whole, |gap| requested.push(gap));
        requested
    };
    assert_eq!(requested(), [whole]);
    let part = |from: u64, to: u64| {
        let at = |place| whole.start().saturating_add(place);
        PageRange::new(at(from), at(to))
    };
    assert!(add(&staging, whole, part(0, 8)).unwrap().is_none());
    assert!(add(&staging, whole, part(100, 108)).unwrap().is_none());
    assert_eq!(requested(), [part(8, 100), part(108, 512)]);
    // Too many gaps: the last one reaches to the end of what is missing.
    for piece in 20..40 {
        let piece = part(piece * 12, piece * 12 + 4);
        assert!(add(&staging, whole, piece).unwrap().is_none());
    }
    let gaps = requested();
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
    assert_eq!(begin(0), Ok(false), "one that was begun continues");
}

#[test]
fn as_many_slots_as_a_source_may_need() {
    let layout = |blocks: &[(u64, u64)]| {
        let blocks = blocks
            .iter()
            .enumerate()
            .map(|(number, &(bytes, host_page))| {
                RamBlock::new(number.to_string(), bytes, host_page)
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
    assert_eq!((two.requested, two.slots), (32, 4 * 8 + 32 + 1));
    assert_eq!(two.bytes(), 130 * MIB);
    assert_eq!((gib.requested, gib.slots), (1, 6));
    assert_eq!(gib.bytes(), 6 * GIB);
    // Never more than there are.
    let few = layout(&[(6 * MIB, 2 * MIB), (2 * GIB, GIB)]);
    let [two, gib] = Size::all(&few, 16)[..] else {
        panic!()
    };
    assert_eq!((two.requested, two.slots), (3, 3));
    assert_eq!((gib.requested, gib.slots), (1, 2));
}
