//! Combines what the guest, the kernel and both engines note of each page fault.
//!
//! The guest and the kernel's trace use the time-stamp counter, and the engines `CLOCK_MONOTONIC`.
//! One time by both clocks, before and after, converts one to the other.

use std::collections::HashMap;

use hikkoshi_lab::{Fault, TscReading, Vm};
use serde_json::Value;

use crate::error::BenchError;
use crate::meter::{KvmEvent, KvmEventKind, KvmTrace};
use crate::mover::HikkoshiMigration;
use crate::record::{FaultTimeline, Place, Step};
use crate::testbed::LONG;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The steps, in the order of [`Times`].
const STEPS: [(Place, &str); 14] = [
    (
        Place::Kernel,
        "KVM has the fault, and a worker thread is to fetch the page",
    ),
    (Place::Kernel, "the event 'not present' is raised"),
    (Place::Guest, "the scheduler has the event"),
    (Place::Guest, "it leaves for another task"),
    (Place::Destination, "the fault is read"),
    (Place::Destination, "the request is sent"),
    (Place::Source, "the request is read"),
    (Place::Source, "the page is sent"),
    (Place::Destination, "the page is received"),
    (Place::Destination, "the page is installed"),
    (Place::Kernel, "the worker thread has the page"),
    (Place::Kernel, "the event 'page ready' is raised"),
    (Place::Guest, "the scheduler has that event"),
    (Place::Guest, "it leaves for the task"),
];

/// The times of one fault, ns of `CLOCK_MONOTONIC`.
type Times = [Option<f64>; STEPS.len()];

/// Converts the time-stamp counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct TscClock {
    pub(super) before: TscReading,
    pub(super) after: TscReading,
}

impl TscClock {
    /// The same time by `CLOCK_MONOTONIC`, ns.
    #[allow(clippy::cast_precision_loss)] // differences far below 2^52
    pub(super) fn ns(self, ticks: u64) -> f64 {
        let TscReading {
            ticks: first,
            monotonic_ns,
        } = self.before;
        let passed = (self.after.monotonic_ns - monotonic_ns) as f64;
        let rate = passed / (self.after.ticks - first).max(1) as f64;
        monotonic_ns as f64 + (ticks as f64 - first as f64) * rate
    }
}

/// Notes the steps of page faults from now on.
#[derive(Debug)]
pub(super) struct Trace {
    kernel: KvmTrace,
    begun: TscReading,
}

impl Trace {
    pub(super) fn start() -> Result<Self, BenchError> {
        Ok(Self {
            kernel: KvmTrace::start()?,
            begun: TscReading::now(),
        })
    }

    /// Combines everything that was noted while `guest` was moved.
    pub(super) fn finish(
        self,
        guest: &Vm,
        moving: &HikkoshiMigration,
    ) -> Result<FaultTimeline, BenchError> {
        let clock = TscClock {
            before: self.begun,
            after: TscReading::now(),
        };
        let kernel = self.kernel.finish()?;
        let [destination, source] = moving.logs();
        let noted = Noted {
            guest: &guest.faults(LONG)?,
            kernel: &kernel,
            destination: &destination,
            source: &source,
        };
        let timeline = timeline(&noted, clock);
        match timeline.faults {
            0 => Err(BenchError::NoTimeline(format!(
                "of {} faults by the guest, {} events by the kernel, and {} and {} entries in the \
                 logs of the destination and the source",
                noted.guest.len(),
                kernel.len(),
                destination.len(),
                source.len()
            ))),
            _ => Ok(timeline),
        }
    }
}

/// What was noted.
#[derive(Debug)]
struct Noted<'a> {
    guest: &'a [Fault],
    kernel: &'a [KvmEvent],
    /// The log of each engine.
    destination: &'a [Value],
    source: &'a [Value],
}

/// The medians of the steps of all faults of which every step was noted.
fn timeline(noted: &Noted<'_>, clock: TscClock) -> FaultTimeline {
    let mut of_pages: HashMap<u64, Times> = HashMap::new();
    let mut pages: HashMap<u32, u64> = HashMap::new();
    for event in noted.kernel {
        let page = event.address / PAGE;
        let step = match event.kind {
            KvmEventKind::Repeated => continue,
            KvmEventKind::Queued => 0,
            KvmEventKind::NotPresent => 1,
            KvmEventKind::Fetched => 10,
            KvmEventKind::Ready => 11,
        };
        if let Some(token) = event.token {
            pages.insert(token, page);
        }
        note(&mut of_pages, page, step, clock.ns(event.ticks));
    }
    for fault in noted.guest {
        let Some(&page) = pages.get(&fault.token) else {
            continue;
        };
        let times = [fault.not_present, fault.other, fault.ready, fault.resumed];
        for (step, ticks) in [2, 3, 12, 13].into_iter().zip(times) {
            note(&mut of_pages, page, step, clock.ns(ticks));
        }
    }
    let engines = [
        (noted.destination, 4, "fault_read"),
        (noted.destination, 5, "request_sent"),
        (noted.source, 6, "arrived"),
        (noted.source, 7, "sent"),
        (noted.destination, 8, "page_received"),
        (noted.destination, 9, "installed"),
    ];
    for (log, step, name) in engines {
        for fields in log {
            if let (Some(page), Some(ns)) = (number(fields, "page"), number(fields, name)) {
                #[allow(clippy::cast_precision_loss)] // weeks of nanoseconds are below 2^52
                note(&mut of_pages, page, step, ns as f64);
            }
        }
    }
    medians(of_pages.into_values())
}

/// The first time counts.
fn note(of_pages: &mut HashMap<u64, Times>, page: u64, step: usize, ns: f64) {
    let times = of_pages.entry(page).or_default();
    if let Some(time @ None) = times.get_mut(step) {
        *time = Some(ns);
    }
}

/// A field of a log entry. The log has some numbers as text.
fn number(fields: &Value, name: &str) -> Option<u64> {
    let value = &fields[name];
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn medians(all: impl Iterator<Item = Times>) -> FaultTimeline {
    let whole: Vec<[f64; STEPS.len()]> = all
        .filter_map(|times| {
            let first = times[0]?;
            let mut since = [0.0; STEPS.len()];
            for (since, time) in since.iter_mut().zip(times) {
                *since = (time? - first) / 1e3;
            }
            Some(since)
        })
        .collect();
    let mut steps: Vec<_> = STEPS
        .iter()
        .enumerate()
        .filter_map(|(number, &(place, what))| {
            let mut times: Vec<f64> = whole
                .iter()
                .filter_map(|t| t.get(number).copied())
                .collect();
            times.sort_by(f64::total_cmp);
            Some(Step {
                place,
                what: what.to_owned(),
                median_us: *times.get(times.len() / 2)?,
                p90_us: *times.get(times.len() * 9 / 10)?,
            })
        })
        .collect();
    steps.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
    FaultTimeline {
        faults: whole.len(),
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_notes_of_a_fault_are_combined() {
        // Two ticks a nanosecond.
        let reading = |ticks, monotonic_ns| TscReading {
            ticks,
            monotonic_ns,
        };
        let clock = TscClock {
            before: reading(10_000, 1_000_000),
            after: reading(30_000, 1_010_000),
        };
        let event = |us: u64, kind, token| KvmEvent {
            ticks: 10_000 + us * 2000,
            kind,
            address: 5 * PAGE + 8,
            token,
        };
        let kernel = [
            event(0, KvmEventKind::Queued, None),
            event(1, KvmEventKind::NotPresent, Some(77)),
            event(10, KvmEventKind::Fetched, None),
            event(11, KvmEventKind::Ready, Some(77)),
            // The page is missing again.
            event(15, KvmEventKind::Queued, None),
        ];
        let ticks = |us: u64| 10_000 + us * 2000;
        let guest = [Fault {
            token: 77,
            not_present: ticks(5),
            other: ticks(6),
            ready: ticks(12),
            resumed: ticks(13),
        }];
        let ns = |us: u64| 1_000_000 + us * 1000;
        let destination = [json!({
            "page": 5, "fault_read": ns(2), "request_sent": ns(3),
            "page_received": ns(8), "installed": ns(9).to_string(),
        })];
        let source = [json!({ "page": 5, "arrived": ns(4), "sent": ns(7) })];
        let noted = Noted {
            guest: &guest,
            kernel: &kernel,
            destination: &destination,
            source: &source,
        };
        let timeline = timeline(&noted, clock);
        assert_eq!(timeline.faults, 1);
        let places: Vec<_> = timeline.steps.iter().map(|step| step.place).collect();
        use Place::{Destination as D, Guest as G, Kernel as K, Source as S};
        assert_eq!(places, [K, K, D, D, S, G, G, S, D, D, K, K, G, G]);
        for (us, step) in (0..).zip(&timeline.steps) {
            assert!((step.median_us - f64::from(us)).abs() < 1e-6, "{step:?}");
        }
    }

    #[test]
    fn a_fault_without_one_of_its_steps_does_not_count() {
        let mut missing: Times = [Some(0.0); STEPS.len()];
        missing[7] = None;
        assert_eq!(medians([missing].into_iter()).faults, 0);
    }
}
