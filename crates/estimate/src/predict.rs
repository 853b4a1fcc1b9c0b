//! The prediction for one mode: [`predict`].

use hikkoshi_engine::{Mode, SourceOptions};

use crate::costs::{HEADER_BYTES, PAGE_BYTES};
use crate::float::float;
use crate::inputs::{Guest, Line};
use crate::postcopy::postcopy;
use crate::precopy::{RoundsEnd, Simulation, rounds};
use crate::span::{Scenario, Span};
use crate::switchover::{begin, drop_stale, end, last_rounds, pause};

/// Whether pre-copy converges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Converges {
    /// In every scenario; or the mode does not have to.
    Yes,
    /// In the likely scenario.
    Likely,
    /// In the easy scenario only.
    Unlikely,
    /// In no scenario.
    No,
}

/// What is expected of a migration in one mode. Times are in seconds. A value that has no bound,
/// because pre-copy does not converge, is infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The mode.
    pub mode: Mode,
    /// Whether the rounds end.
    pub converges: Converges,
    /// The limit of the bandwidth, if it is lower than what the line carries.
    pub limit: Option<u64>,
    /// Rounds of pre-copy, with the last one.
    pub rounds: Span,
    /// How long the guest is paused.
    pub downtime: Span,
    /// From the start until every page has arrived.
    pub total: Span,
    /// Bytes on the links.
    pub bytes: Span,
    /// The time in post-copy: the guest needs both hosts then.
    pub postcopy: Span,
    /// Page faults that the guest waits for in post-copy.
    pub faults: Span,
    /// The part of the guest's time that it loses while it is moved, without the downtime.
    pub slowdown: Span,
}

/// Predicts a migration with these options. `options.mode` is the mode.
#[must_use]
pub fn predict(guest: &Guest, line: &Line, options: &SourceOptions) -> Prediction {
    let results = Scenario::ALL.map(|scenario| simulate(guest, line, options, scenario));
    let [easy, likely, hard] = results;
    let span =
        |value: fn(&Simulated) -> f64| Span::ordered(value(&easy), value(&likely), value(&hard));
    Prediction {
        mode: options.mode,
        limit: options
            .bandwidth
            .filter(|&limit| float(limit) < line.rate.likely),
        converges: match results.map(|result| result.ends) {
            [_, true, true] => Converges::Yes,
            [_, true, false] => Converges::Likely,
            [true, false, _] => Converges::Unlikely,
            [false, false, _] => Converges::No,
        },
        rounds: span(|result| result.rounds),
        downtime: span(|result| result.downtime),
        total: span(|result| result.total),
        bytes: span(|result| result.bytes),
        postcopy: span(|result| result.postcopy),
        faults: span(|result| result.faults),
        slowdown: span(|result| result.slowdown),
    }
}

#[derive(Debug, Clone, Copy)]
struct Simulated {
    ends: bool,
    rounds: f64,
    downtime: f64,
    total: f64,
    bytes: f64,
    postcopy: f64,
    faults: f64,
    slowdown: f64,
}

fn simulate(guest: &Guest, line: &Line, options: &SourceOptions, scenario: Scenario) -> Simulated {
    let simulation = Simulation::new(guest, line, options, scenario);
    let mut seconds = begin(line, options, guest, scenario);
    // What the guest's vCPUs lose, in seconds.
    let mut lost = 0.0;
    let (mut pages, mut number) = (0.0, 0.0);
    // Missing pages, and which part of what the guest writes next is among them.
    let mut missing = (simulation.data, 1.0);
    if options.mode != Mode::Postcopy {
        let rounds = rounds(&simulation, options);
        seconds += rounds.seconds;
        pages += rounds.pages;
        number = f64::from(rounds.rounds);
        lost += rounds.faults * guest.write_fault.as_secs_f64();
        match rounds.end {
            RoundsEnd::Converged => {
                let last = last_rounds(&simulation, rounds.dirty, rounds.last);
                let all = seconds + last.running + last.paused + end(line, scenario);
                return Simulated {
                    ends: true,
                    rounds: number + 1.0,
                    downtime: last.paused,
                    total: all,
                    bytes: simulation.precopy_bytes(pages + last.pages),
                    postcopy: 0.0,
                    faults: 0.0,
                    slowdown: part(lost, all - last.paused, guest.vcpus),
                };
            }
            RoundsEnd::Never | RoundsEnd::Cancelled => {
                return Simulated {
                    ends: false,
                    rounds: number,
                    downtime: f64::INFINITY,
                    total: f64::INFINITY,
                    bytes: f64::INFINITY,
                    postcopy: 0.0,
                    faults: 0.0,
                    slowdown: part(lost, seconds, guest.vcpus),
                };
            }
            RoundsEnd::Postcopy => {
                let dropped = drop_stale(&simulation, rounds.dirty);
                seconds += dropped;
                let stale = simulation.dirty(dropped, rounds.last + dropped) + rounds.busier;
                // The stale pages are those that are written often. Of the pages that the guest
                // writes in the next seconds, this part is among them.
                let written = simulation.curve.pages(rounds.last + dropped + 1.0);
                missing = (stale, (stale / written.max(1.0)).min(1.0));
            }
        }
    } else {
        seconds += drop_stale(&simulation, 0.0);
    }
    let paused = pause(&simulation);
    let after = postcopy(&simulation, pages, missing.0, missing.1);
    lost += after.waited;
    let all = seconds + paused + after.seconds + end(line, scenario);
    Simulated {
        ends: true,
        rounds: number,
        downtime: paused,
        total: all,
        bytes: simulation.precopy_bytes(pages) + missing.0 * (PAGE_BYTES + HEADER_BYTES)
            - after.compressed.min(missing.0) * (PAGE_BYTES - simulation.page_bytes),
        postcopy: after.seconds,
        faults: after.faults,
        slowdown: part(lost, all - paused, guest.vcpus),
    }
}

/// Which part of the time of `vcpus` in `seconds` was lost.
fn part(lost: f64, seconds: f64, vcpus: u32) -> f64 {
    (lost / (seconds.max(1e-6) * f64::from(vcpus.max(1)))).min(1.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::costs::INSTALL_PAGE;
    use crate::working_set::tests::{at_random, measured};
    use crate::{Choice, choose_mode};
    use hikkoshi_engine::WhenStalled;
    use proptest::prelude::*;
    use std::time::Duration;

    const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

    /// 1 GiB, of which 600 MiB have content.
    fn guest(working_set: crate::WorkingSet) -> Guest {
        Guest {
            pages: 262_144,
            data_pages: Span::within(153_600.0, 0.98, 1.02),
            zero_pages: Span::exactly(2000.0),
            working_set,
            vcpus: 1,
            devices: 3,
            disks: 0,
            write_fault: Duration::from_nanos(1500),
            read_page: 0.4e-6,
            drains: false,
            compression: None,
        }
    }

    pub(crate) fn idle() -> Guest {
        guest(measured(262_144.0, |_| 30.0))
    }

    /// Writes so many pages a second at random, of 600 MiB.
    fn writes(rate: f64) -> Guest {
        guest(at_random(262_144.0, rate, 153_600.0))
    }

    fn gbit(gbit: f64) -> Line {
        Line {
            rate: Span::within(gbit * 119e6, 0.95, 1.03),
            round_trip: Span::within(100e-6, 0.7, 2.0),
            open_link: Span::within(1e-3, 0.5, 2.0),
        }
    }

    fn options(mode: Mode) -> SourceOptions {
        SourceOptions {
            mode,
            links: 1,
            ..SourceOptions::default()
        }
    }

    fn predicted(guest: &Guest, line: &Line, mode: Mode) -> Prediction {
        predict(guest, line, &options(mode))
    }

    fn chosen(guest: &Guest, line: &Line) -> Choice {
        choose_mode(&MODES.map(|mode| predicted(guest, line, mode))).unwrap()
    }

    /// As `--max-rounds none`, of a guest that writes to everything.
    #[test]
    fn rounds_without_a_limit_are_not_simulated_without_end() {
        for when_stalled in [
            WhenStalled::Continue,
            WhenStalled::Switch,
            WhenStalled::Stop,
        ] {
            let options = SourceOptions {
                when_stalled,
                max_rounds: u32::MAX,
                ..options(Mode::Precopy)
            };
            let predicted = predict(&writes(1e9), &gbit(1.0), &options);
            assert_eq!(predicted.converges, Converges::No, "{when_stalled:?}");
            assert!(predicted.total.likely.is_infinite(), "{when_stalled:?}");
        }
    }

    fn near(value: f64, expected: f64, part: f64) -> bool {
        (value / expected - 1.0).abs() <= part
    }

    /// Compressed to a third, but for the first 60 MB.
    #[test]
    fn what_is_sent_before_compression_counts() {
        let (mut guest, line) = (idle(), gbit(1.0));
        guest.compression = Some(crate::CompressedPages {
            method: hikkoshi_wire::CompressionMethod::Zstd,
            page_bytes: 4096.0 / 3.0,
            page_seconds: 8e-6,
            sent_before: 60e6,
        });
        let content = 153_600.0 * 4096.0;
        let bytes = 60e6 + (content - 60e6) / 3.0;
        for mode in MODES {
            let prediction = predicted(&guest, &line, mode);
            assert!(near(prediction.bytes.likely, bytes, 0.06), "{prediction:?}");
            let seconds = bytes / 119e6;
            assert!(
                near(prediction.total.likely, seconds, 0.2),
                "{prediction:?}"
            );
        }
    }

    #[test]
    fn nothing_is_compressed_while_the_guest_waits() {
        let (mut guest, line) = (guest(at_random(262_144.0, 20_000.0, 150_000.0)), gbit(1.0));
        let plain = predicted(&guest, &line, Mode::Postcopy);
        guest.compression = Some(crate::CompressedPages {
            method: hikkoshi_wire::CompressionMethod::Zstd,
            page_bytes: 4096.0 / 3.0,
            page_seconds: 8e-6,
            sent_before: 0.0,
        });
        let compressed = predicted(&guest, &line, Mode::Postcopy);
        let part = compressed.bytes.likely / plain.bytes.likely;
        assert!((0.6..1.0).contains(&part), "{part}");
    }

    #[test]
    fn an_idle_guest_takes_as_long_as_its_content() {
        let (guest, line) = (idle(), gbit(1.0));
        let content = 153_600.0 * 4096.0;
        for mode in MODES {
            let prediction = predicted(&guest, &line, mode);
            let seconds = content / 119e6;
            assert!(
                near(prediction.total.likely, seconds, 0.06),
                "{prediction:?}"
            );
            assert!(
                near(prediction.bytes.likely, content, 0.02),
                "{prediction:?}"
            );
            assert_eq!(prediction.converges, Converges::Yes);
            assert!(prediction.downtime.likely < 0.03, "{prediction:?}");
            assert!(prediction.slowdown.likely < 0.01, "{prediction:?}");
        }
        assert_eq!(chosen(&guest, &line).mode, Mode::Precopy);
    }

    /// 12,000 pages a second at 29,000 a second on the line: each round has fewer pages.
    #[test]
    fn a_guest_that_writes_less_than_the_line_carries_converges_in_some_rounds() {
        let prediction = predicted(&writes(12_000.0), &gbit(1.0), Mode::Precopy);
        assert_eq!(prediction.converges, Converges::Yes);
        assert!(
            (3.0..=9.0).contains(&prediction.rounds.likely),
            "{prediction:?}"
        );
        // 600 MiB, then two fifths of that, and so on: 5/3 of it, less what was written twice.
        let once = 153_600.0 * 4096.0;
        assert!(prediction.bytes.likely > 1.3 * once && prediction.bytes.likely < 1.7 * once);
        assert!(prediction.downtime.likely < 0.06, "{prediction:?}");
    }

    #[test]
    fn a_guest_that_writes_faster_than_the_line_never_converges() {
        let guest = writes(400_000.0);
        let line = gbit(1.0);
        let prediction = predicted(&guest, &line, Mode::Precopy);
        assert_eq!(prediction.converges, Converges::No);
        assert!(prediction.total.likely.is_infinite() && prediction.total.high.is_infinite());
        let choice = chosen(&guest, &line);
        assert_eq!(choice.mode, Mode::Postcopy, "{choice:?}");
        assert!(choice.reason.contains("does not converge"), "{choice:?}");
        // With post-copy after the last round, it ends.
        let switching = SourceOptions {
            when_stalled: WhenStalled::Switch,
            max_rounds: 3,
            ..options(Mode::Precopy)
        };
        let prediction = predict(&guest, &line, &switching);
        assert!(near(prediction.rounds.likely, 3.0, 0.0), "{prediction:?}");
        assert!(prediction.postcopy.likely > 3.0, "{prediction:?}");
    }

    /// A tenth of the memory is written all the time, faster than the line: hybrid sends it once
    /// more.
    #[test]
    fn a_hot_spot_is_for_hybrid() {
        let guest = guest(measured(262_144.0, |_| 40_000.0));
        let line = gbit(1.0);
        assert_eq!(
            predicted(&guest, &line, Mode::Precopy).converges,
            Converges::No
        );
        let choice = chosen(&guest, &line);
        assert_eq!(choice.mode, Mode::Hybrid, "{choice:?}");
        let hybrid = predicted(&guest, &line, Mode::Hybrid);
        let pages = hybrid.bytes.likely / 4120.0;
        assert!(near(pages, 153_600.0 + 40_000.0, 0.02), "{pages}");
    }

    /// As fast as the line was measured, less what installing takes, on processors that are faster
    /// than those of the constants.
    #[test]
    fn postcopy_over_a_fast_line_is_not_slower_than_that_line() {
        let prediction = predicted(&idle(), &gbit(16.0), Mode::Postcopy);
        let seconds = 153_600.0 * (4096.0 / (16.0 * 119e6) + INSTALL_PAGE);
        assert!(
            near(prediction.postcopy.likely, seconds, 0.05),
            "{prediction:?}"
        );
    }

    /// 20 Mbit/s: 252 s for what it has. It was measured for some seconds only.
    #[test]
    fn a_guest_may_become_busier_in_a_move_that_takes_minutes() {
        let (guest, line) = (idle(), gbit(0.02));
        for mode in [Mode::Precopy, Mode::Hybrid] {
            let prediction = predicted(&guest, &line, mode);
            assert!(near(prediction.total.likely, 265.0, 0.1), "{prediction:?}");
            let more = prediction.total.high / prediction.total.likely;
            assert!((1.3..1.8).contains(&more), "{prediction:?}");
            assert_eq!(prediction.converges, Converges::Yes);
        }
        assert_eq!(chosen(&guest, &line).mode, Mode::Precopy);
        // A move that takes as long as the measurement.
        let prediction = predicted(&guest, &gbit(1.0), Mode::Hybrid);
        let more = prediction.total.high / prediction.total.likely;
        assert!(more < 1.3, "{prediction:?}");
    }

    #[test]
    fn the_only_possible_mode_is_chosen() {
        let guest = writes(400_000.0);
        let precopy = predicted(&guest, &gbit(1.0), Mode::Precopy);
        assert_eq!(
            choose_mode(&[precopy]).map(|choice| choice.mode),
            Some(Mode::Precopy)
        );
        let postcopy = predicted(&guest, &gbit(1.0), Mode::Postcopy);
        let choice = choose_mode(&[precopy, postcopy]);
        assert_eq!(choice.map(|choice| choice.mode), Some(Mode::Postcopy));
        assert_eq!(choose_mode(&[]), None);
    }

    /// 1,220 pages a second in the background, and those that the guest waits for.
    #[test]
    fn pages_that_the_guest_waits_for_are_not_limited() {
        let limited = SourceOptions {
            bandwidth: Some(5_000_000),
            ..options(Mode::Postcopy)
        };
        let seconds = 153_600.0 * 4096.0 / 5e6;
        let idle = predict(&idle(), &gbit(10.0), &limited);
        assert!(near(idle.total.likely, seconds, 0.05), "{idle:?}");
        let busy = predict(&writes(12_000.0), &gbit(10.0), &limited);
        assert!(busy.total.likely < seconds / 2.0, "{busy:?}");
        assert!(busy.faults.likely > 50_000.0, "{busy:?}");
        // A page has the latency of the line, and not of the limit (1.6 ms).
        let lost = busy.slowdown.likely * busy.postcopy.likely;
        assert!(lost / busy.faults.likely < 0.5e-3, "{busy:?}");
    }

    #[test]
    fn a_limit_below_the_line_is_the_reason() {
        let (guest, line) = (writes(12_000.0), gbit(10.0));
        let reason = |bandwidth| {
            let predictions = MODES.map(|mode| {
                let options = SourceOptions {
                    bandwidth,
                    ..options(mode)
                };
                predict(&guest, &line, &options)
            });
            choose_mode(&predictions).unwrap().reason
        };
        let limited = reason(Some(5_000_000));
        assert!(limited.contains("--bandwidth"), "{limited}");
        assert!(!limited.contains("the line carries"), "{limited}");
        let other = reason(Some(100_000_000_000));
        assert_eq!(other, reason(None));
    }

    #[test]
    fn a_limit_and_a_longer_downtime_matter() {
        let limited = SourceOptions {
            bandwidth: Some(50_000_000),
            ..options(Mode::Postcopy)
        };
        let prediction = predict(&idle(), &gbit(10.0), &limited);
        assert!(near(
            prediction.total.likely,
            153_600.0 * 4096.0 / 50e6,
            0.1
        ));
        // 30,000 pages take 1.03 s: they fit into 2 s, and not into 300 ms.
        let guest = self::guest(measured(262_144.0, |_| 30_000.0));
        let patient = SourceOptions {
            max_downtime: Duration::from_secs(2),
            ..options(Mode::Precopy)
        };
        let line = gbit(1.0);
        assert_eq!(predict(&guest, &line, &patient).converges, Converges::Yes);
        assert_eq!(
            predicted(&guest, &line, Mode::Precopy).converges,
            Converges::No
        );
    }

    proptest! {
        /// Whatever the guest and the line: the spans are in order, and nothing is negative or not
        /// a number.
        #[test]
        fn spans_are_in_order(
            rate in 0.0..2e6_f64,
            among in 1.0..262_144.0_f64,
            line in 0.01..100.0_f64,
            trip in 1e-6..1.0_f64,
            vcpus in 1..64_u32,
            drains: bool,
            mode in 0..3_usize,
            max_downtime in 1..5000_u64,
        ) {
            let guest = Guest {
                vcpus,
                drains,
                ..guest(at_random(262_144.0, rate, among))
            };
            let line = Line {
                round_trip: Span::within(trip, 0.7, 2.0),
                ..gbit(line)
            };
            let simulated_rate = line.rate.likely;
            let options = SourceOptions {
                max_downtime: Duration::from_millis(max_downtime),
                ..options(MODES[mode])
            };
            let prediction = predict(&guest, &line, &options);
            for span in [
                prediction.rounds, prediction.downtime, prediction.total, prediction.bytes,
                prediction.postcopy, prediction.faults, prediction.slowdown,
            ] {
                prop_assert!(span.low >= 0.0 && span.low <= span.likely && span.likely <= span.high,
                    "{prediction:?}");
            }
            prop_assert!(prediction.slowdown.high <= 1.0);
            // However many vCPUs wait for pages, the line carries no more than its rate.
            if MODES[mode] == Mode::Postcopy {
                let carries = 153_600.0 * 4096.0 / simulated_rate;
                prop_assert!(prediction.postcopy.likely >= carries * 0.999, "{prediction:?}");
            }
            prop_assert_eq!(prediction.total.likely.is_infinite(),
                matches!(prediction.converges, Converges::No | Converges::Unlikely));
        }

        /// A faster line is never worse.
        #[test]
        fn a_faster_line_is_not_slower(rate in 0.0..1e5_f64, line in 0.1..5.0_f64, mode in 1..3_usize) {
            let guest = writes(rate);
            let slow = predicted(&guest, &gbit(line), MODES[mode]);
            let fast = predicted(&guest, &gbit(2.0 * line), MODES[mode]);
            prop_assert!(fast.total.likely <= slow.total.likely * 1.001, "{slow:?} {fast:?}");
        }
    }
}
