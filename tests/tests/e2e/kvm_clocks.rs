//! KVM's clock and the time-stamp counter continue where they were: read inside the nano guest
//! before and after its moves.
//!
//! Between two readings KVM's clock runs on by the time that has passed outside, at least without
//! the downtime and at most with it. The counter runs on with it, or also during the downtime, as the
//! hypervisor has it: one that virtualises in software may show the guest the host's counter.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Clocks, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, kvm_present, log};
use std::time::{Duration, Instant};

/// The host's clock and the guest's may differ by so much in rate.
const DRIFT: f64 = 0.01;

/// QEMU stops the clocks and then says so; another program may run in between.
const STOP_SLACK: Duration = Duration::from_millis(200);

/// A reading, and when it was requested and here, by the host's clock.
#[derive(Clone, Copy, Debug)]
struct Reading {
    asked: Instant,
    answered: Instant,
    clocks: Clocks,
}

impl Reading {
    fn take(guest: &Guest<'_>) -> Self {
        let asked = Instant::now();
        let clocks = guest.vm().clocks(LONG).unwrap();
        assert!(clocks.kvm_clock, "the guest does not use KVM's clock");
        Self {
            asked,
            answered: Instant::now(),
            clocks,
        }
    }

    /// Nanoseconds of KVM's clock from `self` to `later`.
    fn passed(&self, later: &Self) -> f64 {
        assert!(
            later.clocks.ns > self.clocks.ns,
            "went back: {self:?} {later:?}"
        );
        Duration::from_nanos(later.clocks.ns - self.clocks.ns).as_secs_f64()
    }

    /// Checks that KVM's clock ran on from `self` to `later`; outside, the guest was paused for
    /// `paused` at most.
    fn assert_ran_on(&self, later: &Self, paused: Duration, what: &str) {
        let context = format!("{what}: {self:?} {later:?}, paused for {paused:?}");
        let passed = self.passed(later);
        let most = (later.answered - self.asked).as_secs_f64() * (1.0 + DRIFT);
        assert!(
            passed <= most,
            "jumped ahead by {} s; {context}",
            passed - most
        );
        let running = later.asked.saturating_duration_since(self.answered);
        let least = running.saturating_sub(paused + STOP_SLACK).as_secs_f64() * (1.0 - DRIFT);
        assert!(passed >= least, "lost {} s; {context}", least - passed);
    }

    /// Checks that the counter ran on with KVM's clock, or by the downtime more. `rate` is in ticks a
    /// second.
    fn assert_counted_on(&self, later: &Self, rate: f64, paused: Duration, what: &str) {
        let passed = self.passed(later);
        let counted = self.ticks_to(later) / rate;
        let most = passed + (paused + STOP_SLACK).as_secs_f64();
        assert!(
            counted >= passed * (1.0 - DRIFT) && counted <= most * (1.0 + DRIFT),
            "the counter jumped: {counted} s in {passed} s; {what}, paused for {paused:?}: {self:?} \
             {later:?}"
        );
    }

    #[allow(clippy::cast_precision_loss)] // three digits are compared
    fn ticks_to(&self, later: &Self) -> f64 {
        later.clocks.ticks.wrapping_sub(self.clocks.ticks) as f64
    }
}

#[test]
fn clocks_continue_after_moves() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(5000).option("every_ms", 200);
    let config = VmConfig::new()
        .kvm()
        .nano()
        .ram(Ram::new(RamBackend::Default, 128))
        .workload(workload);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    let first = Reading::take(&guest);
    std::thread::sleep(Duration::from_millis(500));
    let mut before = Reading::take(&guest);
    first.assert_ran_on(&before, Duration::ZERO, "without a move");
    let rate = first.ticks_to(&before) / first.passed(&before);
    for mode in ["hybrid", "precopy", "postcopy"] {
        let report = guest.migrate(&MigrationPlan::new(mode));
        let after = Reading::take(&guest);
        let paused = Duration::from_secs_f64(report.downtime_ms * 1e-3);
        before.assert_ran_on(&after, paused, mode);
        before.assert_counted_on(&after, rate, paused, mode);
        log(format!(
            "{mode}: paused for {paused:?}; in {:.3} s of KVM's clock the counter ran {:.3} s",
            before.passed(&after),
            before.ticks_to(&after) / rate
        ));
        std::thread::sleep(Duration::from_millis(500));
        let last = Reading::take(&guest);
        after.assert_ran_on(&last, Duration::ZERO, "after the move");
        after.assert_counted_on(&last, rate, Duration::ZERO, "after the move");
        before = last;
    }
}

/// The checks notice each kind of jump.
#[test]
fn a_jump_of_a_clock_is_noticed() {
    let zero = Instant::now();
    let at = |outside: f64, inside: f64, ticks: u64| Reading {
        asked: zero + Duration::from_secs_f64(outside),
        answered: zero + Duration::from_secs_f64(outside + 0.001),
        clocks: Clocks {
            ticks,
            ns: u64::try_from(Duration::from_secs_f64(inside).as_nanos()).unwrap(),
            kvm_clock: true,
        },
    };
    let noticed = |inside: f64, ticks: u64| {
        let (before, after) = (at(1.0, 10.0, 1_000), at(3.0, inside, ticks));
        let paused = Duration::from_millis(100);
        let check = || {
            before.assert_ran_on(&after, paused, "test");
            before.assert_counted_on(&after, 1e3, paused, "test");
        };
        std::panic::catch_unwind(check).is_err()
    };
    assert!(!noticed(12.0, 3_000), "without the downtime");
    assert!(!noticed(11.9, 2_900), "with it");
    assert!(!noticed(11.9, 3_000), "a counter that is not paused");
    assert!(noticed(9.9, 2_900), "back");
    assert!(noticed(12.5, 3_500), "ahead");
    assert!(noticed(11.0, 2_000), "behind");
    assert!(noticed(11.9, 500), "the counter back");
    assert!(noticed(11.9, 2_500), "the counter behind");
    assert!(noticed(11.9, 3_500), "the counter ahead");
}
