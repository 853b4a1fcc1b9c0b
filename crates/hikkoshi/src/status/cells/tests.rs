//! What a map says of the guest's writes, in its first round and later.

use super::*;
use crate::status::sampler::tests::snapshot;
use hikkoshi_account::Stage;
use hikkoshi_handover::DestinationStage;

const PAGES: u64 = 512;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A guest whose cells are set by hand, and what is shown of it.
struct Guest {
    cells: Cells,
    counts: Vec<CellCounts>,
    now: Snapshot,
}

impl Guest {
    fn of(cells: usize) -> Self {
        Self {
            cells: Cells::default(),
            counts: vec![CellCounts::default(); cells],
            now: snapshot(),
        }
    }

    /// The log of a cell was taken: so many of its pages were dirty, and it had recorded for so
    /// long.
    fn take(&mut self, cell: usize, found: u64, recorded: f64) {
        let counts = &mut self.counts[cell];
        counts.copied = PAGES;
        counts.taken += PAGES;
        counts.dirty += found;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let recorded = (recorded * 1e6) as u64;
        counts.recorded_us += recorded * PAGES;
    }

    /// What is shown at this time.
    fn at(&mut self, at: f64) -> (Map, Written) {
        self.now.at = seconds(at);
        let cells = self.counts.iter().map(|counts| (PAGES, *counts));
        self.cells.map_of(cells, &self.now)
    }

    /// The rate that is shown at this time.
    fn rate_at(&mut self, at: f64) -> Option<f64> {
        self.at(at).1.rate
    }
}

fn near(rate: Option<f64>, expected: f64) -> bool {
    rate.is_some_and(|rate| (rate - expected).abs() < 1e-6)
}

/// A guest that always writes the same 30 pages in each of 100 cells, in a log that starts clean.
/// Its rounds take 10 s. The rate over that time is 3 pages a second in each cell.
#[test]
fn a_sum_of_some_cells_is_not_shown_as_the_rate_of_the_guest() {
    let mut guest = Guest::of(100);
    assert_eq!(guest.rate_at(0.05), None);
    for cell in 0..100_u32 {
        let at = f64::from(cell + 1) / 10.0;
        guest.take(cell as usize, 30, at);
        let (map, written) = guest.at(at);
        // What the first cells had when the log had just been started is too long ago at the end.
        let known = (1..=cell + 1).filter(|taken| cell < taken * 16);
        assert_eq!(map.rated_pages, known.count() as u64 * PAGES, "{at} s");
        let alike = written.rate_if_alike;
        assert_eq!(alike.is_some(), map.rated_pages >= 25 * PAGES, "{at} s");
        // The same pages again and again: the shorter the time, the higher the rate.
        let most = 4.0 * 100.0 * 30.0 / at;
        assert!(alike.is_none_or(|rate| (300.0..most).contains(&rate)));
        let Some(rate) = written.rate else {
            assert!(cell < 95, "the round is at its end");
            continue;
        };
        assert!(cell > 85, "{at} s");
        // By the square root, some cells are thought to be written more than they are.
        assert!((300.0..900.0).contains(&rate), "{at} s: {rate}");
        let most = map.dirty_per_second.iter().max().unwrap();
        assert!(*most <= 13, "four times as hot as it is: {most}");
    }
    // The second round, in which each cell had a whole one to be written: no step down to zero.
    for cell in 0..100_u32 {
        guest.take(cell as usize, 30, 10.0);
        let rate = guest.rate_at(f64::from(cell + 1) / 10.0 + 10.0).unwrap();
        assert!((270.0..900.0).contains(&rate), "cell {cell}: {rate}");
    }
    let (map, written) = guest.at(20.0);
    assert!(near(written.rate, 300.0), "{written:?}");
    assert_eq!(map.rated_pages, 100 * PAGES);
    assert_eq!(map.dirty_per_second, [3; 100]);
}

/// A guest that writes to all of its memory in less than a second, again and again, in rounds of
/// 10 s. No cell looks hotter because its log was taken early.
#[test]
fn a_guest_that_writes_everywhere_has_the_same_rate_everywhere() {
    let mut guest = Guest::of(10);
    for cell in 0..10_u32 {
        let at = f64::from(cell + 1);
        guest.take(cell as usize, PAGES, at);
        let (map, _) = guest.at(at);
        let known = map.dirty_per_second.iter().filter(|rate| **rate > 0);
        let rates: Vec<_> = known.collect();
        assert_eq!(rates.len(), cell as usize + 1);
        assert!(rates.iter().all(|rate| *rate == rates[0]), "{rates:?}");
    }
    assert!(near(guest.rate_at(10.0), 512.0));
}

/// KVM's manual protection: in the first round, every page is in the log. The engine counts the log
/// from the second one on.
#[test]
fn without_a_first_rate_nothing_is_known_until_most_cells_have_one() {
    let mut guest = Guest::of(2);
    for cell in 0..2 {
        guest.counts[cell].copied = PAGES;
    }
    guest.now.state.round = 2;
    let (map, written) = guest.at(1.0);
    assert_eq!((map.rated_pages, written.rate), (0, None));
    guest.take(0, 100, 1.0);
    let (map, written) = guest.at(1.5);
    assert_eq!((map.rated_pages, written.rate), (PAGES, None));
    // What is known of the cell is shown.
    assert_eq!(map.dirty_per_second, [100, 0]);
    guest.take(0, 100, 1.0);
    guest.take(1, 50, 1.0);
    assert!(near(guest.rate_at(2.0), 150.0));
}

/// One page that is written all the time would be a thousand a second in the first millisecond.
#[test]
fn a_log_that_has_just_been_started_says_nothing() {
    let mut guest = Guest::of(1);
    guest.take(0, 1, 0.001);
    assert_eq!(guest.rate_at(0.001), None);
    guest.take(0, 1, 0.5);
    assert!(guest.rate_at(0.5).is_some(), "the second take");
    let mut guest = Guest::of(1);
    guest.take(0, 40, 0.5);
    assert!(near(guest.rate_at(0.5), 80.0));
    // Four times as long: twice as many pages.
    assert!(near(guest.rate_at(2.0), 40.0));
    assert!(guest.rate_at(7.9).is_some());
    assert_eq!(
        guest.rate_at(8.1),
        None,
        "it was seen for a sixteenth of that"
    );
}

#[test]
fn a_guest_that_writes_nothing_is_known_to() {
    let mut guest = Guest::of(1);
    guest.take(0, 0, 1.0);
    let (map, written) = guest.at(1.0);
    assert_eq!(written.rate, Some(0.0));
    assert!(map.dirty.is_empty() && map.dirty_per_second.is_empty());
    assert_eq!(map.rated_pages, PAGES);
}

#[test]
fn what_is_dirty_grows_as_the_guest_writes_some_pages_again() {
    let mut guest = Guest::of(1);
    guest.take(0, 100, 2.0);
    assert!(guest.at(2.0).0.dirty.is_empty());
    for (at, dirty) in [(2.5, 50_u32), (4.0, 100), (7.9, 171)] {
        let (map, written) = guest.at(at);
        assert_eq!(map.dirty, [u64::from(dirty)], "{at} s");
        assert!((written.dirty - f64::from(dirty)).abs() < 1e-6);
    }
    guest.take(0, 100, 2.0);
    guest.at(8.0);
    assert_eq!(guest.at(1000.0).0.dirty, [PAGES]);
}

/// Several short rounds between two states.
#[test]
fn the_mean_of_several_passes_is_shown() {
    let mut guest = Guest::of(1);
    for found in [10, 20, 30] {
        guest.take(0, found, 0.2);
    }
    assert!(near(guest.rate_at(0.6), 100.0));
}

#[test]
fn a_destination_and_a_paused_guest_have_no_rates() {
    let mut guest = Guest::of(1);
    guest.take(0, 100, 1.0);
    assert!(guest.rate_at(1.0).is_some());
    guest.now.state.guest_at = GuestAt::Paused;
    let (map, written) = guest.at(1.1);
    assert_eq!((map.rated_pages, written), (0, Written::default()));
    guest.now.state.guest_at = GuestAt::Source;
    guest.now.state.stage = Stage::Destination(DestinationStage::Receiving);
    let (map, written) = guest.at(1.2);
    assert_eq!((map.rated_pages, written), (0, Written::default()));
}

/// At a destination, only what has arrived in pre-copy is shown as that: after a move by post-copy
/// alone nothing is, although pages of zeros are not missing.
#[test]
fn a_destination_has_in_precopy_what_arrived_in_precopy() {
    let mut guest = Guest::of(1);
    guest.now.state.stage = Stage::Destination(DestinationStage::Running);
    guest.now.state.missing_pages = Some(100);
    let counts = &mut guest.counts[0];
    (counts.missing, counts.urgent, counts.background) = (100, 7, 300);
    let (map, _) = guest.at(1.0);
    assert!(map.sent.is_empty(), "{:?}", map.sent);
    // In hybrid, some of what had arrived is missing again, or has arrived again.
    guest.counts[0].copied = 500;
    assert_eq!(guest.at(1.0).0.sent, [PAGES - 407]);
    guest.counts[0].copied = 50;
    assert_eq!(guest.at(1.0).0.sent, [50]);
}
