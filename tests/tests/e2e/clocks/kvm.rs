//! KVM's clock and the time-stamp counter continue where they were: read inside the nano guest
//! before and after its moves.
//!
//! The counter stops with KVM's clock while the guest is paused, or runs on, as the hypervisor has
//! it: one that virtualises in software may show the guest the host's counter.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    ClockPause, ClockRates, ClockReading, Guest, LONG, MigrationPlan, PausedCounter, TestEnv,
    assert_clocks_run_on, kvm_present, ran_on,
};
use std::time::{Duration, Instant};

/// The guest calculates KVM's clock from the counter: it reads both at once.
#[allow(clippy::cast_precision_loss)] // to less than a microsecond
fn read(vm: &Vm) -> (ClockReading, ()) {
    let asked = Instant::now();
    let clocks = vm.clocks(LONG).unwrap();
    let answered = Instant::now();
    assert!(clocks.kvm_clock, "the guest does not use KVM's clock");
    let seconds = clocks.ns as f64 * 1e-9;
    let reading = ClockReading::new(asked, answered, (seconds, seconds), clocks.ticks as f64);
    (reading, ())
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
    let (first, ()) = ClockReading::most_exact(|| read(guest.vm()));
    // Long enough that the errors of both readings matter little for the rates.
    std::thread::sleep(Duration::from_secs(6));
    let (second, ()) = ClockReading::most_exact(|| read(guest.vm()));
    let rates = ClockRates::between(&first, &second);
    for mode in ["hybrid", "precopy", "postcopy"] {
        let plan = || MigrationPlan::new(mode);
        let counter = PausedCounter::MayRun;
        let [_, (after, ())] = assert_clocks_run_on(&mut guest, &rates, counter, plan, read);
        let (later, ()) = ClockReading::most_exact(|| read(guest.vm()));
        if let Err(why) = ran_on((&after, &later), &rates, ClockPause::NONE, counter) {
            panic!("after {mode}: {why}");
        }
    }
}
