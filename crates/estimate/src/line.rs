//! The line, from what has arrived in a probe.

use std::time::Duration;

use crate::costs::{PAGE_BYTES, PRECOPY_PAGE};
use crate::float::float;
use crate::inputs::{Guest, Line};
use crate::span::Span;

/// The part of the time in which the connections become fast.
const RAMP: f64 = 0.25;

/// The length of the parts whose rates give the span, s.
const SLICE: f64 = 0.1;

/// The span is at least as wide as this.
const LEAST: (f64, f64) = (0.93, 1.04);

/// A round trip that was not measured, s: within a room, a city, a country.
const UNKNOWN_ROUND_TRIP: Span = Span {
    low: 50e-6,
    likely: 200e-6,
    high: 5e-3,
};

/// The slope of fewer points says more about when the lumps of several links have arrived than
/// about the line: 20 Mbit/s carry five of 1 MiB in two seconds.
const FEW: usize = 8;

/// With few points, the rate is that of everything. The first bytes are sent faster than the line
/// carries them for long (a shaper's burst, often half a MiB), and what is on its way is not
/// counted.
const OF_ALL: (f64, f64, f64) = (0.8, 0.93, 1.05);

/// Round trips that opening a link takes: connecting, two greetings, and the challenge.
const TRIPS_TO_OPEN: f64 = 4.0;

impl Line {
    /// A line that was measured: `arrived` are times from the start, and the bytes that had arrived
    /// by then; after `sent_for` nothing was sent any more. `None` if nothing has arrived.
    ///
    /// The rate is that from the first quarter of the time on, in which the connections become
    /// fast, until nothing is sent any more: what is on its way then is known to have arrived
    /// sooner than at other times. It is the slope of the straight line with the least squares,
    /// because acknowledgements come in lumps. With few of these it is the rate of everything. Its
    /// ends are the slowest and the fastest tenth of a
    /// second of that, and at least 7 % below and 4 % above.
    #[must_use]
    pub fn measured(
        arrived: &[(Duration, u64)],
        sent_for: Duration,
        round_trip: Duration,
        median_round_trip: Duration,
        open_link: Duration,
    ) -> Option<Self> {
        let mut points: Vec<_> = arrived
            .iter()
            .map(|&(at, bytes)| (at.as_secs_f64(), float(bytes)))
            .collect();
        // Only the times at which something arrived. On a slow line that is seldom, and a rate
        // that begins in between would count the bytes of a longer time.
        points.dedup_by(|later, earlier| later.1 <= earlier.1);
        let end = *points.last()?;
        let points = steady(&points, sent_for.as_secs_f64());
        let (first, mut likely) = (*points.first()?, slope(points));
        if likely <= 0.0 {
            return None;
        }
        let rate = |from: (f64, f64), to: (f64, f64)| (to.1 - from.1) / (to.0 - from.0).max(1e-6);
        let (mut low, mut high) = (likely * LEAST.0, likely * LEAST.1);
        if points.len() < FEW && end.0 > SLICE * 5.0 {
            let of_all = rate((0.0, 0.0), end);
            (low, likely, high) = (of_all * OF_ALL.0, of_all * OF_ALL.1, of_all * OF_ALL.2);
        } else {
            let mut from = first;
            for &point in points.iter().filter(|point| point.0 > first.0) {
                if point.0 - from.0 >= SLICE {
                    low = low.min(rate(from, point));
                    high = high.max(rate(from, point));
                    from = point;
                }
            }
        }
        let trip = (round_trip.as_secs_f64(), median_round_trip.as_secs_f64());
        Some(Self {
            rate: Span {
                low: low.max(likely / 4.0),
                likely,
                high,
            },
            round_trip: Span {
                low: trip.0,
                likely: trip.1.max(trip.0),
                high: trip.1.max(trip.0) * 2.0,
            },
            open_link: Span::within(open_link.as_secs_f64(), 0.5, 2.0),
        })
    }

    /// A line that was not measured: of so many bytes a second, and with this round trip if it is
    /// known. Processors do not use up a line that is faster than `links` links of them.
    #[must_use]
    pub fn given(rate: u64, round_trip: Option<Duration>, guest: &Guest, links: u16) -> Self {
        let round_trip = round_trip.map_or(UNKNOWN_ROUND_TRIP, |time| {
            Span::within(time.as_secs_f64(), 0.9, 1.2)
        });
        let processors = f64::from(links.max(1)) * PAGE_BYTES / (guest.read_page + PRECOPY_PAGE);
        let rate = float(rate);
        Self {
            // Headers of TCP, IP and Ethernet take 5 % of a line.
            rate: Span {
                low: (rate * 0.9).min(processors * 0.7),
                likely: (rate * 0.95).min(processors),
                high: rate.min(processors * 1.5),
            },
            round_trip,
            open_link: Span {
                low: round_trip.low * TRIPS_TO_OPEN,
                likely: round_trip.likely * TRIPS_TO_OPEN + 0.3e-3,
                high: round_trip.high * TRIPS_TO_OPEN + 5e-3,
            },
        }
    }
}

/// The points of the time in which all links send at full speed; all of them if these are less than
/// two.
fn steady(points: &[(f64, f64)], sent_for: f64) -> &[(f64, f64)] {
    let end = points.last().map_or(0.0, |last| last.0);
    let from = points.partition_point(|point| point.0 < end * RAMP || point.1 <= 0.0);
    for until in [sent_for, end] {
        let until = points.partition_point(|point| point.0 <= until);
        if let Some(steady @ [_, _, ..]) = points.get(from..until) {
            return steady;
        }
    }
    points
}

/// The slope of the straight line through points with the least squares of the distances.
#[allow(clippy::cast_precision_loss)] // Some hundred points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let number = points.len() as f64;
    let mean = |value: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / number;
    let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
    let product = mean(&|point| (point.0 - x) * (point.1 - y));
    let square = mean(&|point| (point.0 - x).powi(2));
    if square > 0.0 { product / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_micros(100);

    fn measured(points: &[(u64, u64)]) -> Option<Line> {
        let points: Vec<_> = points
            .iter()
            .map(|&(millis, bytes)| (Duration::from_millis(millis), bytes))
            .collect();
        let (end, _) = *points.last()?;
        Line::measured(&points, end, TRIP, 2 * TRIP, TRIP)
    }

    #[test]
    fn the_start_does_not_count() {
        // 10 MB/s for a quarter of a second, then 100 MB/s.
        let points: Vec<_> = (0..=100)
            .map(|step| {
                let millis = step * 10;
                let fast = u64::saturating_sub(millis, 250);
                (millis, millis.min(250) * 10_000 + fast * 100_000)
            })
            .collect();
        let line = measured(&points).unwrap();
        assert!((line.rate.likely - 1e8).abs() < 1e6, "{line:?}");
        assert!(line.rate.low < line.rate.likely && line.rate.likely < line.rate.high);
        assert!((line.round_trip.low - 100e-6).abs() < 1e-9);
    }

    #[test]
    fn the_ends_are_the_slowest_and_the_fastest_part() {
        let mut bytes = 0;
        let points: Vec<_> = (0..=100)
            .map(|step| {
                bytes += if (50..60).contains(&step) {
                    500_000
                } else {
                    1_000_000
                };
                (step * 10, bytes)
            })
            .collect();
        let line = measured(&points).unwrap();
        assert!(line.rate.low < 0.7e8 && line.rate.high < 1.1e8, "{line:?}");
    }

    /// 2 MB arrive every 80 ms, and samples are taken every 10 ms.
    #[test]
    fn arrivals_in_lumps_do_not_make_a_line_faster() {
        let points: Vec<_> = (0..=104)
            .map(|step| (step * 10, step / 8 * 2_000_000))
            .collect();
        let line = measured(&points).unwrap();
        assert!((line.rate.likely - 25e6).abs() < 1e3, "{line:?}");
        assert!(line.rate.low > 20e6 && line.rate.high < 30e6, "{line:?}");
    }

    /// Two links send lumps of 1 MB, each every 80 ms, and what has arrived is known when the next
    /// lump has been sent. When nothing is sent any more, it is known at once.
    #[test]
    fn what_is_known_at_the_end_does_not_make_a_line_faster() {
        let at = |millis: u64| Duration::from_millis(millis);
        let arrived_at = |millis: u64| {
            let (first, second) = (millis / 80, (millis + 30) / 80);
            (first + second) * 1_000_000
        };
        let sent_for = at(1000);
        let mut points: Vec<_> = (0..=100)
            .map(|step| (at(step * 10), arrived_at((step * 10).saturating_sub(80))))
            .collect();
        points.push((at(1010), arrived_at(1010)));
        let line = Line::measured(&points, sent_for, TRIP, 2 * TRIP, TRIP).unwrap();
        assert!((line.rate.likely / 25e6 - 1.0).abs() < 0.02, "{line:?}");
        let with_the_end = Line::measured(&points, at(1010), TRIP, 2 * TRIP, TRIP).unwrap();
        assert!(with_the_end.rate.likely > 25.5e6, "{with_the_end:?}");
    }

    /// 20 Mbit/s after a burst of half a MiB, on two links whose lumps of 1 MiB arrive shortly
    /// after each other; nothing is sent after one second.
    #[test]
    fn a_few_lumps_on_a_slow_line_do_not_make_it_faster() {
        const MIB: u64 = 1 << 20;
        let points: Vec<_> = [(0, 0), (640, 1), (820, 2), (1490, 3), (1660, 4), (2000, 5)]
            .map(|(millis, lumps)| (Duration::from_millis(millis), lumps * MIB))
            .to_vec();
        let second = Duration::from_secs(1);
        let line = Line::measured(&points, second, TRIP, 2 * TRIP, TRIP).unwrap();
        let rate = line.rate;
        assert!((rate.likely / 2.4e6 - 1.0).abs() < 0.1, "{line:?}");
        assert!(rate.low < 2.3e6 && 2.5e6 < rate.high, "{line:?}");
    }

    #[test]
    fn a_probe_with_one_sample_has_a_rate_and_one_with_none_has_not() {
        let line = measured(&[(0, 0), (7, 7_000_000)]).unwrap();
        assert!((line.rate.likely - 1e9).abs() < 1e6, "{line:?}");
        assert_eq!(measured(&[(0, 0), (7, 0)]), None);
        assert_eq!(measured(&[]), None);
    }

    #[test]
    fn a_given_line_is_not_faster_than_the_processors() {
        let guest = crate::predict::tests::idle();
        let line = Line::given(100_000_000_000, None, &guest, 1);
        assert!(
            line.rate.likely < 2e9 && line.rate.low < line.rate.high,
            "{line:?}"
        );
        let line = Line::given(125_000_000, Some(Duration::from_millis(20)), &guest, 1);
        assert!((line.rate.likely - 0.95 * 125e6).abs() < 1.0, "{line:?}");
        assert!((line.round_trip.likely - 0.02).abs() < 1e-9);
    }
}
