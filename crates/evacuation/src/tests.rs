//! Plans of made-up guests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hikkoshi_dirty_rate::{Cost, Measurement, PagesPerSecond, Rates, Window};
use hikkoshi_engine::{Mode, SourceOptions};
use hikkoshi_estimate::{Line, Span, WorkingSet};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{
    Change, Destination, Evacuation, Guest, Limits, Met, Obstacle, Order, Plan, Refusal, plan,
    plan_as, within,
};

const MIB: u64 = 1 << 20;

/// A guest that writes so many pages a second, out of a quarter of its memory.
fn guest(name: &str, mebibytes: u64, rate: f64) -> Guest {
    let pages = mebibytes * 256;
    #[allow(clippy::cast_precision_loss)]
    let among = pages as f64 / 4.0;
    let windows = [1_u32, 5, 20].map(|intervals| {
        let seconds = f64::from(intervals) / 10.0;
        let mean = among * (1.0 - (-rate * seconds / among).exp());
        Window {
            intervals,
            mean_length: Duration::from_secs_f64(seconds),
            windows: 21 - intervals,
            mean,
            max: mean * 1.1,
        }
    });
    let measurement = Measurement {
        interval: Duration::from_millis(100),
        intervals: 20,
        elapsed: Duration::from_secs(2),
        ended: None,
        total: Rates {
            pages,
            measured_pages: pages,
            pages_per_second: PagesPerSecond::default(),
            windows: windows.to_vec(),
        },
        blocks: Vec::new(),
        ranges: Vec::new(),
        cost: Cost::default(),
        cancelled: false,
    };
    #[allow(clippy::cast_precision_loss)]
    let data = pages as f64 / 2.0;
    Guest {
        name: name.to_owned(),
        memory: mebibytes * MIB,
        features: BTreeSet::new(),
        measured: hikkoshi_estimate::Guest {
            pages,
            data_pages: Span::within(data, 0.98, 1.02),
            zero_pages: Span::exactly(0.0),
            working_set: WorkingSet::of_measurement(&measurement),
            vcpus: 1,
            devices: 2,
            disks: 1,
            write_fault: Duration::from_nanos(1500),
            read_page: 0.4e-6,
            drains: false,
            compression: None,
        },
        compressed: Vec::new(),
        modes: vec![Mode::Precopy, Mode::Postcopy, Mode::Hybrid],
        obstacles: Vec::new(),
        prepare: Span::within(0.5, 0.5, 2.0),
    }
}

fn destination(name: &str, mebibytes: u64) -> Destination {
    Destination {
        name: name.to_owned(),
        free_memory: mebibytes * MIB,
        processors: 4,
        features: None,
        refuses: BTreeMap::new(),
        line: Line {
            rate: Span::within(118e6, 0.95, 1.03),
            round_trip: Span::within(100e-6, 0.7, 2.0),
            open_link: Span::within(1e-3, 0.5, 2.0),
        },
        limits: Limits::default(),
    }
}

fn evacuation(guests: Vec<Guest>, destinations: Vec<Destination>) -> Evacuation {
    Evacuation {
        guests,
        destinations,
        source: Limits::default(),
        source_rate: 118e6,
        processors: 8,
        mode: Some(Mode::Hybrid),
        options: SourceOptions::default(),
    }
}

fn four(mebibytes: u64) -> Vec<Guest> {
    ["a", "b", "c", "d"]
        .map(|name| guest(name, mebibytes, 2000.0))
        .to_vec()
}

fn names<'a>(evacuation: &'a Evacuation, plan: &Plan) -> Vec<(&'a str, &'a str)> {
    let of = |it: &crate::Move| {
        (
            &*evacuation.guests[it.guest].name,
            &*evacuation.destinations[it.destination].name,
        )
    };
    let mut names: Vec<_> = plan.moves.iter().map(of).collect();
    names.sort_unstable();
    names
}

#[test]
fn guests_are_spread_and_together_take_as_long_as_their_content() {
    let of = evacuation(
        four(1024),
        vec![destination("x", 8192), destination("y", 8192)],
    );
    let planned = plan(&of);
    let to = |name| {
        names(&of, &planned)
            .iter()
            .filter(|it| it.1 == name)
            .count()
    };
    assert_eq!((to("x"), to("y")), (2, 2));
    // 2 GiB over one line, and what was written meanwhile.
    let seconds = 4.0 * 512.0 * 1048.576e3 / 118e6;
    let total = planned.total;
    assert!(
        total.likely > seconds && total.likely < seconds * 1.5,
        "{total:?} {seconds}"
    );
    assert!(total.low <= total.likely && total.likely <= total.high);
}

/// Four that prepare at the same time on two processors need twice as long.
#[test]
fn moves_that_begin_together_wait_for_processors() {
    let mut of = evacuation(four(64), vec![destination("x", 8192)]);
    let first_end = |of: &Evacuation| {
        let planned = plan_as(of, 4, Order::Named);
        let ends = planned.moves.iter().map(|it| it.ends.likely);
        ends.fold(f64::INFINITY, f64::min)
    };
    let enough = first_end(&of);
    of.processors = 2;
    let few = first_end(&of);
    assert!((few - enough - 0.5).abs() < 1e-6, "{enough} {few}");
}

/// The measured rates of two lines are never the same.
#[test]
fn a_faster_line_does_not_get_all_guests() {
    let (mut fast, slow) = (destination("x", 8192), destination("y", 8192));
    fast.line.rate = Span::within(122e6, 0.95, 1.03);
    let mut of = evacuation(four(512), vec![fast, slow]);
    of.source_rate = 122e6;
    let names = names(&of, &plan(&of));
    let to = |name| names.iter().filter(|it| it.1 == name).count();
    assert_eq!((to("x"), to("y")), (2, 2), "{names:?}");
}

/// Of 7000 and 5000 MiB, guests of 5000, 4000 and 3000 MiB need all.
#[test]
fn the_best_fit_is_taken_if_only_that_places_all() {
    let guests = [("big", 4872), ("middle", 3872), ("small", 2872)];
    let guests = guests.map(|(name, mebibytes)| guest(name, mebibytes, 10.0));
    let of = evacuation(
        guests.to_vec(),
        vec![destination("x", 7000), destination("y", 5000)],
    );
    let planned = plan(&of);
    assert_eq!(planned.refused, []);
    assert_eq!(
        names(&of, &planned),
        [("big", "y"), ("middle", "x"), ("small", "x")]
    );
}

#[test]
fn a_guest_with_one_destination_comes_before_those_with_more() {
    let mut destinations = vec![destination("x", 1400), destination("y", 1400)];
    let refused = ("small".to_owned(), "it is not admitted".to_owned());
    destinations[0].refuses.extend([refused]);
    let guests = vec![guest("big", 1200, 10.0), guest("small", 1000, 10.0)];
    let of = evacuation(guests, destinations);
    assert_eq!(names(&of, &plan(&of)), [("big", "x"), ("small", "y")]);
}

#[test]
fn each_reason_of_a_refusal_is_named() {
    let mut guests = vec![
        guest("a", 1024, 10.0),
        guest("fixed", 64, 10.0),
        guest("v", 64, 10.0),
    ];
    guests[1].modes = vec![Mode::Precopy];
    guests[1].obstacles = vec!["its memory is of a kind".to_owned()];
    guests[2].features.insert("avx512f".to_owned());
    let mut there = destination("x", 512);
    there.features = Some(BTreeSet::from(["sse2".to_owned()]));
    let of = evacuation(guests, vec![there]);
    let refused = plan(&of).refused;
    let why: Vec<_> = refused.into_iter().map(|it| it.why).collect();
    let needed = (1024 + 128) * MIB;
    let left = 512 * MIB;
    assert_eq!(
        why,
        [
            Refusal::Nowhere(vec![Obstacle::Memory { needed, left }]),
            Refusal::Mode {
                mode: Some(Mode::Hybrid),
                obstacles: vec!["its memory is of a kind".to_owned()]
            },
            Refusal::Nowhere(vec![Obstacle::Features(vec!["avx512f".to_owned()])]),
        ]
    );
}

#[test]
fn the_plan_is_not_worse_than_one_after_the_other_or_all_at_once() {
    let guests = vec![
        guest("a", 2048, 20.0),
        guest("b", 256, 6000.0),
        guest("c", 512, 100.0),
        guest("d", 256, 6000.0),
    ];
    let of = evacuation(guests, vec![destination("x", 8192), destination("y", 8192)]);
    let planned = plan(&of);
    for (at_once, order) in [(1, Order::Named), (4, Order::Named), (4, Order::Longest)] {
        let other = plan_as(&of, at_once, order);
        assert_eq!(other.moves.len(), 4);
        assert!(
            planned.cost() <= other.cost() + 1e-9,
            "{at_once} {order:?}: {} {}",
            planned.cost(),
            other.cost()
        );
    }
}

#[test]
fn limits_of_a_destination_are_kept() {
    let mut of = evacuation(four(256), vec![destination("x", 8192)]);
    of.destinations[0].limits.at_once = Some(1);
    let planned = plan(&of);
    for pair in planned.moves.windows(2) {
        assert!(
            pair[1].begins.likely >= pair[0].ends.likely - 1e-9,
            "{pair:?}"
        );
    }
    // Half of the bandwidth: about twice the time.
    let before = planned.total.likely;
    of.source.bandwidth = Some(59_000_000);
    let after = plan(&of).total.likely;
    assert!(
        after > before * 1.5 && after < before * 2.2,
        "{before} {after}"
    );
}

#[test]
fn a_deadline_that_is_not_met_has_changes_that_meet_it() {
    let of = evacuation(four(1024), vec![destination("x", 8192)]);
    let planned = plan(&of);
    let enough = within(&of, &planned, planned.total.high + 1.0);
    assert_eq!((enough.met, enough.changes.len()), (Met::Yes, 0));
    let half = within(&of, &planned, planned.total.likely / 2.0);
    assert!(half.met < Met::Likely, "{half:?}");
    let faster = half.changes.iter().find_map(|it| match it.0 {
        Change::FasterLines(factor) => Some(factor),
        _ => None,
    });
    assert!(
        faster.is_some_and(|it| (2.0..=3.0).contains(&it)),
        "{half:?}"
    );
    let fewer = half.changes.iter().find_map(|it| match &it.0 {
        Change::Without(guests) => Some(guests.len()),
        _ => None,
    });
    assert!(matches!(fewer, Some(2 | 3)), "{half:?}");
    for (_, _, met) in &half.changes {
        assert!(*met >= Met::Likely);
    }
}

/// A guest that writes faster than the line carries: pre-copy never ends.
#[test]
fn what_never_ends_has_no_end() {
    let mut of = evacuation(
        vec![guest("wild", 2048, 500_000.0), guest("calm", 128, 10.0)],
        vec![destination("x", 8192)],
    );
    of.mode = Some(Mode::Precopy);
    let planned = plan(&of);
    assert!(planned.total.likely.is_infinite(), "{planned:?}");
    let change = within(&of, &planned, 600.0).changes;
    assert!(
        change.iter().any(|it| it.0 == Change::Mode(Mode::Hybrid)),
        "{change:?}"
    );
    of.mode = None;
    assert!(plan(&of).total.likely.is_finite());
}

fn some_guests() -> impl Strategy<Value = Vec<Guest>> {
    let one = (64..3000_u64, 0.0..40_000.0_f64, 1..7_u32, 0..8_u8);
    vec(one, 0..7).prop_map(|all| {
        let make = |(number, (mebibytes, rate, vcpus, modes)): (usize, (u64, f64, u32, u8))| {
            let mut guest = guest(&format!("guest{number}"), mebibytes, rate);
            guest.measured.vcpus = vcpus;
            let all = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid].into_iter();
            let kept = all.enumerate().filter(|(bit, _)| modes & (1 << bit) != 0);
            guest.modes = kept.map(|(_, mode)| mode).collect();
            guest
        };
        all.into_iter().enumerate().map(make).collect()
    })
}

fn some_destinations() -> impl Strategy<Value = Vec<Destination>> {
    let limit = prop_oneof![Just(None), (1..3_usize).prop_map(Some)];
    let one = (0..8000_u64, 1..9_u32, 1e6..1e9_f64, limit);
    vec(one, 0..4).prop_map(|all| {
        let make = |(number, (mebibytes, processors, rate, at_once))| {
            let mut made = destination(&format!("host{number}"), mebibytes);
            made.processors = processors;
            made.line.rate = Span::within(rate, 0.9, 1.05);
            made.limits.at_once = at_once;
            made
        };
        all.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn plans_are_sound(
        guests in some_guests(),
        destinations in some_destinations(),
        mode in prop_oneof![Just(None), Just(Some(Mode::Hybrid)), Just(Some(Mode::Precopy))],
    ) {
        let mut of = evacuation(guests, destinations);
        of.mode = mode;
        let planned = plan(&of);
        // Each guest once.
        let mut seen: Vec<_> = planned.moves.iter().map(|it| it.guest).collect();
        seen.extend(planned.refused.iter().map(|it| it.guest));
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..of.guests.len()).collect::<Vec<_>>());
        // Never over capacity.
        for (number, there) in of.destinations.iter().enumerate() {
            let to = || planned.moves.iter().filter(|it| it.destination == number);
            let used: u64 = to().map(|it| of.guests[it.guest].needs()).sum();
            prop_assert!(used <= there.free_memory);
            for it in to() {
                prop_assert!(of.guests[it.guest].measured.vcpus <= there.processors);
            }
            for it in to() {
                let begun = to().filter(|other| {
                    other.begins.likely <= it.begins.likely && it.begins.likely < other.ends.likely
                });
                prop_assert!(begun.count() <= there.most_at_once());
            }
        }
        // A refusal has a reason for each destination.
        for it in &planned.refused {
            if let Refusal::Nowhere(why) = &it.why {
                prop_assert_eq!(why.len(), of.destinations.len());
            }
        }
        // The range contains the likely value.
        let spans = planned.moves.iter().flat_map(|it| {
            [it.begins, it.ends, it.total, it.downtime, it.felt]
        });
        for span in spans.chain([planned.total, planned.felt]) {
            prop_assert!(span.low <= span.likely && span.likely <= span.high, "{span:?}");
        }
        for it in &planned.moves {
            prop_assert!(of.guests[it.guest].modes.contains(&it.mode));
            prop_assert!(it.total.likely > 0.0);
        }
        // The same plan again.
        prop_assert_eq!(plan(&of), planned);
    }
}
