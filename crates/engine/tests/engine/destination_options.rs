//! The options of the destination do not change what arrives.

use std::num::{NonZeroU16, NonZeroU64};

use hikkoshi_engine::report::FaultKind;
use hikkoshi_engine::{DestinationOptions, Mode, Priority};

use crate::memory::{HUGE, HugePages, SMALL, layout};
use crate::run::Setup;

fn option_sets() -> Vec<DestinationOptions> {
    let default = DestinationOptions::default();
    vec![
        DestinationOptions {
            fault_threads: NonZeroU16::new(4),
            ..default
        },
        DestinationOptions {
            poll: true,
            fault_threads: NonZeroU16::new(1),
            ..default
        },
        DestinationOptions {
            priority: Priority::OFF,
            fault_threads: NonZeroU16::new(2),
            collapse: NonZeroU64::new(1 << 40),
            ..default
        },
    ]
}

#[test]
fn every_option_moves_a_busy_guest() {
    for options in option_sets() {
        for mode in [Mode::Postcopy, Mode::Hybrid] {
            let mut setup = Setup::new(mode);
            setup.receive_options = options;
            let (source, destination) = setup.run().moved(true);
            let (there, here) = (&source.requests, &destination.requests);
            assert_eq!(there.faults, here.faults, "{options:?}");
            assert_eq!(there.unmeasured_requests, 0);
            let requests = here.request_latency_us.count;
            let stages = &here.request_stages_us;
            assert_eq!(stages.page_to_installed.count, requests);
            // Loading accesses pages: there were faults, and the thread has a name.
            let faults: u64 = here.faults.iter().map(|faults| faults.count).sum();
            assert!(faults >= requests, "{faults} faults, {requests} requests");
            assert!(
                here.faults.iter().all(|faults| !faults.thread.is_empty()),
                "{:?}",
                here.faults
            );
            // There were faults before the guest ran, except for pages of the previous round, and
            // none was caused by a vCPU.
            let before = here.faults_before_running.as_ref().unwrap();
            assert!(before.iter().all(|faults| faults.kind == FaultKind::Other));
            let loading: u64 = before.iter().map(|faults| faults.count).sum();
            assert!(loading <= faults, "{before:?}");
            assert!(loading > 0 || mode == Mode::Hybrid, "{before:?}");
            assert!(there.faults_before_running.is_none());
            assert!(there.requests_under_way.is_some());
            assert_eq!(destination.collapse.is_some(), options.collapse.is_some());
            assert!(source.collapse.is_none());
        }
    }
}

#[test]
fn every_option_moves_huge_pages() {
    let Some(_pages) = HugePages::reserve(4) else {
        return;
    };
    let source = layout(&[(3 * SMALL, SMALL), (4 * HUGE, SMALL)]);
    let destination = layout(&[(3 * SMALL, SMALL), (4 * HUGE, HUGE)]);
    for options in option_sets() {
        let mut setup = Setup::with(Mode::Postcopy, &source, &destination, true);
        setup.receive_options = options;
        setup.run().moved(true);
    }
}
