//! What is estimated, for given states and for a simulated move.

use super::*;
use crate::status::rates::Rate;
use crate::status::sampler::tests::snapshot;
use hikkoshi_account::{DiskCopy, Round};
use hikkoshi_dirty_rate::{Cost, Measurement, PagesPerSecond, Rates as MeasuredRates, Window};
use hikkoshi_handover::DestinationStage;
use hikkoshi_memory::{ContentMap, GuestRam, RamFile};
use hikkoshi_pages::{RamBlock, RamLayout};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const RATES: Rates = Rates {
    present: 100.0,
    worst: 50.0,
    best: 200.0,
    known_for: Duration::from_secs(2),
};

const SPEED: Speed = Speed {
    pages: RATES,
    disks: RATES,
};

/// What [`Case::rate`] makes of them.
const WORST: f64 = 40.0;
const BEST: f64 = 230.0;

fn near(left: Option<f64>, expected: Option<f64>) -> bool {
    match (left, expected) {
        (Some(left), Some(expected)) => (left - expected).abs() < 1e-6,
        (left, expected) => left == expected,
    }
}

#[track_caller]
fn assert_near(left: Option<[Option<f64>; 3]>, expected: [Option<f64>; 3]) {
    let left = left.unwrap();
    let mut pairs = left.into_iter().zip(expected);
    assert!(
        pairs.all(|(left, expected)| near(left, expected)),
        "{left:?}, not {expected:?}"
    );
}

fn plan(mode: Mode, when_stalled: WhenStalled) -> Plan {
    Plan {
        mode,
        max_downtime: Duration::from_millis(300),
        bandwidth: None,
        when_stalled,
        max_rounds: 5,
    }
}

/// 100 pages are dirty.
fn written(rate: Option<f64>) -> Writes<'static> {
    Writes {
        now: Written {
            rate,
            rate_if_alike: rate,
            dirty: 100.0,
        },
        working_set: None,
    }
}

fn of(left: TimeLeft) -> [Option<f64>; 3] {
    [Some(left.low_s), Some(left.likely_s), left.high_s]
}

/// Low, likely, and high.
fn left(now: &Snapshot, mode: Mode, rate: Option<f64>) -> Option<[Option<f64>; 3]> {
    let writes = written(rate);
    time_left(now, &plan(mode, WhenStalled::Continue), &SPEED, &writes).map(of)
}

/// Half of the second round.
fn half_of_a_round() -> Snapshot {
    let mut now = snapshot();
    (now.state.phase, now.state.done_pages, now.state.total_pages) = (Phase::Precopy, 500, 1000);
    now.state.round = 2;
    now
}

#[test]
fn precopy_ends_when_the_rounds_become_short() {
    let now = half_of_a_round();
    let unknown = left(&now, Mode::Precopy, None);
    // All memory once more.
    let twice = 500.0 / WORST + 1000.0 / WORST + 1.2;
    assert_near(unknown, [Some(500.0 / BEST), Some(5.06), Some(twice)]);
    let steady = left(&now, Mode::Precopy, Some(0.0));
    let worst = 600.0 / WORST + 1.2;
    assert_near(steady, [Some(500.0 / BEST), Some(5.06), Some(worst)]);
    // At the worst rate it would not end.
    let some = left(&now, Mode::Precopy, Some(50.0));
    assert_near(some, [Some(500.0 / BEST), Some(10.06), None]);
    assert_eq!(left(&now, Mode::Precopy, Some(150.0)), None);
}

/// In the first round, a part of the memory says whether the guest writes too much for a high end.
#[test]
fn a_part_of_the_memory_bounds_the_time_until_the_rate_is_known() {
    let mut now = half_of_a_round();
    now.state.round = 1;
    (now.state.pages.precopy, now.state.pages.zero) = (500, 0);
    let high = |rate_if_alike| {
        let now_written = Written {
            rate_if_alike,
            ..Written::default()
        };
        let writes = Writes {
            now: now_written,
            working_set: None,
        };
        let plan = plan(Mode::Precopy, WhenStalled::Continue);
        time_left(&now, &plan, &SPEED, &writes).unwrap().high_s
    };
    // What is in flight, and the rest of the round.
    let twice = 1000.0 / WORST + 1000.0 / WORST + 1.2;
    assert!(near(high(None), Some(twice)), "{:?}", high(None));
    assert!(near(high(Some(10.0)), Some(twice)));
    assert!(near(high(Some(30.0)), Some(1000.0 / 10.0 + 1.2)));
    assert_eq!(high(Some(WORST)), None);
}

fn round(number: u32, begun: u64, dirty_pages: Option<u64>) -> Round {
    Round {
        round: number,
        begun_ms: begun * 1000,
        ended_ms: dirty_pages.map(|_| (begun + 10) * 1000),
        pages: 1000,
        zero: 0,
        bytes: 1000 << 12,
        dirty_pages,
    }
}

/// Round 3 of 5: the rest of it, two more, and as many pages in post-copy.
#[test]
fn precopy_that_post_copy_follows_ends() {
    let mut now = half_of_a_round();
    (now.state.round, now.at) = (3, Duration::from_secs(25));
    now.state.rounds = vec![
        round(1, 0, Some(2000)),
        round(2, 10, Some(1000)),
        round(3, 20, None),
    ];
    let writes = written(Some(150.0));
    let left = |when| time_left(&now, &plan(Mode::Precopy, when), &SPEED, &writes).map(of);
    let all = 500.0 + 3.0 * 1000.0;
    let expected = [
        Some(500.0 / BEST),
        Some(all / 100.0 + 0.06),
        Some(all / WORST + 1.2),
    ];
    assert_near(left(WhenStalled::Switch), expected);
    assert_eq!(left(WhenStalled::Continue), None);
    assert_eq!(left(WhenStalled::Stop), None);
    let mut unlimited = plan(Mode::Precopy, WhenStalled::Switch);
    unlimited.max_rounds = u32::MAX;
    assert_eq!(time_left(&now, &unlimited, &SPEED, &writes).map(of), None);
}

#[test]
fn hybrid_sends_dirty_pages_once() {
    let mut now = half_of_a_round();
    now.state.round = 1;
    (now.state.pages.precopy, now.state.pages.zero) = (400, 0);
    let hybrid = left(&now, Mode::Hybrid, Some(50.0)).unwrap();
    assert!(
        near(hybrid[1], Some(5.0 + (100.0 + 250.0) / 100.0 + 0.06)),
        "{hybrid:?}"
    );
    // 400 pages are on their way.
    let round = 900.0 / WORST;
    let after = (100.0 + 50.0 * round) * 1.5;
    let worst = round + after.min(1000.0) / WORST + 1.2;
    assert!(near(hybrid[2], Some(worst)), "{hybrid:?}");
}

/// The first round is the only one by default: nothing that it sends may be sent again, or all.
#[test]
fn the_first_round_of_hybrid_has_bounds() {
    let mut now = half_of_a_round();
    now.state.round = 1;
    // Half of what was found were zeros.
    (now.state.pages.precopy, now.state.pages.zero) = (250, 250);
    let first = left(&now, Mode::Hybrid, None);
    let zeros = 250.0 * Case::Likely.zero_page();
    let worst = (500.0 + 250.0) / WORST + 1000.0 / WORST + 1.2;
    let best = 500.0 * Case::Best.zero_page();
    assert_near(first, [Some(best), Some(2.5 + zeros + 0.06), Some(worst)]);
    // The pages of a round are at most those of the guest.
    now.state.pages.guest = 600;
    let first = left(&now, Mode::Hybrid, None).unwrap();
    let worst = (500.0 + 250.0) / WORST + 600.0 / WORST + 1.2;
    assert!(near(first[2], Some(worst)), "{first:?}");
}

/// A guest that writes the same 300 pages all the time.
fn hot_pages() -> WorkingSet {
    let window = |length: u64| Window {
        intervals: u32::try_from(length / 50).unwrap(),
        mean_length: Duration::from_millis(length),
        windows: 4,
        mean: 300.0,
        max: 300.0,
    };
    WorkingSet::of_measurement(&Measurement {
        interval: Duration::from_millis(50),
        intervals: 30,
        elapsed: Duration::from_millis(1500),
        ended: None,
        total: MeasuredRates {
            pages: 1000,
            measured_pages: 1000,
            pages_per_second: PagesPerSecond::default(),
            windows: vec![window(50), window(1500)],
        },
        blocks: Vec::new(),
        ranges: Vec::new(),
        cost: Cost::default(),
        cancelled: false,
    })
}

#[test]
fn what_was_measured_before_makes_a_likely_value() {
    let now = half_of_a_round();
    let measured = hot_pages();
    let writes = Writes {
        working_set: Some(&measured),
        ..Writes::default()
    };
    let of = |mode, when, pages| {
        let speed = Speed { pages, ..SPEED };
        time_left(&now, &plan(mode, when), &speed, &writes)
    };
    let left = of(Mode::Hybrid, WhenStalled::Continue, RATES).unwrap();
    assert!(
        (left.likely_s - (5.0 + 300.0 / 100.0 + 0.06)).abs() < 1e-6,
        "{left:?}"
    );
    // Pre-copy: 300 pages take 3 s at this rate in each round, and fit into the downtime at a
    // higher one.
    assert_eq!(of(Mode::Precopy, WhenStalled::Continue, RATES), None);
    let left = of(Mode::Precopy, WhenStalled::Switch, RATES).unwrap();
    assert!(
        (left.likely_s - (5.0 + 4.0 * 3.0 + 0.06)).abs() < 1e-6,
        "{left:?}"
    );
    let fast = Rates {
        present: 2000.0,
        ..RATES
    };
    let left = of(Mode::Precopy, WhenStalled::Continue, fast).unwrap();
    assert!(
        (left.likely_s - (0.25 + 0.15 + 0.06)).abs() < 1e-6,
        "{left:?}"
    );
    assert_eq!(left.high_s, None, "at the worst rate it does not end");
    let steady = Rates {
        worst: 2000.0,
        ..fast
    };
    // At 1,600 pages a second: all memory is more than the rounds that were measured.
    let left = of(Mode::Precopy, WhenStalled::Continue, steady).unwrap();
    assert!(near(left.high_s, Some(1500.0 / 1600.0 + 1.2)), "{left:?}");
}

#[test]
fn postcopy_ends_with_the_last_missing_page() {
    let mut now = snapshot();
    (now.state.phase, now.state.missing_pages) = (Phase::Postcopy, Some(300));
    // Zeros may be among them.
    (now.state.pages.background, now.state.pages.zero) = (100, 100);
    let all = left(&now, Mode::Postcopy, None);
    let zeros = 150.0 * Case::Likely.zero_page();
    assert_near(
        all,
        [
            Some(0.0),
            Some(1.5 + zeros + 0.03),
            Some(300.0 / (WORST * SLOWED_BY_REQUESTS) + 1.0),
        ],
    );
    // They were written since pre-copy.
    let all = left(&now, Mode::Hybrid, None);
    assert_near(
        all,
        [Some(240.0 / BEST), Some(3.03), Some(300.0 / WORST + 1.0)],
    );
    now.state.phase = Phase::Switchover;
    assert_eq!(left(&now, Mode::Postcopy, None), None);
}

/// A copy of 3 GB, of which 1 GB is done.
#[test]
fn disks_are_copied_before_the_memory() {
    let mut now = snapshot();
    now.state.phase = Phase::Connecting;
    assert_eq!(left(&now, Mode::Hybrid, None), None, "nothing is copied");
    now.state.disks = vec![DiskCopy {
        name: "vda".into(),
        copied_bytes: 1_000_000_000,
        total_bytes: 3_000_000_000,
        in_sync: false,
    }];
    now.state.phase = Phase::Disks;
    now.disk_content = Some(3_000_000_000);
    now.state.bytes.disks = Some(1_000_000_000);
    let rates = |[worst, present, best]: [f64; 3]| Rates {
        present,
        worst,
        best,
        known_for: Duration::from_secs(9),
    };
    let of = |now: &Snapshot, mode, bandwidth, disks| {
        let plan = Plan {
            bandwidth,
            ..plan(mode, WhenStalled::Continue)
        };
        let speed = Speed {
            disks: rates(disks),
            ..SPEED
        };
        time_left(now, &plan, &speed, &Writes::default()).map(super::tests::of)
    };
    let steady = [100e6; 3];
    let memory = 1000.0 * 4096.0;
    let likely = (2e9 + memory) / 100e6 + 0.06;
    let expected = [
        Some(1.8e9 / 115e6),
        Some(likely),
        Some((2e9 + 2.0 * memory) / 80e6 + 1.2),
    ];
    for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
        assert_near(of(&now, mode, None, steady), expected);
    }
    // In the mean, QEMU keeps to the limit.
    let bursts = [0.0, 16e6, 100e6];
    let limited = of(&now, Mode::Hybrid, Some(10_000_000), bursts).unwrap();
    assert!(
        near(limited[1], Some((2e9 + memory) / 10e6 + 0.06)),
        "{limited:?}"
    );
    // The guest has written as much as was copied, past the limit.
    now.state.bytes.disks = Some(2_000_000_000);
    let busy = of(&now, Mode::Hybrid, Some(10_000_000), [20e6; 3]).unwrap();
    assert!(
        near(busy[1], Some((2e9 + memory) / 10e6 + 0.06)),
        "{busy:?}"
    );
    now.state.bytes.disks = Some(1_000_000_000);
    // The rest of the image are zeros.
    now.disk_content = now.state.bytes.disks;
    let zeros = of(&now, Mode::Hybrid, None, steady).unwrap();
    assert!(zeros[1] < Some(0.2) && zeros[2] < Some(2.2), "{zeros:?}");
    // How much of it are zeros is not known.
    now.disk_content = None;
    let unknown = of(&now, Mode::Hybrid, None, steady).unwrap();
    assert!(
        unknown[0] < Some(0.2) && unknown[1] > Some(20.0),
        "{unknown:?}"
    );
    // What is in sync waits for the others.
    now.state.disks[0].in_sync = true;
    assert!(of(&now, Mode::Hybrid, None, steady).is_some());
}

/// Memory of 128 MiB in which these pages have content; the others are holes.
fn content(has_content: &dyn Fn(u64) -> bool) -> Arc<ContentMap> {
    let block = RamBlock {
        id: "ram".to_owned(),
        bytes: PAGES * PAGE_BYTES,
        host_page: PAGE_BYTES,
        guest: Vec::new(),
    };
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(PAGES * PAGE_BYTES).unwrap();
    for page in (0..PAGES).filter(|&page| has_content(page)) {
        file.write_all_at(&[7], page * PAGE_BYTES).unwrap();
    }
    let layout = RamLayout::new(vec![block]).unwrap();
    let ram = GuestRam::new(layout, vec![RamFile::new(file, 0)]).unwrap();
    Arc::new(ContentMap::sample(&ram, Duration::from_secs(60)).unwrap())
}

const PAGES: u64 = 32_768;

/// A first round over a line of 1,000 pages a second, in which 500 pages are dirtied that
/// follow in post-copy. Returns in how many of its states, one each 0.1 s, the true value was
/// in the range, and how many there were.
fn states_of_a_move(has_content: &dyn Fn(u64) -> bool) -> (u32, u32) {
    let map = content(has_content);
    let mut states = Vec::new();
    let (mut time, mut sent, mut zeros) = (0.0, 0, 0);
    let mut next = 0.0;
    let mut note = |time: f64, sent, zeros, missing| {
        while next <= time {
            let mut now = snapshot();
            now.at = Duration::from_secs_f64(next);
            (now.state.done_pages, now.state.total_pages) = (sent + zeros, PAGES);
            (now.state.pages.precopy, now.state.pages.zero) = (sent, zeros);
            (now.state.pages.guest, now.content) = (PAGES, Some(Arc::clone(&map)));
            if let Some(missing) = missing {
                (now.state.phase, now.state.missing_pages) = (Phase::Postcopy, Some(missing));
                now.state.pages.background = 500 - missing;
            }
            states.push(now);
            next += 0.1;
        }
    };
    for page in 0..PAGES {
        match has_content(page) {
            true => (time, sent) = (time + 1e-3, sent + 1),
            false => (time, zeros) = (time + 1e-7, zeros + 1),
        }
        note(time, sent, zeros, None);
    }
    for missing in (0..500).rev() {
        time += 1e-3;
        note(time, sent, zeros, Some(missing));
    }
    let (mut rate, mut inside, mut known) = (Rate::default(), 0, 0);
    for now in &states {
        let count = now.state.pages.precopy + now.state.pages.background;
        let pages = rate.add_between_zeros(now.at, count, now.state.pages.zero);
        let speed = Speed { pages, ..SPEED };
        let plan = plan(Mode::Hybrid, WhenStalled::Continue);
        let Some(left) = time_left(now, &plan, &speed, &Writes::default()) else {
            continue;
        };
        let truth = time - now.at.as_secs_f64();
        known += 1;
        let is_inside = left.low_s <= truth && left.high_s.is_none_or(|high| truth <= high);
        inside += u32::from(is_inside);
    }
    assert!(known + 2 >= u32::try_from(states.len()).unwrap(), "{known}");
    (inside, known)
}

/// However zeros and content are spread over the memory.
#[test]
fn the_true_value_is_in_the_range_whatever_part_of_the_memory_holds_zeros() {
    let guests: [(&str, &dyn Fn(u64) -> bool); 5] = [
        ("content first", &|page| page < 8000),
        ("content last", &|page| page >= PAGES - 8000),
        ("content in the middle", &|page| {
            (10_000..18_000).contains(&page)
        }),
        ("both everywhere", &|page| page % 7 == 0),
        ("in large runs", &|page| page / 2000 % 4 == 1),
    ];
    for (what, has_content) in guests {
        let (inside, all) = states_of_a_move(has_content);
        assert!(inside * 10 >= all * 9, "{what}: {inside} of {all}");
    }
}

#[test]
fn the_destination_does_not_know_the_rounds() {
    let mut now = half_of_a_round();
    now.state.stage = Stage::Destination(DestinationStage::Receiving);
    assert_eq!(left(&now, Mode::Precopy, Some(0.0)), None);
    assert_eq!(left(&now, Mode::Hybrid, Some(0.0)), None);
}
