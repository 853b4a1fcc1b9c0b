//! Post-copy with every policy that prefers urgent pages, and with the policies disabled.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::ThreadFaults;
use hikkoshi_lab::{
    GuestNetwork, GuestReport, HostPair, HugePageSize, HugePages, Pattern, Ram, RateLimit,
    VmConfig, Workload,
};
use hikkoshi_tests::{
    Breakpoint, Guest, JsonReport, LONG, MessageKind, Migration, MigrationPlan, TestEnv,
    ThreadScheduling, Transport, eventually, free_huge_pages, log,
};
use std::time::Duration;

/// Four processors, each with a thread that writes and checks.
fn four(mib: u64) -> VmConfig {
    let workload = Workload::verify(mib)
        .threads(4)
        .rate(40_000)
        .option("every_ms", 200);
    VmConfig::new().cpus(4).workload(workload)
}

/// The virtual processors that have faulted.
fn waited(json_report: &JsonReport) -> Vec<u32> {
    let mut numbers: Vec<_> = json_report
        .requests
        .faults
        .iter()
        .filter(|thread| thread.count > 0)
        .filter_map(|thread| thread.kind.vcpu())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn all_of(faults: &[ThreadFaults]) -> u64 {
    faults.iter().map(|thread| thread.count).sum()
}

/// Nothing is pushed during a test.
const NO_BACKGROUND: [&str; 2] = ["--background-delay", "3600000"];
const BACKGROUND_AT_ONCE: [&str; 2] = ["--background-delay", "0"];
const LONG_RETRY: [&str; 2] = ["--retry-for", "1h"];

/// All processors fault; several links, several fault threads; each policy is disabled once.
#[test]
#[ignore = "part of `make matrix`"]
fn four_processors_several_links_and_fault_threads() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, four(64));
    let turns: [(&[&str], &[&str]); 4] = [
        (&["--links", "4"], &["--fault-threads", "4"]),
        (
            &["--links", "2", "--read-ahead", "off"],
            &["--fault-threads", "2"],
        ),
        (&["--no-hot-first", "--read-ahead", "8"], &[]),
        (&["--no-priority"], &["--no-priority"]),
    ];
    for (turn, (migrate, receive)) in turns.into_iter().enumerate() {
        // The background takes seconds beside the requested pages, so each of the guest's
        // processors runs meanwhile.
        let (mode, slowly) = [("hybrid", "60M"), ("postcopy", "20M")][turn % 2];
        let slowly = ["--bandwidth", slowly];
        let plan = MigrationPlan::new(mode)
            .transport(Transport::Tcp)
            .migrate_args(migrate)
            .migrate_args(&slowly);
        let json_report = guest.migrate(&plan.receive_args(receive));
        assert!(json_report.pages.urgent > 0 && json_report.pages.background > 0);
        if mode == "postcopy" {
            assert_eq!(
                waited(&json_report),
                [0, 1, 2, 3],
                "{:?}",
                json_report.requests.faults
            );
        }
    }
}

/// All four processors access the same page, and then the next one. Nothing is pushed or read ahead
/// until they have accessed all pages, and answers are delayed, so that all processors wait for
/// each page.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn four_processors_fault_on_the_same_pages() {
    const MIB: u64 = 1;
    const PAGES: u64 = MIB * 256;
    let env = TestEnv::new();
    let workload = Workload::lockstep(MIB).threads(4).option("every_ms", 200);
    // Without a disk: its threads would fault as well, and keep one processor from a page that the
    // others wait for.
    let config = VmConfig::new().cpus(4).workload(workload);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    let plan = MigrationPlan::new("postcopy")
        .delay(MessageKind::Request, Duration::from_millis(20))
        .migrate_args(&["--read-ahead", "off"])
        .migrate_args(&NO_BACKGROUND)
        .receive_args(&["--fault-threads", "4"])
        .receive_args(&LONG_RETRY);
    let mut migration = guest.start_migration(&plan);
    migration.receive.wait_stderr("the guest runs here now");
    // An interval that began after the switchover, and then as many accesses as are needed to see
    // all pages.
    let (mut intervals, mut accesses) = (0, 0);
    let there = &migration.destination;
    there
        .wait_report("all pages seen", there.console().len(), LONG, |report| {
            let GuestReport::Verify(verify) = report else {
                return None;
            };
            intervals += 1;
            if intervals > 1 {
                accesses += verify.latency.accesses;
            }
            (accesses >= 2 * 4 * PAGES).then_some(())
        })
        .unwrap();
    // A new source engine pushes the remaining pages. The destination's engine has counted all the
    // time.
    migration.migrate.kill();
    migration.resume_migrate(&BACKGROUND_AT_ONCE);
    let (exits, finished) = migration.wait();
    let json_report = exits.json_reports[1].clone().unwrap();
    guest.complete_resumed_migration(&exits, finished, "the same pages");
    // A page is requested once, however many processors wait for it: there are more faults than
    // requests. How many more depends on the host's cores and load: with four idle cores nearly
    // three for each page; otherwise late processors find the page installed.
    let (requests, faults) = (
        json_report.requests.request_latency_us.count,
        all_of(&json_report.requests.faults),
    );
    log(format!("{faults} faults, {requests} requests"));
    assert!(faults > requests, "{json_report:?}");
    assert_eq!(
        waited(&json_report),
        [0, 1, 2, 3],
        "{:?}",
        json_report.requests.faults
    );
}

/// The guest reads sequentially, and the background is slow: the pages that it reads next are in
/// flight.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn faults_on_pages_in_flight() {
    let env = TestEnv::new();
    let workload = Workload::verify(64)
        .threads(2)
        .pattern(Pattern::Sequential)
        .option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().cpus(2).workload(workload));
    let plan = MigrationPlan::new("postcopy").delay(MessageKind::Pages, Duration::from_millis(2));
    let json_report = guest.migrate(&plan);
    let under_way = json_report.requests.requests_under_way.unwrap();
    log(format!("{under_way} requests for pages in flight"));
    assert!(under_way > 0, "{json_report:?}");
}

/// A network card's rings are in the guest's memory, and QEMU reads them while it loads the card.
#[test]
fn devices_fault_while_they_are_loaded() {
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let config = VmConfig::new()
        .workload(Workload::verify(32).rate(5000).option("every_ms", 200))
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Address(format!(
            "{}:7100",
            GuestNetwork::DESTINATION
        )))
        .between_namespaces(network.source(), network.destination());
    let (exits, finished) = guest.start_migration(&plan).wait();
    let there = exits.json_reports[1].as_ref().unwrap();
    let before = there.requests.faults_before_running.clone().unwrap();
    log(format!("before the guest ran: {before:?}"));
    let devices = before.iter().filter(|thread| thread.kind.vcpu().is_none());
    assert!(devices.map(|thread| thread.count).sum::<u64>() > 0);
    assert!(
        all_of(&before) <= all_of(&there.requests.faults),
        "{there:?}"
    );
    guest.complete_migration(&exits, finished, "running");
}

/// The threads that wait for faults, requests and urgent pages poll, on fewer cores than threads.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn polling_threads() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for mode in ["postcopy", "hybrid"] {
        guest.migrate(
            &MigrationPlan::new(mode)
                .migrate_args(&["--poll"])
                .receive_args(&["--poll"]),
        );
    }
}

/// A network so slow that it is full of background all the time.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn faults_while_the_network_is_full() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, four(24));
    let link = HostPair::new(Some(RateLimit {
        rate_bits: 200_000_000,
        burst_bytes: 64 * 1024,
        latency: Duration::from_millis(50),
    }))
    .unwrap();
    let address = format!("{}:7000", HostPair::DESTINATION);
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Address(address))
        .between_namespaces(link.source(), link.destination())
        .migrate_args(&["--links", "3"]);
    let json_report = guest.migrate(&plan);
    assert!(json_report.pages.urgent > 0 && json_report.pages.background > 0);
}

/// Pieces of many huge pages in flight at once, requested by four processors.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn huge_pages_on_several_links() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, four(64).ram(Ram::huge_2m(256)));
    for (mode, links) in [("postcopy", "3"), ("hybrid", "2")] {
        let plan = MigrationPlan::new(mode).migrate_args(&["--links", links]);
        let json_report = guest.migrate(&plan.receive_args(&["--fault-threads", "2"]));
        assert!(json_report.pages.urgent > 0, "{json_report:?}");
    }
}

/// Pages of 1 GiB: pre-copy cannot track writes to them, and reports that; post-copy moves them.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn pages_of_a_gigabyte() {
    const GIB: u64 = 1;
    let env = TestEnv::new();
    // For both sides. The kernel may not have that much contiguous memory.
    let _pages = match HugePages::reserve(HugePageSize::Gib1, 2 * GIB * 1024) {
        Ok(pages) => pages,
        Err(error) => return log(format!("NOT TESTED: {error}")),
    };
    let mut guest = Guest::boot(&env, four(64).ram(Ram::huge_1g(GIB).reserved()));
    for mode in ["precopy", "hybrid"] {
        let mut migration = guest.start_migration(&MigrationPlan::new(mode));
        let parts = [
            "hugetlb pages of 1073741824 bytes cannot be tracked",
            "--mode postcopy",
            "nothing was changed",
        ];
        migration.migrate.wait().assert(1, &parts);
        // The destination was not even asked to empty its memory.
        assert!(!migration.receive.stderr().contains("a guest arrives"));
        migration.receive.interrupt();
        let finished = migration.wait().1;
        guest.assert_stayed(finished, mode);
    }
    let json_report =
        guest.migrate(&MigrationPlan::new("postcopy").migrate_args(&["--links", "2"]));
    assert!(json_report.pages.urgent > 0, "{json_report:?}");
}

/// The scheduling attributes of the engines' threads, urgent and background, once all threads
/// exist.
fn thread_scheduling(
    migration: &Migration,
) -> Result<(Vec<ThreadScheduling>, Vec<ThreadScheduling>), String> {
    let pids = [migration.migrate.pid(), migration.receive.pid()];
    let threads: Vec<_> = pids
        .into_iter()
        .flat_map(ThreadScheduling::of_threads)
        .collect();
    let of = |names: &[&str]| {
        let is = |rank: &ThreadScheduling, name: &str| rank.thread.starts_with(name);
        match names.iter().find(|n| !threads.iter().any(|r| is(r, n))) {
            Some(name) => Err(format!("no {name}: {threads:?}")),
            None => Ok(threads
                .iter()
                .filter(|rank| names.iter().any(|name| is(rank, name)))
                .cloned()
                .collect()),
        }
    };
    let urgent = of(&["src-urgent", "dst-urgent", "dst-faults-0", "dst-faults-1"])?;
    Ok((urgent, of(&["src-push-", "dst-back-"])?))
}

/// The scheduler prefers every urgent thread to every background thread, on both sides, unless
/// disabled by an option.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn urgent_threads_have_priority_over_background_threads() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, four(64));
    // The engine keeps a policy that the operator has set; here it is the ordinary one, whatever
    // the tests run with.
    let ordinary = ["chrt", "--other", "0"];
    for (options, ranked) in [(&[][..], true), (&["--no-priority"][..], false)] {
        let plan = MigrationPlan::new("postcopy")
            .migrate_launcher(&ordinary)
            .receive_launcher(&ordinary)
            .migrate_args(options)
            .receive_args(options)
            .receive_args(&["--fault-threads", "2"])
            // After commit: only the pages of firmware are sent before it.
            .hold_at(Breakpoint::after(MessageKind::Pages).nth(400));
        let migration = guest.start_migration(&plan);
        migration.wait_held();
        eventually("ranked", || {
            let (urgent, background) = thread_scheduling(&migration)?;
            let fits = |one: &ThreadScheduling, other: &ThreadScheduling| match ranked {
                true => one.has_priority_over(other),
                false => one.has_same_priority_as(other),
            };
            let all = urgent.iter().all(|u| background.iter().all(|b| fits(u, b)));
            if all {
                Ok(())
            } else {
                Err(format!("{urgent:?} {background:?}"))
            }
        });
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
    }
}

/// Huge pages are rebuilt while the guest runs.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn huge_pages_rebuilt_afterwards() {
    let env = TestEnv::new();
    let workload = Workload::verify(64)
        .threads(2)
        .rate(20_000)
        .option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().cpus(2).workload(workload));
    let plan = MigrationPlan::new("postcopy").receive_args(&["--collapse=2G"]);
    let before = free_huge_pages();
    let (exits, finished) = guest.start_migration(&plan).wait();
    let collapse = exits.json_reports[1]
        .as_ref()
        .unwrap()
        .collapse
        .clone()
        .unwrap();
    assert!(collapse.tried >= 32, "{collapse:?}");
    hikkoshi_tests::assert_rebuilt(&collapse, before);
    assert!(exits.json_reports[0].as_ref().unwrap().collapse.is_none());
    guest.complete_migration(&exits, finished, "running");
}
