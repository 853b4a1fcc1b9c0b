//! Pre-copy rounds, simulated.

use std::time::Duration;

use hikkoshi_engine::{Convergence, Mode, SourceOptions, WhenStalled};

use crate::costs::{HEADER_BYTES, PAGE_BYTES, SCATTERED_PAGE};
use crate::float::float;
use crate::inputs::{Guest, Line};
use crate::span::Scenario;
use crate::working_set::Curve;

/// Rounds after which a pre-copy without a limit is said not to converge.
const PATIENCE: u32 = 100;

/// The most rounds that are simulated: `--max-rounds none` means any number. Those that have not
/// ended by then are said never to end.
const MOST_ROUNDS: u32 = 10_000;

/// If a round changes by less than this part, later rounds are the same.
const STEADY: f64 = 1e-3;

/// What a read of the log takes a page, s: measured, 0.2 to 0.5 ms for 200 MiB (`dirty-rate`).
const LOG_PAGE: f64 = 6e-9;

/// What a round costs beside its pages, s: the workers begin and end.
const ROUND: f64 = 0.3e-3;

/// In the hard scenario, this part of the pages are dirtied right after they were sent: the guest
/// writes to memory in the order in which it is sent.
const IN_ORDER: f64 = 0.5;

/// In the hard scenario, the guest becomes busier after it was measured: in a first round that
/// takes longer than the measurement by a factor of `e`, it writes to this part of its content
/// more, and so on. Over 20 Mbit/s, a guest that was idle and then used took 167 s instead of 125
/// s, which are 40 times 3 s: 0.09.
const BUSIER: f64 = 0.1;

/// Drains take this part of a round more (`docs/direct-io.md`).
const DRAINS: f64 = 1.05;

/// One guest and one line, in one scenario.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simulation<'a> {
    pub(crate) guest: &'a Guest,
    pub(crate) curve: &'a Curve,
    pub(crate) scenario: Scenario,
    /// Pages with content.
    pub(crate) data: f64,
    /// Pages of zeros.
    pub(crate) zeros: f64,
    /// What the line carries, in bytes a second: pages that the guest waits for are not limited.
    pub(crate) line_rate: f64,
    /// What the line carries of background pages, which may be limited, in bytes a second.
    pub(crate) rate: f64,
    /// Seconds.
    pub(crate) round_trip: f64,
    /// Background links.
    pub(crate) links: f64,
    /// What a background page is sent as, in bytes, and how long compressing it takes, in seconds:
    /// no time if it is not compressed.
    pub(crate) page_bytes: f64,
    pub(crate) compressing: f64,
    /// Pages that are sent before that.
    pub(crate) sent_before: f64,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        guest: &'a Guest,
        line: &Line,
        options: &SourceOptions,
        scenario: Scenario,
    ) -> Self {
        let limit = options.bandwidth.map_or(f64::INFINITY, float);
        let before = guest.compression.map_or(0.0, |it| it.sent_before);
        let data = guest.data_pages.cost(scenario);
        let line_rate = line.rate.benefit(scenario).max(1.0);
        Self {
            guest,
            curve: guest.working_set.curve(scenario),
            scenario,
            data,
            zeros: guest.zero_pages.cost(scenario),
            line_rate,
            rate: line_rate.min(limit).max(1.0),
            round_trip: line.round_trip.cost(scenario),
            links: f64::from(options.links.max(1)),
            page_bytes: guest.compression.map_or(PAGE_BYTES, |it| it.page_bytes),
            compressing: guest.compression.map_or(0.0, |it| it.page_seconds),
            sent_before: (before / PAGE_BYTES).min(data),
        }
    }

    /// The bytes that are sent for so many pages in pre-copy.
    pub(crate) fn precopy_bytes(&self, pages: f64) -> f64 {
        let before = self.sent_before.min(pages);
        pages * (self.page_bytes + HEADER_BYTES) + before * (PAGE_BYTES - self.page_bytes)
    }

    /// The time of a page that follows others.
    pub(crate) fn page(&self) -> f64 {
        let on_line = self.page_bytes / self.rate;
        match self.compressing > 0.0 {
            true => on_line.max((self.guest.read_page + self.compressing) / self.links),
            // The rate contains the time of the processors.
            false => on_line,
        }
    }

    /// The time of a page between others that are not sent. The line is busy or the processors
    /// are: the time of a slow line contains the other.
    pub(crate) fn scattered_page(&self) -> f64 {
        let on_line = (self.page_bytes + HEADER_BYTES) / self.rate;
        on_line.max(self.guest.read_page + self.compressing + 2.0 * SCATTERED_PAGE)
            + SCATTERED_PAGE / self.links
    }

    /// A pass over the log of all memory.
    pub(crate) fn read_log(&self) -> f64 {
        float(self.guest.pages) * LOG_PAGE
    }

    /// The pages that are dirty in ranges whose logs were taken `from` to `until` seconds ago.
    pub(crate) fn dirty(&self, from: f64, until: f64) -> f64 {
        let spread = self.curve.mean_pages(from, until);
        match self.scenario {
            Scenario::Hard => {
                spread + IN_ORDER * (self.curve.pages(from.max(until)) - spread).max(0.0)
            }
            Scenario::Easy | Scenario::Likely => spread,
        }
    }

    /// The time in which so many pages are sent before the pause.
    pub(crate) fn last_running(&self, pages: f64) -> f64 {
        pages * self.scattered_page() + self.read_log() + self.round_trip
    }

    fn drains(&self, seconds: f64) -> f64 {
        if self.guest.drains {
            seconds * DRAINS
        } else {
            seconds
        }
    }

    /// The first round: everything with content.
    fn first_round(&self) -> f64 {
        let zeros = self.zeros * self.guest.read_page / self.links;
        let before = self.sent_before * (PAGE_BYTES / self.rate - self.page()).max(0.0);
        let pages = self.data * self.page() + before;
        self.drains(pages + zeros) + self.read_log() + self.round_trip + ROUND
    }

    /// Pages that a guest has written in a first round of so many seconds, and that it would not
    /// have written if it had done what it did while it was measured.
    pub(crate) fn busier(&self, seconds: f64) -> f64 {
        let measured = self.guest.working_set.measured_seconds();
        match self.scenario {
            Scenario::Hard if measured > 0.0 => {
                BUSIER * self.data * (seconds / measured).ln().max(0.0)
            }
            _ => 0.0,
        }
    }

    /// A later round after one of `before` seconds: its pages, of which so many are `more`, and its
    /// time. Each range is taken
    /// when its turn comes, so the pages of a range are those since its turn in the round before.
    fn round(&self, before: f64, more: f64) -> (f64, f64) {
        let fixed = self.read_log() + self.round_trip + ROUND;
        let mut seconds = before;
        let mut pages = 0.0;
        // The later ranges are taken, the more pages they have, and the longer the round takes.
        for _ in 0..24 {
            pages = self.dirty(before, seconds) + more;
            let next = self.drains(pages * self.scattered_page()) + fixed;
            if (next - seconds).abs() < 1e-6 {
                break;
            }
            seconds = next;
        }
        (pages, seconds)
    }
}

/// The pages that are dirty right before the pause, after rounds that have left `dirty` ones: those
/// are sent while the guest runs.
fn before_pause(simulation: &Simulation<'_>, dirty: f64) -> f64 {
    match simulation.guest.drains {
        true => dirty,
        false => simulation.curve.pages(simulation.last_running(dirty)),
    }
}

/// How the rounds went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rounds {
    /// Whether they end.
    pub(crate) end: RoundsEnd,
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    pub(crate) pages: f64,
    /// Pages that are dirty at the end.
    pub(crate) dirty: f64,
    /// And so many of them because the guest has become busier.
    pub(crate) busier: f64,
    /// The time of the last round.
    pub(crate) last: f64,
    /// Page faults of the guest because of the log.
    pub(crate) faults: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundsEnd {
    /// The dirty pages fit into the downtime.
    Converged,
    /// Post-copy follows.
    Postcopy,
    /// The migration is cancelled.
    Cancelled,
    /// They never end.
    Never,
}

/// Simulates the rounds of pre-copy or hybrid.
pub(crate) fn rounds(simulation: &Simulation<'_>, options: &SourceOptions) -> Rounds {
    let mut convergence = Convergence::default();
    let mut all = Rounds {
        end: RoundsEnd::Never,
        rounds: 0,
        seconds: 0.0,
        pages: 0.0,
        dirty: 0.0,
        busier: 0.0,
        last: 0.0,
        faults: 0.0,
    };
    let mut before = simulation.guest.pages;
    let limit = match options.when_stalled {
        WhenStalled::Continue => options.max_rounds.max(PATIENCE),
        WhenStalled::Switch | WhenStalled::Stop => options.max_rounds,
    };
    for round in 1..=limit.min(MOST_ROUNDS) {
        let (pages, seconds) = match round {
            1 => (simulation.data, simulation.first_round()),
            _ => simulation.round(all.last, all.busier),
        };
        let steady = (seconds - all.last).abs() < STEADY * seconds;
        all.rounds = round;
        all.seconds += seconds;
        all.pages += pages;
        all.last = seconds;
        all.busier = match round {
            1 => simulation.busier(seconds),
            _ => 0.0,
        };
        // Those since each range was taken in this round.
        let dirty = simulation.dirty(0.0, seconds) + all.busier;
        all.dirty = dirty;
        all.faults += dirty.max(if round == 1 { 0.0 } else { pages });
        convergence.measure(
            whole(pages * (PAGE_BYTES + HEADER_BYTES)),
            Duration::from_secs_f64(seconds),
        );
        let drain = Duration::ZERO;
        if convergence.has_converged(options, round, whole(dirty), before, drain)
            && convergence.fits(
                whole(before_pause(simulation, dirty)),
                options.max_downtime,
                drain,
            )
        {
            all.end = RoundsEnd::Converged;
            return all;
        }
        if options.mode == Mode::Hybrid && round >= options.precopy_rounds {
            all.end = RoundsEnd::Postcopy;
            return all;
        }
        if round >= options.max_rounds {
            match options.when_stalled {
                WhenStalled::Switch => {
                    all.end = RoundsEnd::Postcopy;
                    return all;
                }
                WhenStalled::Stop => {
                    all.end = RoundsEnd::Cancelled;
                    return all;
                }
                WhenStalled::Continue if steady => return all,
                WhenStalled::Continue => {}
            }
        }
        before = whole(dirty);
    }
    all
}

/// Rounded up; `as` saturates.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(number: f64) -> u64 {
    number.ceil() as u64
}
