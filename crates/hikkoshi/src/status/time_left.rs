//! How long a migration still takes, as far as it is known what is left, and how fast it is sent.
//!
//! What is left is counted in pages with content, of which the line carries so many a second, and
//! pages of zeros, which take nearly nothing: a rate of all pages together says little about
//! either. Where the guest's memory has content is known from a look at a part of it when the
//! migration began ([`ContentMap`](hikkoshi_memory::ContentMap)).
//!
//! There are three cases: what is likely, and an end on either side, in which everything that is
//! not known is as good, or as bad, as it may well be.

use std::time::Duration;

use hikkoshi_account::{Phase, Stage, TimeLeft};
use hikkoshi_engine::report::Snapshot;
use hikkoshi_engine::{Mode, WhenStalled};
use hikkoshi_estimate::WorkingSet;
use hikkoshi_memory::ContentPages;
use hikkoshi_pages::PAGE_BYTES;

use super::cells::Written;
use super::rates::Rates;

/// What the migration is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    /// The limit of the downtime.
    pub(super) max_downtime: Duration,
    /// The limit of the bandwidth, in bytes a second.
    pub(super) bandwidth: Option<u64>,
    /// What follows after so many rounds of pre-copy that does not converge.
    pub(super) when_stalled: WhenStalled,
    pub(super) max_rounds: u32,
}

/// How fast the migration is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed {
    /// Pages with content that are sent per second.
    pub(super) pages: Rates,
    /// Bytes per second of the disks' connections.
    pub(super) disks: Rates,
}

/// What is known of the guest's writes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Writes<'a> {
    /// By the dirty log.
    pub(super) now: Written,
    /// What was measured before the migration.
    pub(super) working_set: Option<&'a WorkingSet>,
}

/// Rounds after which a simulated pre-copy is said not to converge.
const PATIENCE: u32 = 100;

/// What QEMU copies of a disk at once, in bytes, before it pauses for its limit.
const DISK_BURST: f64 = 16.0 * 1024.0 * 1024.0;

/// Pages that may be counted as sent and still be in the buffers of both kernels: 4 MiB.
const IN_FLIGHT: f64 = 1024.0;

/// How well everything goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Best,
    Likely,
    Worst,
}

impl Case {
    fn choose(self, [best, likely, worst]: [f64; 3]) -> f64 {
        match self {
            Self::Best => best,
            Self::Likely => likely,
            Self::Worst => worst,
        }
    }

    /// The line and the hosts can become a bit better or worse than they were in the last seconds;
    /// and by more than that if they have been known for less than two.
    fn rate(self, rates: Rates) -> f64 {
        let unknown = (1.0 - rates.known_for.as_secs_f64() / 2.0).max(0.0);
        self.choose([
            rates.best * (1.15 + 1.85 * unknown),
            rates.present,
            rates.worst * 0.8 / (1.0 + unknown),
        ])
    }

    fn pages(self, pages: ContentPages) -> f64 {
        self.choose([pages.low, pages.likely, pages.high])
    }

    /// What a page of zeros takes, in seconds: nothing if it is a hole. It takes 0.2 to 0.5 µs to
    /// read one that is not, several times as long on a busy host.
    fn zero_page(self) -> f64 {
        self.choose([0.0, 0.3e-6, 2e-6])
    }

    /// From the last page until the end of a migration in post-copy, in seconds. On a busy host it
    /// takes up to a second.
    fn end(self) -> f64 {
        self.choose([0.0, 0.03, 1.0])
    }

    /// The switchover and that, in seconds: together 20 to 60 ms on an idle host.
    fn switchover(self) -> f64 {
        self.choose([0.0, 0.06, 1.2])
    }
}

/// Pages that are left.
#[derive(Debug, Clone, Copy, Default)]
struct Left {
    content: f64,
    zeros: f64,
}

impl Left {
    /// So many pages, of which these have content.
    fn new(pages: f64, content: f64) -> Self {
        let content = content.clamp(0.0, pages.max(0.0));
        Self {
            content,
            zeros: pages - content,
        }
    }

    /// `None`: it would not end.
    fn seconds(self, rate: f64, case: Case) -> Option<f64> {
        let zeros = self.zeros * case.zero_page();
        match self.content > 0.0 {
            true => Some(quotient(self.content, rate)? + zeros),
            false => Some(zeros),
        }
    }
}

/// An estimate. `None`: nothing is known, or it would not end.
///
/// In pre-copy, each round leaves what the guest dirties meanwhile. With `r` pages sent and `d`
/// dirtied per second, the `n` pages that are left and all rounds after them take `n / (r - d)`, if
/// `d < r`. That is pessimistic, because the shorter a round, the more often the guest writes to
/// the same pages. If the working sets were measured before, the rounds are simulated with them.
/// If post-copy follows after some rounds, each round that is left is as long as the last one.
/// Hybrid sends the rest of the round, and then what is dirty once.
pub(super) fn time_left(
    now: &Snapshot,
    plan: &Plan,
    speed: &Speed,
    writes: &Writes<'_>,
) -> Option<TimeLeft> {
    let is_source = matches!(now.state.stage, Stage::Source(_));
    let of = |case| match now.state.phase {
        Phase::Postcopy => postcopy(now, plan, speed, case),
        // The destination does not know the rounds.
        Phase::Precopy if !is_source => None,
        Phase::Precopy if plan.mode == Mode::Hybrid => hybrid(now, speed, writes, case),
        Phase::Precopy => {
            let rounds = precopy(now, plan, speed, writes, case).into_iter();
            rounds
                .chain(until_postcopy(now, plan, speed, case))
                .reduce(f64::min)
        }
        Phase::Disks if is_source => disks(now, plan, speed, case),
        Phase::Connecting | Phase::Disks | Phase::Switchover | Phase::Unknown => None,
    };
    let likely_s = of(Case::Likely)?;
    Some(TimeLeft {
        low_s: of(Case::Best).map_or(likely_s, |low| low.min(likely_s)),
        likely_s,
        high_s: of(Case::Worst).map(|high| high.max(likely_s)),
    })
}

/// The disks that are copied, and the memory after them.
fn disks(now: &Snapshot, plan: &Plan, speed: &Speed, case: Case) -> Option<f64> {
    let copying = now.state.disks.iter().filter(|disk| !disk.in_sync);
    let left: u64 = copying
        .clone()
        .map(|disk| disk.total_bytes.saturating_sub(disk.copied_bytes))
        .sum();
    // Parts of zeros take nearly nothing, and how much of an image holds others is known about.
    let content = match now.disk_content {
        Some(content) => {
            let known = float(content.saturating_sub(now.state.bytes.disks.unwrap_or(0)));
            case.choose([known * 0.9, known, known * 1.5 + 64e6])
                .min(float(left))
        }
        None => case.choose([0.0, 1.0, 1.0]) * float(left),
    };
    let limit = plan.bandwidth.map(float);
    let is_limited = limit.is_some_and(|limit| speed.disks.best > limit * 0.9);
    let (content, rate) = match limit {
        // At that rate in the mean, and as fast as the line in between.
        Some(limit) if is_limited => {
            #[allow(clippy::cast_precision_loss)] // Some disks.
            let bursts = DISK_BURST * copying.count() as f64;
            let content = case.choose([content - bursts, content, content + bursts]);
            (content.max(0.0), case.choose([limit, limit, limit * 0.8]))
        }
        _ => (content, case.rate(speed.disks)),
    };
    if now.state.disks.is_empty() || (content > 0.0 && rate <= 0.0) {
        return None;
    }
    let memory = match &now.content {
        Some(map) => case.pages(map.pages_from(0)),
        None => case.choose([0.0, 1.0, 1.0]) * float(now.state.pages.guest),
    };
    // What the guest writes meanwhile is not known.
    let times = match (plan.mode, case) {
        (Mode::Precopy, Case::Worst) => return None,
        (Mode::Hybrid, Case::Worst) => 2.0,
        _ => 1.0,
    };
    let bytes = content + times * memory * float(PAGE_BYTES);
    Some(quotient(bytes, rate)? + case.switchover())
}

/// The pages that are missing.
fn postcopy(now: &Snapshot, plan: &Plan, speed: &Speed, case: Case) -> Option<f64> {
    let missing = float(now.state.missing_pages?);
    let arrived = float(now.state.pages.urgent + now.state.pages.background);
    let content = match (&now.content, plan.mode) {
        // All that was allocated is sent, zeros as well.
        (Some(map), Mode::Postcopy) => case.pages(map.pages_from(0)) - arrived,
        (None, Mode::Postcopy) => {
            let share = arrived / (arrived + float(now.state.pages.zero)).max(1.0);
            missing * case.choose([0.0, share, 1.0])
        }
        // The guest has written them since.
        (_, Mode::Precopy | Mode::Hybrid) => missing * case.choose([0.8, 1.0, 1.0]),
    };
    let left = Left::new(missing, content);
    Some(left.seconds(case.rate(speed.pages), case)? + case.end())
}

fn precopy(
    now: &Snapshot,
    plan: &Plan,
    speed: &Speed,
    writes: &Writes<'_>,
    case: Case,
) -> Option<f64> {
    let rate = case.rate(speed.pages);
    let rest = rest(now, case);
    let in_round = round_seconds(now, rate, case)?;
    let all = match (case, writes.working_set, writes.now.rate) {
        // The last one is this.
        (Case::Best, ..) => in_round,
        (Case::Likely, Some(measured), _) => simulated(now, plan, rate, in_round, measured)?,
        (Case::Likely, None, None) => in_round,
        // In the first round nothing says how many follow.
        (Case::Worst, _, None) => return None,
        (_, _, Some(dirtied)) => {
            let dirty = writes.now.dirty;
            // After the first round, what is not sent yet in this one is dirty as well.
            let left = match (now.state.round, case) {
                (..=1, _) | (_, Case::Worst) => rest.content + dirty,
                _ => rest.content.max(dirty),
            };
            let dirtied = dirtied * case.choose([1.0, 1.0, 1.25]);
            let zeros = rest.zeros * case.zero_page();
            quotient(left, rate - dirtied)?.max(in_round) + zeros
        }
    };
    Some(all + case.switchover())
}

/// The rest of this round, which takes so many seconds, and the rounds after it, of which each
/// sends what the guest writes in the one before. `None`: they do not end.
fn simulated(
    now: &Snapshot,
    plan: &Plan,
    rate: f64,
    in_round: f64,
    measured: &WorkingSet,
) -> Option<f64> {
    let mut all = in_round;
    let mut round = since_begin(now) + all;
    for number in now.state.round..now.state.round.saturating_add(PATIENCE) {
        let next = quotient(left_dirty(measured, round), rate)?;
        all += next;
        // The last one is sent while the guest is paused, or follows in post-copy.
        let switches = plan.when_stalled == WhenStalled::Switch && number >= plan.max_rounds;
        if next <= plan.max_downtime.as_secs_f64() || switches {
            return Some(all);
        }
        round = next;
    }
    None
}

/// Pre-copy that does not converge, and that post-copy follows: so many rounds as are left, of
/// which each sends about what the last one has left dirty, and the same in post-copy. At best the
/// present one is the last one.
fn until_postcopy(now: &Snapshot, plan: &Plan, speed: &Speed, case: Case) -> Option<f64> {
    // `--max-rounds none`.
    if plan.when_stalled != WhenStalled::Switch || plan.max_rounds == u32::MAX {
        return None;
    }
    let left = now
        .state
        .rounds
        .iter()
        .rev()
        .find_map(|round| round.dirty_pages)?;
    let rounds = match case {
        Case::Best => 0.0,
        Case::Likely | Case::Worst => f64::from(plan.max_rounds.saturating_sub(now.state.round)),
    };
    let rate = case.rate(speed.pages);
    let more = quotient(float(left) * (rounds + 1.0), rate)?;
    Some(round_seconds(now, rate, case)? + more + case.switchover())
}

/// In the first round, which is often the only one, it is not known until near its end what the
/// guest has dirtied. At least that is nothing, at most everything that the round sends. What is
/// likely follows from the working sets, if they were measured; otherwise it is like the least.
fn hybrid(now: &Snapshot, speed: &Speed, writes: &Writes<'_>, case: Case) -> Option<f64> {
    let rate = case.rate(speed.pages);
    let round = round_seconds(now, rate, case)?;
    let left = match (writes.now.rate, writes.working_set, case) {
        (Some(dirtied), ..) => {
            // After the first round, what is not sent yet in this one is dirty as well.
            let before = match now.state.round {
                ..=1 => writes.now.dirty,
                _ => (writes.now.dirty - rest(now, case).content).max(0.0),
            };
            // One take of each page says little about the time since then: a guest that boots, and
            // is idle then.
            let least = match now.state.round {
                ..=1 => 0.0,
                _ => 0.5,
            };
            (before + dirtied * round) * case.choose([least, 1.0, 1.5])
        }
        (None, _, Case::Best) | (None, None, Case::Likely) => 0.0,
        (None, Some(measured), Case::Likely) => left_dirty(measured, since_begin(now) + round),
        (None, _, Case::Worst) => match &now.content {
            Some(map) => map.pages_from(0).high,
            None => float(now.state.total_pages),
        },
    };
    let after = quotient(left.min(float(now.state.pages.guest)), rate)?;
    Some(round + after + case.switchover())
}

/// How long the rest of this round takes, and what is on its way.
fn round_seconds(now: &Snapshot, rate: f64, case: Case) -> Option<f64> {
    let in_flight = match case {
        Case::Worst => float(now.state.pages.precopy).min(IN_FLIGHT),
        Case::Best | Case::Likely => 0.0,
    };
    let mut rest = rest(now, case);
    rest.content += in_flight;
    rest.seconds(rate, case)
}

/// Seconds since the present round began.
fn since_begin(now: &Snapshot) -> f64 {
    let last = now.state.rounds.last();
    let begun = last.map_or(now.at, |round| Duration::from_millis(round.begun_ms));
    now.at.saturating_sub(begun).as_secs_f64()
}

/// How many pages a round of so many seconds leaves dirty. The log of each part of the memory is
/// taken at another time of the round, and what is written from then on stays: the mean of the
/// working sets of all windows up to the whole round.
fn left_dirty(measured: &WorkingSet, seconds: f64) -> f64 {
    const PARTS: u32 = 16;
    let middle = |part: u32| (f64::from(part) + 0.5) / f64::from(PARTS);
    let windows = (0..PARTS).map(|part| measured.pages(seconds * middle(part)));
    windows.sum::<f64>() / f64::from(PARTS)
}

/// Pages of this round that are not done. The first round sends all memory in order, later ones
/// what was written.
fn rest(now: &Snapshot, case: Case) -> Left {
    let pages = float(now.state.total_pages.saturating_sub(now.state.done_pages));
    let content = match (now.state.round, &now.content) {
        // The guest writes to more of it meanwhile.
        (1, Some(map)) => {
            case.pages(map.pages_from(now.state.done_pages)) * case.choose([1.0, 1.0, 1.05])
        }
        (1, None) => {
            let sent = float(now.state.pages.precopy);
            let share = sent / (sent + float(now.state.pages.zero)).max(1.0);
            pages * case.choose([0.0, share, 1.0])
        }
        _ => pages,
    };
    Left::new(pages, content)
}

#[allow(clippy::cast_precision_loss)] // Far below 2^53.
fn float(number: u64) -> f64 {
    number as f64
}

/// The time for so many pages; `None`: it would not end.
fn quotient(pages: f64, rate: f64) -> Option<f64> {
    match pages > 0.0 {
        true => (rate > 0.0).then(|| pages / rate),
        false => Some(0.0),
    }
}

#[cfg(test)]
mod tests {
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
            now: Written { rate, dirty: 100.0 },
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
        (now.state.phase, now.state.done_pages, now.state.total_pages) =
            (Phase::Precopy, 500, 1000);
        now.state.round = 2;
        now
    }

    #[test]
    fn precopy_ends_when_the_rounds_become_short() {
        let now = half_of_a_round();
        let unknown = left(&now, Mode::Precopy, None);
        assert_near(unknown, [Some(500.0 / BEST), Some(5.06), None]);
        let steady = left(&now, Mode::Precopy, Some(0.0));
        let worst = 600.0 / WORST + 1.2;
        assert_near(steady, [Some(500.0 / BEST), Some(5.06), Some(worst)]);
        // At the worst rate it would not end.
        let some = left(&now, Mode::Precopy, Some(50.0));
        assert_near(some, [Some(500.0 / BEST), Some(10.06), None]);
        assert_eq!(left(&now, Mode::Precopy, Some(150.0)), None);
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
        assert_eq!(left.high_s, None);
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
                Some(300.0 / WORST + 1.0),
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
        assert_near(of(&now, Mode::Hybrid, None, steady), expected);
        let precopy = of(&now, Mode::Precopy, None, steady);
        assert_near(precopy, [expected[0], expected[1], None]);
        // In the mean, QEMU keeps to the limit.
        let bursts = [0.0, 16e6, 100e6];
        let limited = of(&now, Mode::Hybrid, Some(10_000_000), bursts).unwrap();
        assert!(
            near(limited[1], Some((2e9 + memory) / 10e6 + 0.06)),
            "{limited:?}"
        );
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
}
