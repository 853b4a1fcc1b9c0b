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

/// What is left of the rate in post-copy of a whole guest, at worst, when it requests many pages.
/// Over 200 Mbit/s the rest of a move was up to 1.2 times as long as by the worst rate so far.
const SLOWED_BY_REQUESTS: f64 = 0.8;

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
struct PagesLeft {
    content: f64,
    zeros: f64,
}

impl PagesLeft {
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
/// Hybrid sends the rest of the round, and then what is dirty once. The worst of what is not known
/// yet is that all memory with content is sent once more.
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
            // The connections also carry what the guest writes meanwhile.
            let copied = now.state.disks.iter().map(|disk| disk.copied_bytes);
            let copied = copied.fold(0, u64::saturating_add);
            let sent = now.state.bytes.disks.unwrap_or(0).min(copied);
            let known = float(content.saturating_sub(sent));
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
    // What the guest writes meanwhile, or how much its requests slow down post-copy, is not known.
    let times = case.choose([1.0, 1.0, 2.0]);
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
    // The guest's requests slow down the rest. After pre-copy there are few.
    let slower = match plan.mode {
        Mode::Postcopy => case.choose([1.0, 1.0, SLOWED_BY_REQUESTS]),
        Mode::Precopy | Mode::Hybrid => 1.0,
    };
    let left = PagesLeft::new(missing, content);
    Some(left.seconds(case.rate(speed.pages) * slower, case)? + case.end())
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
    let measured = |set| simulated(now, plan, rate, in_round, set);
    let all = match (case, writes.working_set, writes.now.rate) {
        // The last one is this.
        (Case::Best, ..) => in_round,
        (Case::Likely, Some(set), _) => measured(set)?,
        (Case::Likely, None, None) => in_round,
        // In the first round nothing says how many follow, but for the guest's writes to a part of
        // its memory, and what was measured.
        (Case::Worst, set, None) => {
            let mut all = in_round + quotient(all_content(now), rate)?;
            if let Some(dirtied) = writes.now.rate_if_alike {
                all = all.max(quotient(all_content(now), rate - dirtied)?);
            }
            if let Some(set) = set {
                all = all.max(measured(set)?);
            }
            all
        }
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
        (None, _, Case::Worst) => all_content(now),
    };
    let after = quotient(left.min(float(now.state.pages.guest)), rate)?;
    Some(round + after + case.switchover())
}

/// All pages that may have content: the most that a round can leave dirty.
fn all_content(now: &Snapshot) -> f64 {
    match &now.content {
        Some(map) => map.pages_from(0).high,
        None => float(now.state.pages.guest),
    }
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
fn rest(now: &Snapshot, case: Case) -> PagesLeft {
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
    PagesLeft::new(pages, content)
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
mod tests;
