use super::*;
use crate::source::postcopy::push_policy::access_streams::Advice;
use hikkoshi_pages::{PAGE_BYTES, RamBlock};

const HUGE: u64 = 512;

/// Blocks of so many pages and so large host pages, in pages.
fn layout(blocks: &[(u64, u64)]) -> RamLayout {
    let blocks = blocks.iter().enumerate().map(|(nth, &(pages, host))| {
        RamBlock::new(nth.to_string(), pages * PAGE_BYTES, host * PAGE_BYTES)
    });
    RamLayout::new(blocks.collect()).unwrap()
}

fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

struct Links {
    policy: Arc<PushPolicy>,
    unsent: Arc<UnsentPages>,
    next_pages: Vec<NextPages>,
}

fn links(layout: &RamLayout, unsent: UnsentPages, number: usize) -> Links {
    let (policy, unsent) = (Arc::new(PushPolicy::new(number)), Arc::new(unsent));
    let next_pages = (0..number)
        .map(|link| NextPages::new((link, number), &policy, &unsent, layout))
        .collect();
    Links {
        policy,
        unsent,
        next_pages,
    }
}

fn all_unsent(layout: &RamLayout) -> UnsentPages {
    let unsent = UnsentPages::empty(layout.pages(), false);
    unsent.insert(layout.all());
    unsent
}

fn runs(next_pages: &mut NextPages) -> Vec<PageRange> {
    std::iter::from_fn(|| match next_pages.next(8, true) {
        Next::Send(run) => Some(run),
        Next::Done => None,
        Next::Nothing => panic!("background has begun"),
    })
    .collect()
}

#[test]
fn one_link_pushes_everything_once() {
    let layout = layout(&[(1030, 1), (2 * HUGE, HUGE), (5, 1)]);
    let mut links = links(&layout, all_unsent(&layout), 1);
    let runs = runs(&mut links.next_pages[0]);
    let mut pages: Vec<_> = runs.iter().flat_map(|run| run.iter()).collect();
    assert!(pages.is_sorted());
    pages.dedup();
    assert_eq!(pages.len() as u64, layout.pages());
    assert!(runs.iter().all(|run| run.len() <= 8));
    assert_eq!(links.unsent.count(), 0);
    assert_eq!(links.next_pages[0].next(8, true), Next::Done);
}

#[test]
fn a_link_goes_outwards_from_its_first_page() {
    let layout = layout(&[(3002, 1)]);
    let mut links = links(&layout, all_unsent(&layout), 2);
    let runs = runs(&mut links.next_pages[1]);
    // Onwards to the end, then the nearest stretch before it, ….
    assert_eq!(runs[0].start(), Page::new(1501));
    let turn = runs
        .iter()
        .position(|run| run.end() == Page::new(3002))
        .unwrap();
    assert_eq!(runs[turn + 1].start(), Page::new(1501 - 512));
    let pages: u64 = runs.iter().map(|run| run.len()).sum();
    assert_eq!(pages, 3002);
    assert_eq!(links.unsent.count(), 0);
}

#[test]
fn the_hottest_pages_go_first() {
    let layout = layout(&[(1000, 1)]);
    let unsent = UnsentPages::empty(1000, true);
    for (pages, times) in [
        (range(700, 704), 3),
        (range(100, 110), 2),
        (range(900, 905), 5),
    ] {
        for _ in 0..times {
            unsent.count_write(pages);
        }
    }
    unsent.insert(layout.all());
    // Not owed any more.
    assert_eq!(unsent.claim(range(901, 902), 1), Some(range(901, 902)));
    let mut links = links(&layout, unsent, 1);
    let runs = runs(&mut links.next_pages[0]);
    assert_eq!(
        runs[..5],
        [
            range(700, 704),
            range(900, 901),
            range(902, 905),
            range(100, 108),
            range(108, 110)
        ]
    );
    assert_eq!(runs[5], range(0, 8));
    assert_eq!(runs.iter().map(|run| run.len()).sum::<u64>(), 999);
}

#[test]
fn read_ahead_comes_before_everything_and_without_background() {
    let layout = layout(&[(1000, 1)]);
    let mut links = links(&layout, all_unsent(&layout), 2);
    assert_eq!(links.next_pages[0].next(8, false), Next::Nothing);
    let advice = Advice {
        stream: 2,
        onwards: range(501, 517),
        before: range(492, 500),
    };
    links.policy.read_ahead(&advice);
    assert_eq!(
        links.next_pages[0].next(8, true),
        Next::Send(range(501, 509))
    );
    assert_eq!(
        links.next_pages[1].next(8, false),
        Next::Send(range(509, 517))
    );
    assert_eq!(
        links.next_pages[0].next(8, false),
        Next::Send(range(492, 500))
    );
    assert_eq!(links.next_pages[0].next(8, false), Next::Nothing);
    assert_eq!(links.next_pages[0].next(8, true), Next::Send(range(0, 8)));
}

#[test]
fn links_begin_spread() {
    let layout = layout(&[(4000, 1)]);
    let mut links = links(&layout, all_unsent(&layout), 4);
    for (nth, next_pages) in links.next_pages.iter_mut().enumerate() {
        let start = 1000 * nth as u64;
        let Next::Send(run) = next_pages.next(8, true) else {
            panic!()
        };
        assert_eq!(run.start(), Page::new(start));
    }
}

#[test]
fn a_huge_page_is_finished_by_the_link_that_began_it() {
    let layout = layout(&[(3, 1), (4 * HUGE, HUGE), (100, 1)]);
    let mut links = links(&layout, all_unsent(&layout), 2);
    let huge = |nth: u64| PageRange::from_len(Page::new(3 + nth * HUGE), HUGE);
    let mut begun: Vec<(usize, PageRange)> = Vec::new();
    let mut turn = 0;
    let mut done = [false; 2];
    while done != [true; 2] {
        turn = 1 - turn;
        // News of all kinds: they wait, or are small.
        if links.unsent.count().is_multiple_of(50) {
            links.policy.read_ahead(&Advice {
                stream: turn,
                onwards: huge(2),
                before: range(0, 3),
            });
        }
        let Next::Send(run) = links.next_pages[turn].next(8, true) else {
            done[turn] = true;
            continue;
        };
        let host = layout.host_page_range(run.start());
        if host.len() > 1 {
            assert!(host.contains_range(run), "{run:?}");
            begun.push((turn, host));
        }
    }
    assert_eq!(links.unsent.count(), 0);
    for link in [0, 1] {
        let mut pages: Vec<_> = begun
            .iter()
            .filter(|(by, _)| *by == link)
            .map(|(_, host)| host.start())
            .collect();
        pages.dedup();
        let mut once = pages.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), pages.len(), "link {link} came back: {pages:?}");
    }
    // Shared, if at all, only the last one.
    let of = |link| {
        begun
            .iter()
            .filter(move |(by, _)| *by == link)
            .map(|(_, host)| *host)
    };
    let shared: Vec<_> = (0..4)
        .map(huge)
        .filter(|h| of(0).any(|o| o == *h) && of(1).any(|o| o == *h))
        .collect();
    assert!(shared.len() <= 1, "{shared:?}");
}

#[test]
fn urgent_claims_get_in_between_the_pieces_of_a_huge_page() {
    let layout = layout(&[(2 * HUGE, HUGE)]);
    let mut links = links(&layout, all_unsent(&layout), 1);
    assert_eq!(links.next_pages[0].next(8, true), Next::Send(range(0, 8)));
    // A request for what is missing of it.
    let mut urgent = 0;
    while let Some(run) = links.unsent.claim(range(8, HUGE), 16) {
        urgent += run.len();
    }
    assert_eq!(urgent, HUGE - 8);
    assert_eq!(
        links.next_pages[0].next(8, true),
        Next::Send(range(512, 520))
    );
}

/// A link stalls in the middle of a huge page, wherever that is: the others
/// push all the rest, and in the end what is left of that one too.
#[test]
fn the_huge_page_of_a_link_that_stalls_is_finished_by_another() {
    let layout = layout(&[(3, 1), (6 * HUGE, HUGE), (100, 1)]);
    for number in [2, 3] {
        for nth in 0..6 {
            let mut links = links(&layout, all_unsent(&layout), number);
            let stalled = PageRange::from_len(Page::new(3 + nth * HUGE), HUGE);
            // The first link gets there.
            let mut reached = Page::new(0);
            while reached < stalled.start() {
                let Next::Send(run) = links.next_pages[0].next(8, true) else {
                    panic!("it has sent everything before")
                };
                reached = run.start();
            }

            // The other links take turns until everything is sent. When one helps, only the huge
            // page of the third one is left beside it.
            let unsent = Arc::clone(&links.unsent);
            let is_helping = |run: PageRange| {
                let mut left = unsent.runs().filter(|left| !stalled.contains_range(*left));
                let Some(first) = left.next() else { return };
                let host = layout.host_page_range(first.start());
                assert!(
                    number == 3 && host.contains_range(first),
                    "{run:?} before {first:?}"
                );
                assert!(
                    left.all(|left| host.contains_range(left)),
                    "{run:?} too early"
                );
            };
            let mut going: Vec<_> = links.next_pages[1..].iter_mut().collect();
            while !going.is_empty() {
                going.retain_mut(|next_pages| match next_pages.next(8, true) {
                    Next::Send(run) => {
                        if stalled.contains_range(run) {
                            is_helping(run);
                        }
                        true
                    }
                    Next::Done => false,
                    Next::Nothing => panic!("background has begun"),
                });
            }
            assert_eq!(links.unsent.count(), 0, "{number} links, huge page {nth}");
            assert_eq!(links.next_pages[0].next(8, true), Next::Done);
        }
    }
}
