use super::*;
use proptest::prelude::*;

const BLOCK: PageRange = PageRange::new(Page::new(100), Page::new(1_000_000));
const SMALL: RequestPosition = RequestPosition {
    unit: 1,
    block: BLOCK,
};

fn one(page: u64) -> PageRange {
    PageRange::one(Page::new(page))
}

fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

fn adaptive() -> AccessStreams {
    AccessStreams::new(ReadAhead::Adaptive)
}

/// The guest reads on from `from`, and everything that is advised is there
/// before it gets to it. Gives the windows.
fn scan(streams: &mut AccessStreams, from: u64, requests: usize) -> Vec<u64> {
    let mut page = from;
    (0..requests)
        .map(|_| {
            let advice = streams.requested(one(page), SMALL).unwrap();
            page = advice.onwards.end().index().max(page + 1);
            advice.onwards.len()
        })
        .collect()
}

#[test]
fn begins_with_eight_on_either_side() {
    let advice = adaptive().requested(one(5000), SMALL).unwrap();
    assert_eq!(advice.onwards, range(5001, 5009));
    assert_eq!(advice.before, range(4992, 5000));
}

#[test]
fn doubles_on_sequential_access_up_to_a_bound() {
    let windows = scan(&mut adaptive(), 5000, 9);
    assert_eq!(windows, [8, 16, 32, 64, 128, 256, 256, 256, 256]);
}

#[test]
fn backwards_as_well() {
    let mut streams = adaptive();
    let mut page = 500_000;
    let mut windows = Vec::new();
    for _ in 0..7 {
        let advice = streams.requested(one(page), SMALL).unwrap();
        assert_eq!(advice.before.end(), Page::new(page));
        windows.push(advice.before.len());
        page = advice.before.start().index() - 1;
        if windows.len() > 1 {
            assert!(advice.onwards.is_empty());
        }
    }
    assert_eq!(windows, [8, 16, 32, 64, 128, 256, 256]);
}

#[test]
fn four_interleaved_scans_are_four_streams() {
    let mut streams = adaptive();
    let mut pages = [1000, 50_000, 100_000, 150_000];
    let mut last = [0; 4];
    for _ in 0..8 {
        for (page, last) in pages.iter_mut().zip(&mut last) {
            let advice = streams.requested(one(*page), SMALL).unwrap();
            *page = advice.onwards.end().index();
            *last = advice.onwards.len();
        }
    }
    assert_eq!(last, [MAX_WINDOW; 4]);
}

#[test]
fn random_access_brings_it_down_to_nothing_and_a_scan_up_again() {
    let mut streams = adaptive();
    let advised = |streams: &mut AccessStreams, page| {
        let advice = streams.requested(one(page), SMALL).unwrap();
        advice.onwards.len() + advice.before.len()
    };
    // Far from each other: no two are neighbours.
    for nth in 0..40u64 {
        advised(&mut streams, 1000 + nth * 7919 % 40 * 1000);
    }
    assert_eq!(advised(&mut streams, 900_000), 0);
    // The second page of a scan is enough to be recognised.
    let windows = scan(&mut streams, 600_000, 6);
    assert_eq!(windows, [0, 8, 16, 32, 64, 128]);
    assert!(advised(&mut streams, 700_000) > 0);
}

#[test]
fn a_stream_that_skips_reads_less_ahead() {
    let mut streams = adaptive();
    scan(&mut streams, 5000, 5);
    let page = 5000 + 9 + 17 + 33 + 65 + 129;
    let before = streams.requested(one(page), SMALL).unwrap().onwards;
    let advice = streams
        .requested(one(before.end().index() + 30), SMALL)
        .unwrap();
    assert_eq!(advice.onwards.len(), before.len() / 2);
}

#[test]
fn a_page_on_its_way_moves_the_window_and_the_same_one_does_not() {
    let mut streams = adaptive();
    streams.requested(one(5000), SMALL).unwrap();
    // Inside what was advised: it has not arrived yet.
    let advice = streams.requested(one(5003), SMALL).unwrap();
    assert_eq!(advice.onwards, range(5004, 5020));
    assert_eq!(streams.requested(one(5003), SMALL), None);
    // What was advised before is not forgotten when the new window is
    // shorter than what is left of it.
    let advice = streams.requested(one(5004), SMALL).unwrap();
    assert_eq!(advice.onwards, range(5005, 5037));
}

#[test]
fn fixed_and_off() {
    let mut streams = AccessStreams::new(ReadAhead::Fixed(8));
    for page in [5000, 5009, 5018, 9000, 200_000] {
        let advice = streams.requested(one(page), SMALL).unwrap();
        assert_eq!(advice.onwards, range(page + 1, page + 9));
        assert_eq!(advice.before, range(page - 8, page));
    }
    assert_eq!(
        AccessStreams::new(ReadAhead::Off).requested(one(5000), SMALL),
        None
    );
}

#[test]
fn a_huge_page_is_read_ahead_only_in_sequence() {
    let place = RequestPosition {
        unit: 512,
        block: range(512, 512 * 100),
    };
    let huge = |nth: u64| range(512 * nth, 512 * (nth + 1));
    let mut streams = adaptive();
    let advice = streams.requested(huge(7), place).unwrap();
    assert!(advice.onwards.is_empty() && advice.before.is_empty());
    let advice = streams.requested(huge(8), place).unwrap();
    assert_eq!(advice.onwards, huge(9));
    assert!(advice.before.is_empty());
    let advice = streams.requested(huge(10), place).unwrap();
    assert_eq!(advice.onwards, huge(11));
}

proptest! {
    /// Whatever is requested: what is advised is bounded, inside the block,
    /// beside the request, and belongs to a stream that there is.
    #[test]
    fn advice_is_within_bounds(
        requests in prop::collection::vec((0u64..2000, 1u64..20), 1..200),
        huge in any::<bool>(),
        policy in prop_oneof![
            Just(ReadAhead::Adaptive),
            (0u32..1000).prop_map(ReadAhead::Fixed),
        ],
    ) {
        let unit = if huge { 16 } else { 1 };
        let block = range(160, 1760);
        let mut streams = AccessStreams::new(policy);
        for (start, len) in requests {
            let start = (start / unit * unit).clamp(160, 1759 / unit * unit);
            let requested = PageRange::from_len(Page::new(start), len * unit).intersect(block);
            let Some(advice) = streams.requested(requested, RequestPosition { unit, block }) else {
                continue;
            };
            prop_assert!(advice.stream < STREAMS);
            for side in [advice.onwards, advice.before] {
                prop_assert_eq!(side.intersect(block).len(), side.len());
                prop_assert_eq!(side.len() % unit, 0);
                prop_assert!(side.len() <= 2 * MAX_WINDOW, "{:?}", side);
            }
            prop_assert!(advice.onwards.is_empty() || advice.onwards.start() == requested.end());
            prop_assert!(advice.before.is_empty() || advice.before.end() == requested.start());
        }
    }

    /// However the faults of several scans interleave, each gets a window
    /// that saves requests.
    #[test]
    fn interleaved_scans_save_requests(turns in prop::collection::vec(0usize..4, 400)) {
        let mut streams = adaptive();
        let mut scans = [(1000u64, 0u64), (201_000, 0), (401_000, 0), (601_000, 0)];
        let begins = scans.map(|(page, _)| page);
        for turn in turns {
            let (page, requests) = &mut scans[turn];
            let advice = streams.requested(one(*page), SMALL).unwrap();
            *page = advice.onwards.end().index().max(*page + 1);
            *requests += 1;
        }
        for ((page, requests), begin) in scans.iter().zip(begins) {
            // 8, 16, … 128, then 256 with each request.
            let expected = (requests.saturating_sub(6)) * MAX_WINDOW;
            prop_assert!(page - begin >= expected, "{} pages by {}", page - begin, requests);
        }
    }
}
