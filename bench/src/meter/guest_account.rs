//! What the nano guest counts of its page faults, and of the time of its processors.

use std::time::Instant;

use hikkoshi_lab::{ConsoleLine, GuestReport};
use serde::{Deserialize, Serialize};

use super::kvm_trace::KvmEventKind;
use super::time::seconds_between;

/// The guest prints times in whole milliseconds.
const ROUNDING_MS: f64 = 2.0;

/// The accounts of the intervals of a scan.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct GuestAccount {
    /// The intervals, in order.
    pub intervals: Vec<GuestInterval>,
}

/// An interval, of about [`crate::plan::REPORT_MS`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct GuestInterval {
    /// Its end, in seconds after the scan's begin.
    pub at: f64,
    /// Its length, ms.
    pub span_ms: f64,
    /// Asynchronous page faults.
    pub asynchronous: u64,
    /// Accesses for which the processor waited.
    pub synchronous: u64,
    /// Asynchronous page faults of accesses that had faulted before.
    pub refaults: u64,
    /// What the kernel traced, where that was asked for.
    pub kvm: Option<KvmFaults>,
    /// Tasks that waited for a page at its end.
    pub waiting: u64,
    /// How long tasks waited for pages after asynchronous faults: the sum, µs, and the number.
    pub waits: (f64, u64),
    /// Tasks ran, ms, summed over the processors, as are the following.
    pub ran_ms: f64,
    /// No task could run.
    pub idle_ms: f64,
    /// A task had the processor, and waited for a page.
    pub stalled_ms: f64,
    /// KVM started asynchronous page faults.
    pub kvm_ms: f64,
    /// The scheduler ran.
    pub scheduler_ms: f64,
}

/// Page faults, by the kernel's trace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) struct KvmFaults {
    /// Events *page not present*.
    pub not_present: u64,
    /// Faults of a page that the same virtual processor had faulted on, and that is on its way: it
    /// is halted until a page is there (`kvm_async_pf_repeated_fault`).
    pub repeated: u64,
}

impl GuestInterval {
    /// The share of the time in which tasks ran.
    pub(crate) fn ran(&self) -> f64 {
        part(self.ran_ms, self.all_ms())
    }

    /// The time of all processors, ms. It is the sum of what was counted, because a time is counted
    /// when it ends, so in the interval in which it ends.
    fn all_ms(&self) -> f64 {
        self.ran_ms + self.idle_ms + self.stalled_ms + self.kvm_ms + self.scheduler_ms
    }
}

impl GuestAccount {
    /// The intervals of a scan on `vm`, which took `scan_ms`; `lines` end with its end.
    #[allow(clippy::cast_precision_loss)] // counts and times far below 2^52
    pub(crate) fn find(lines: &[ConsoleLine], vm: &str, begun: Instant, scan_ms: f64) -> Self {
        let mut all = Vec::new();
        let mut next = GuestInterval::default();
        for line in lines.iter().filter(|line| *line.vm == *vm) {
            match &line.report {
                GuestReport::Faults(faults) => {
                    let waits = faults.waits.count();
                    next.asynchronous = faults.not_present;
                    next.synchronous = faults.synchronous;
                    next.refaults = faults.refaults;
                    next.waiting = faults.waiting;
                    next.waits = (faults.wait_mean_us * waits as f64, waits);
                }
                // It follows the line `faults:` of the same interval.
                GuestReport::Processors(times) => {
                    let sum = |times: &[f64]| times.iter().sum();
                    let interval = GuestInterval {
                        at: seconds_between(begun, line.at),
                        span_ms: times.span_ms as f64,
                        ran_ms: sum(&times.ran),
                        idle_ms: sum(&times.idle),
                        stalled_ms: sum(&times.stalled),
                        kvm_ms: sum(&times.in_kvm),
                        scheduler_ms: sum(&times.scheduler),
                        ..std::mem::take(&mut next)
                    };
                    all.push((times.t * 1e3, interval));
                }
                GuestReport::Scanned(_) => break,
                _ => {}
            }
        }
        // An interval ends when the scan begins, and one when it ends.
        let end = all.last().map_or(0.0, |(t, _)| *t);
        let begin = end - scan_ms + ROUNDING_MS;
        let inside = all.into_iter().filter(|(t, _)| *t > begin);
        Self {
            intervals: inside.map(|(_, interval)| interval).collect(),
        }
    }

    fn sum(&self, value: impl Fn(&GuestInterval) -> f64) -> f64 {
        self.intervals.iter().map(value).sum()
    }

    /// The share of the processors' time that tasks ran.
    pub(crate) fn ran(&self) -> f64 {
        self.share(|times| times.ran_ms)
    }

    /// The share of the processors' time in which no task could run.
    pub(crate) fn idle(&self) -> f64 {
        self.share(|times| times.idle_ms)
    }

    /// The share of the processors' time in which a task had the processor and waited for a page.
    pub(crate) fn stalled(&self) -> f64 {
        self.share(|times| times.stalled_ms)
    }

    /// The share of the processors' time in which KVM started asynchronous page faults.
    pub(crate) fn in_kvm(&self) -> f64 {
        self.share(|times| times.kvm_ms)
    }

    /// The scheduler's share of the processors' time.
    pub(crate) fn scheduler(&self) -> f64 {
        self.share(|times| times.scheduler_ms)
    }

    /// The share of the time that tasks ran, of the time in which one could run.
    pub(crate) fn ran_if_runnable(&self) -> f64 {
        let ran = self.sum(|times| times.ran_ms);
        part(ran, self.sum(|times| times.all_ms() - times.idle_ms))
    }

    /// The share of the time in which no task waited for a page with the processor, of the time in
    /// which one could run.
    pub(crate) fn not_stalled(&self) -> f64 {
        let runnable = |times: &GuestInterval| times.all_ms() - times.idle_ms;
        let not_stalled = self.sum(|times| runnable(times) - times.stalled_ms);
        part(not_stalled, self.sum(runnable))
    }

    fn share(&self, time: impl Fn(&GuestInterval) -> f64) -> f64 {
        part(self.sum(time), self.sum(GuestInterval::all_ms))
    }

    /// How long a page took, µs: the mean of the tasks' waits after asynchronous faults, or, if
    /// there was no such fault, of the processor's waits. (An access of a task also takes the time
    /// of others that run meanwhile.)
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    pub(crate) fn fault_us(&self) -> f64 {
        let waits: u64 = self.intervals.iter().map(|times| times.waits.1).sum();
        match waits {
            0 => part(
                self.sum(|times| times.stalled_ms * 1e3),
                self.synchronous() as f64,
            ),
            _ => part(self.sum(|times| times.waits.0), waits as f64),
        }
    }

    /// Asynchronous page faults.
    pub(crate) fn asynchronous(&self) -> u64 {
        self.intervals.iter().map(|times| times.asynchronous).sum()
    }

    /// Accesses for which the processor waited.
    pub(crate) fn synchronous(&self) -> u64 {
        self.intervals.iter().map(|times| times.synchronous).sum()
    }

    /// Asynchronous page faults of accesses that had faulted before.
    pub(crate) fn refaults(&self) -> u64 {
        self.intervals.iter().map(|times| times.refaults).sum()
    }

    /// What the kernel traced, if it was asked to.
    pub(crate) fn kvm(&self) -> Option<KvmFaults> {
        let traced = self.intervals.iter().filter_map(|times| times.kvm);
        traced.reduce(|sum, next| KvmFaults {
            not_present: sum.not_present + next.not_present,
            repeated: sum.repeated + next.repeated,
        })
    }

    /// Adds the kernel's events, with their times in seconds after the scan's begin, to the
    /// intervals in which they were.
    pub(crate) fn add_kvm_events(&mut self, events: impl Iterator<Item = (f64, KvmEventKind)>) {
        for interval in &mut self.intervals {
            interval.kvm = Some(KvmFaults::default());
        }
        for (at, kind) in events {
            let interval = self.intervals.iter_mut().find(|times| times.at >= at);
            let Some(counts) = interval.and_then(|times| times.kvm.as_mut()) else {
                continue;
            };
            match kind {
                KvmEventKind::NotPresent => counts.not_present += 1,
                KvmEventKind::Repeated => counts.repeated += 1,
                _ => {}
            }
        }
    }
}

fn part(part: f64, whole: f64) -> f64 {
    part / whole.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn line(at: Instant, text: &str) -> ConsoleLine {
        ConsoleLine {
            at,
            vm: "destination".into(),
            report: GuestReport::parse(text),
            text: text.to_owned(),
        }
    }

    /// The two lines of an interval that ends at `t` ms.
    fn interval(zero: Instant, t: u64, faults: [u64; 3], times: [f64; 5]) -> [ConsoleLine; 2] {
        let [asynchronous, synchronous, refaults] = faults;
        let [ran, idle, stalled, in_kvm, scheduler] = times;
        let start = format!("ok t={}.{:03} span_ms=100", t / 1000, t % 1000);
        let at = zero + Duration::from_millis(t);
        [
            line(
                at,
                &format!(
                    "faults: {start} not_present={asynchronous} ready=0 synchronous={synchronous} \
                     refaults={refaults} waiting=3 wait_mean_us=150.0 wait_max_us=1.0 \
                     wait_hist=8:{asynchronous}"
                ),
            ),
            line(
                at,
                &format!(
                    "processors: {start} ran_ms={ran} idle_ms={idle} stalled_ms={stalled} \
                     kvm_ms={in_kvm} scheduler_ms={scheduler}"
                ),
            ),
        ]
    }

    #[test]
    fn only_the_intervals_of_the_scan_count() {
        let zero = Instant::now();
        let lines = [
            interval(zero, 1000, [9, 9, 9], [9.0, 9.0, 9.0, 9.0, 9.0]),
            interval(zero, 1100, [40, 0, 1], [60.0, 10.0, 0.0, 10.0, 20.0]),
            interval(zero, 1200, [10, 5, 2], [20.0, 70.0, 10.0, 0.0, 0.0]),
        ];
        let mut lines = lines.concat();
        lines.push(line(zero, "scanned: ok pages=55 bad=0 ms=200.4"));
        lines.extend(interval(zero, 1300, [9, 9, 9], [0.0, 100.0, 0.0, 0.0, 0.0]));
        let account = GuestAccount::find(&lines, "destination", zero, 200.4);
        assert_eq!(account.intervals.len(), 2);
        let counts = (
            account.asynchronous(),
            account.synchronous(),
            account.refaults(),
        );
        assert_eq!(counts, (50, 5, 3));
        let shares = [account.ran(), account.idle(), account.stalled()];
        for (share, expected) in shares.iter().zip([0.4, 0.4, 0.05]) {
            assert!((share - expected).abs() < 1e-9, "{shares:?}");
        }
        assert!((account.ran_if_runnable() - 80.0 / 120.0).abs() < 1e-9);
        assert!((account.not_stalled() - 110.0 / 120.0).abs() < 1e-9);
        assert!((account.in_kvm() - 0.05).abs() < 1e-9);
        assert!((account.intervals[0].ran() - 0.6).abs() < 1e-9);
        assert!((account.fault_us() - 150.0).abs() < 1e-9);
        let nothing = GuestAccount::find(&lines, "source", zero, 200.4);
        assert_eq!(nothing, GuestAccount::default());
    }

    #[test]
    fn without_asynchronous_faults_the_processors_waits_count() {
        let zero = Instant::now();
        let lines = interval(zero, 1100, [0, 4, 0], [1.0, 0.0, 0.8, 0.0, 0.0]);
        let account = GuestAccount::find(&lines, "destination", zero, 100.0);
        assert!((account.fault_us() - 200.0).abs() < 1e-9);
    }

    #[test]
    fn the_kernels_events_are_added_to_their_intervals() {
        let interval = |at| GuestInterval {
            at,
            ..GuestInterval::default()
        };
        let mut account = GuestAccount {
            intervals: vec![interval(0.1), interval(0.2)],
        };
        assert_eq!(account.kvm(), None);
        let events = [
            (0.05, KvmEventKind::NotPresent),
            (0.05, KvmEventKind::Ready),
            (0.15, KvmEventKind::Repeated),
            (0.16, KvmEventKind::Repeated),
            // After the scan.
            (0.25, KvmEventKind::Repeated),
        ];
        account.add_kvm_events(events.into_iter());
        let faults = |not_present, repeated| KvmFaults {
            not_present,
            repeated,
        };
        assert_eq!(account.intervals[0].kvm, Some(faults(1, 0)));
        assert_eq!(account.intervals[1].kvm, Some(faults(0, 2)));
        assert_eq!(account.kvm(), Some(faults(1, 2)));
    }
}
