//! Post-copy with everything that puts urgent pages first, and with it switched off.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{
    GuestNetwork, HugePageSize, HugePages, Link, Pattern, Ram, Report, Shape, VmConfig, Workload,
};
use hikkoshi_tests::{
    Account, Attempt, Guest, Kind, LONG, Moment, Rank, Scene, ThreadFaults, Trip, Via, eventually,
    free_huge_pages, tell,
};
use std::time::Duration;

/// Four processors, each with a thread that writes and checks as fast as it can.
fn four(mib: u64) -> VmConfig {
    let workload = Workload::verify(mib).threads(4).option("every_ms", 200);
    VmConfig::new().cpus(4).workload(workload)
}

/// The virtual processors that have waited for pages.
fn waited(account: &Account) -> Vec<u32> {
    let mut numbers: Vec<_> = account
        .faults
        .iter()
        .filter(|thread| thread.count > 0)
        .filter_map(|thread| thread.vcpu)
        .collect();
    numbers.sort_unstable();
    numbers
}

fn all_of(faults: &[ThreadFaults]) -> u64 {
    faults.iter().map(|thread| thread.count).sum()
}

/// Nothing is pushed for as long as a test may take.
const NEVER: [&str; 2] = ["--background-delay", "3600000"];
const AT_ONCE: [&str; 2] = ["--background-delay", "0"];
const PATIENT: [&str; 2] = ["--retry-for", "1h"];

/// Each processor faults, on several links, several threads read the faults, and each policy has
/// its turn at being switched off.
#[test]
fn four_processors_several_links_and_fault_threads() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, four(64));
    let turns: [(&[&str], &[&str]); 4] = [
        (&["--links", "4"], &["--fault-threads", "4"]),
        (
            &["--links", "2", "--read-ahead", "off"],
            &["--fault-threads", "2"],
        ),
        (&["--no-hot-first", "--no-follow", "--read-ahead", "8"], &[]),
        (&["--no-priority"], &["--no-priority"]),
    ];
    for (turn, (migrate, receive)) in turns.into_iter().enumerate() {
        // Background goes on for seconds, beside what is asked for: no processor of the guest has to
        // wait for one of the host so long.
        let (mode, slowly) = [("hybrid", "60M"), ("postcopy", "20M")][turn % 2];
        let slowly = ["--bandwidth", slowly];
        let trip = Trip::by(mode).via(Via::Tcp).with(migrate).with(&slowly);
        let account = guest.travel(&trip.receive_with(receive));
        assert!(account.pages.urgent > 0 && account.pages.background > 0);
        if mode == "postcopy" {
            assert_eq!(waited(&account), [0, 1, 2, 3], "{:?}", account.faults);
        }
    }
}

/// All four processors want the same page, and then the next one; nothing is pushed or read ahead
/// until they have had all of them, and an answer takes its time, so that all of them wait for it.
#[test]
fn four_processors_fault_on_the_same_pages() {
    const MIB: u64 = 1;
    const PAGES: u64 = MIB * 256;
    let scene = Scene::new();
    let workload = Workload::together(MIB).threads(4).option("every_ms", 200);
    // Without a disk: its threads would fault as well, and keep one processor from a page that the
    // others wait for.
    let config = VmConfig::new().cpus(4).workload(workload);
    let mut guest = Guest::boot_as_it_is(&scene, config);
    let trip = Trip::by("postcopy")
        .slow(Kind::Request, Duration::from_millis(20))
        .with(&["--read-ahead", "off", "--no-follow"])
        .with(&NEVER)
        .receive_with(&["--fault-threads", "4"])
        .receive_with(&PATIENT);
    let mut attempt = guest.set_out(&trip);
    attempt.receive.wait_said("the guest runs here now");
    // An interval that began here, and then as many accesses as it takes to see all pages.
    let (mut intervals, mut accesses) = (0, 0);
    let there = &attempt.destination;
    there
        .wait_report("all pages seen", there.console().len(), LONG, |report| {
            let Report::Verify(verify) = report else {
                return None;
            };
            intervals += 1;
            if intervals > 1 {
                accesses += verify.latency.accesses;
            }
            (accesses >= 2 * 4 * PAGES).then_some(())
        })
        .unwrap();
    // What is left is pushed by another engine. The destination's has counted all the time.
    attempt.migrate.kill();
    attempt.resume_migrate(&AT_ONCE);
    let (ends, arrived) = attempt.wait();
    let account = ends.accounts[1].clone().unwrap();
    guest.arrive_after_all(&ends, arrived, "the same pages");
    // A page is asked for once, whoever waits for it. With four cores that is nearly three more
    // faults than requests for each page; with fewer, who comes late finds it there.
    let (requests, faults) = (account.request_latency_us.count, all_of(&account.faults));
    tell(format!("{faults} faults, {requests} requests"));
    assert!(faults >= requests + PAGES, "{account:?}");
    assert_eq!(waited(&account), [0, 1, 2, 3], "{:?}", account.faults);
    for thread in account.faults.iter().filter(|t| t.vcpu.is_some()) {
        assert!(thread.count >= PAGES / 2, "{:?}", account.faults);
    }
}

/// The guest reads onwards, background is slow, and what it reads next is on its way already.
#[test]
fn faults_on_pages_in_flight() {
    let scene = Scene::new();
    let workload = Workload::verify(64)
        .threads(2)
        .pattern(Pattern::Sequential)
        .option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().cpus(2).workload(workload));
    let trip = Trip::by("postcopy").slow(Kind::Pages, Duration::from_millis(2));
    let account = guest.travel(&trip);
    let under_way = account.requests_under_way.unwrap();
    tell(format!("{under_way} requests for pages in flight"));
    assert!(under_way > 0, "{account:?}");
}

/// A network card's rings are in the guest's memory, and QEMU reads them as it loads the card.
#[test]
fn devices_fault_while_they_are_loaded() {
    let scene = Scene::new();
    let network = GuestNetwork::new().unwrap();
    let config = VmConfig::new()
        .workload(Workload::verify(32).option("every_ms", 200))
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&scene, config);
    let trip = Trip::by("postcopy")
        .via(Via::Address(format!("{}:7100", GuestNetwork::DESTINATION)))
        .between(network.source(), network.destination());
    let (ends, arrived) = guest.set_out(&trip).wait();
    let there = ends.accounts[1].as_ref().unwrap();
    let before = there.faults_before_running.clone().unwrap();
    tell(format!("before the guest ran: {before:?}"));
    let devices = before.iter().filter(|thread| thread.vcpu.is_none());
    assert!(devices.map(|thread| thread.count).sum::<u64>() > 0);
    assert!(all_of(&before) <= all_of(&there.faults), "{there:?}");
    guest.arrive(&ends, arrived, "running");
}

/// The threads that wait for faults, requests and urgent pages spin; here they have fewer cores
/// than they would like.
#[test]
fn spinning() {
    let scene = Scene::new();
    let workload = Workload::verify(32).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    for mode in ["postcopy", "hybrid"] {
        guest.travel(&Trip::by(mode).with(&["--poll"]).receive_with(&["--poll"]));
    }
}

/// A line so thin that it is full of background all the time.
#[test]
fn faults_while_the_line_is_full() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, four(24));
    let link = Link::new(Some(Shape {
        rate_bits: 200_000_000,
        burst_bytes: 64 * 1024,
        latency: Duration::from_millis(50),
    }))
    .unwrap();
    let address = format!("{}:7000", Link::DESTINATION);
    let trip = Trip::by("postcopy")
        .via(Via::Address(address))
        .between(link.source(), link.destination())
        .with(&["--links", "3"]);
    let account = guest.travel(&trip);
    assert!(account.pages.urgent > 0 && account.pages.background > 0);
}

/// Pieces of many huge pages under way at once, asked for by four processors.
#[test]
fn huge_pages_on_several_links() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, four(64).ram(Ram::Huge { mib: 256 }));
    for (mode, links) in [("postcopy", "3"), ("hybrid", "2")] {
        let trip = Trip::by(mode).with(&["--links", links]);
        let account = guest.travel(&trip.receive_with(&["--fault-threads", "2"]));
        assert!(account.pages.urgent > 0, "{account:?}");
    }
}

/// Pages of 1 GiB: pre-copy cannot know what the guest writes to, and says so; post-copy moves them.
#[test]
fn pages_of_a_gigabyte() {
    const GIB: u64 = 1;
    let scene = Scene::new();
    // For both sides. The kernel may not have so much in one piece.
    match HugePages::reserve(HugePageSize::Gib1, 2 * GIB * 1024) {
        Ok(pages) => drop(pages),
        Err(error) => return tell(format!("NOT TESTED: {error}")),
    }
    let mut guest = Guest::boot(&scene, four(64).ram(Ram::Giant { gib: GIB }));
    for mode in ["precopy", "hybrid"] {
        let mut attempt = guest.set_out(&Trip::by(mode));
        let parts = [
            "hugetlb pages of 1073741824 bytes cannot be tracked",
            "--mode postcopy",
            "nothing was changed",
        ];
        attempt.migrate.wait().assert(1, &parts);
        // Not even the other side was asked to empty its memory.
        assert!(!attempt.receive.said().contains("a guest arrives"));
        attempt.receive.interrupt();
        let arrived = attempt.wait().1;
        guest.stay(arrived, mode);
    }
    let account = guest.travel(&Trip::by("postcopy").with(&["--links", "2"]));
    assert!(account.pages.urgent > 0, "{account:?}");
}

/// What the engine's threads have, the urgent and the background ones, once all are there.
fn ranks(attempt: &Attempt) -> Result<(Vec<Rank>, Vec<Rank>), String> {
    let pids = [attempt.migrate.pid(), attempt.receive.pid()];
    let threads: Vec<_> = pids.into_iter().flat_map(Rank::of_threads).collect();
    let of = |names: &[&str]| {
        let is = |rank: &Rank, name: &str| rank.thread.starts_with(name);
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

/// Every urgent thread comes before every background thread on the processor, at both sides, unless
/// the operator does not want that.
#[test]
fn urgent_threads_outrank_background_threads() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, four(64));
    // A policy that was chosen for the engine is left alone: here it is the ordinary one, whatever
    // the tests are run with.
    let ordinary = ["chrt", "--other", "0"];
    for (options, ranked) in [(&[][..], true), (&["--no-priority"][..], false)] {
        let trip = Trip::by("postcopy")
            .migrate_by(&ordinary)
            .receive_by(&ordinary)
            .with(options)
            .receive_with(options)
            .receive_with(&["--fault-threads", "2"])
            // Without an acknowledgement the window stays full, and background in the middle.
            .hold(Moment::before(Kind::Ack));
        let attempt = guest.set_out(&trip);
        attempt.wait_held();
        eventually("ranked", || {
            let (urgent, background) = ranks(&attempt)?;
            let fits = |one: &Rank, other: &Rank| match ranked {
                true => one.outranks(other),
                false => one.equals(other),
            };
            let all = urgent.iter().all(|u| background.iter().all(|b| fits(u, b)));
            if all {
                Ok(())
            } else {
                Err(format!("{urgent:?} {background:?}"))
            }
        });
        attempt.relay().let_go();
        let (ends, arrived) = attempt.wait();
        guest.arrive(&ends, arrived, "running");
    }
}

/// Huge pages are rebuilt under the running guest, which does not notice.
#[test]
fn huge_pages_rebuilt_afterwards() {
    let scene = Scene::new();
    let workload = Workload::verify(64).threads(2).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().cpus(2).workload(workload));
    let trip = Trip::by("postcopy").receive_with(&["--collapse=2G"]);
    let before = free_huge_pages();
    let (ends, arrived) = guest.set_out(&trip).wait();
    let collapse = ends.accounts[1].as_ref().unwrap().collapse.clone().unwrap();
    assert!(collapse.tried >= 32, "{collapse:?}");
    collapse.assert_rebuilt(before);
    assert!(ends.accounts[0].as_ref().unwrap().collapse.is_none());
    guest.arrive(&ends, arrived, "running");
}
