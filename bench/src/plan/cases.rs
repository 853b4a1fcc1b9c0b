//! Every case that can be measured.

use super::case::Case;
use super::network::NetworkKind;
use super::system::System;
use super::variant::Variant;
use super::workload::Workload;

/// Every case; cases that are compared with one another are adjacent.
pub(super) fn all() -> Vec<Case> {
    use System::{
        HikkoshiHybrid, HikkoshiPostcopy, HikkoshiPrecopy, Qemu72Postcopy, Qemu72Preempt,
        QemuMultifd, QemuPostcopy, QemuPostcopyAtOnce, QemuPrecopy, QemuPreempt, VirshPostcopy,
        VirshPrecopy,
    };
    use Variant::{
        CompressOff, Links, NoDrain, NoHotFirst, NoInFlightLimit, NoPriority, NoReadAhead, Plain,
        Poll, ReadAhead8, Tls,
    };
    const UNSHAPED: NetworkKind = NetworkKind::Loopback;
    const TEN: NetworkKind = NetworkKind::Gbit(10);
    const ONE: NetworkKind = NetworkKind::Gbit(1);
    const ONE_A_FLOW: NetworkKind = NetworkKind::GbitPerFlow(1);

    let mut cases = Vec::new();
    let mut add = |network, workload, systems: &[(System, Variant)]| {
        cases.extend(systems.iter().map(|&(system, variant)| Case {
            network,
            workload,
            system,
            variant,
            async_faults: true,
        }));
    };
    for network in [UNSHAPED, TEN, ONE] {
        add(
            network,
            Workload::Busy,
            &[HikkoshiHybrid, QemuPreempt, HikkoshiPostcopy, QemuPostcopy]
                .map(|system| (system, Plain)),
        );
        let paced = [HikkoshiPrecopy, QemuPrecopy, HikkoshiHybrid, QemuMultifd];
        add(
            network,
            Workload::paced(network),
            &paced.map(|system| (system, Plain)),
        );
    }
    // Beside the same cases with shared memory.
    for network in [TEN, ONE] {
        let busy = [HikkoshiHybrid, QemuPreempt, HikkoshiPostcopy].map(|system| (system, Plain));
        add(network, Workload::Private, &busy);
        let paced = [HikkoshiPrecopy, QemuPrecopy, HikkoshiHybrid].map(|system| (system, Plain));
        add(network, Workload::private_paced(network), &paced);
        let fill = [HikkoshiPostcopy, HikkoshiPrecopy].map(|system| (system, Plain));
        add(network, Workload::PrivateFill, &fill);
    }
    let postcopy = [HikkoshiPostcopy, QemuPreempt, HikkoshiHybrid, QemuPostcopy];
    for network in [UNSHAPED, TEN] {
        for workload in [Workload::Scale, Workload::ScaleBusy] {
            let systems = postcopy.map(|system| (system, Plain));
            add(network, workload, &systems);
        }
    }
    // Whether compression pays where processors are the limit.
    for workload in [Workload::Scale, Workload::ScaleBusy] {
        add(TEN, workload, &[(HikkoshiHybrid, CompressOff)]);
    }
    // What grows with the guest.
    for gib in [1, 2, 4, 8] {
        let systems = [HikkoshiHybrid, HikkoshiPostcopy].map(|system| (system, Plain));
        add(TEN, Workload::Grow(gib), &systems);
    }
    let endless = [HikkoshiPrecopy, QemuPrecopy, QemuMultifd];
    add(
        ONE,
        Workload::Endless,
        &endless.map(|system| (system, Plain)),
    );
    for network in [TEN, ONE] {
        let huge = [HikkoshiHybrid, QemuPreempt].map(|system| (system, Plain));
        add(network, Workload::Huge, &huge);
        let ahead = [Plain, NoReadAhead, ReadAhead8].map(|variant| (HikkoshiPostcopy, variant));
        add(network, Workload::Sequential, &ahead);
        let fill = [
            (HikkoshiPostcopy, Plain),
            (HikkoshiPostcopy, NoInFlightLimit),
            (HikkoshiPrecopy, Plain),
        ];
        add(network, Workload::Fill, &fill);
    }
    // What each step of QEMU's preemption has gained: version 7.2 has the first two, 10.0 all.
    let before = [Qemu72Postcopy, Qemu72Preempt].map(|system| (system, Plain));
    add(TEN, Workload::Busy, &before);
    add(TEN, Workload::Huge, &before);
    add(TEN, Workload::Huge, &[(QemuPostcopy, Plain)]);
    let scanners = [
        (HikkoshiPostcopy, ReadAhead8),
        (HikkoshiPostcopy, Plain),
        (QemuPreempt, Plain),
    ];
    add(TEN, Workload::Scan, &scanners);
    // The cases without a variant are above or next to these.
    let random = [NoReadAhead, Poll, NoPriority, Links(1), Links(2), Links(4)];
    add(
        TEN,
        Workload::Busy,
        &random.map(|variant| (HikkoshiHybrid, variant)),
    );
    let encrypted = [(HikkoshiHybrid, Tls), (HikkoshiPostcopy, Tls)];
    for network in [UNSHAPED, TEN, ONE] {
        add(network, Workload::Busy, &encrypted);
    }
    add(TEN, Workload::Fill, &encrypted[1..]);
    // Whether a page request waits for the compressor.
    let uncompressed = [HikkoshiHybrid, HikkoshiPostcopy].map(|system| (system, CompressOff));
    add(ONE, Workload::Busy, &uncompressed);
    add(TEN, Workload::Busy, &uncompressed);
    let policies = [Plain, NoHotFirst, NoPriority, Links(2), NoReadAhead];
    for network in [TEN, ONE] {
        let hybrid = policies.map(|variant| (HikkoshiHybrid, variant));
        add(network, Workload::Hotspot, &hybrid);
    }
    add(TEN, Workload::Busy, &[(HikkoshiHybrid, NoHotFirst)]);
    let sequential = [NoPriority, Links(2)].map(|variant| (HikkoshiPostcopy, variant));
    add(TEN, Workload::Sequential, &sequential);
    let links = [Links(1), Links(2), Links(4)];
    add(
        UNSHAPED,
        Workload::Fill,
        &links.map(|variant| (HikkoshiPostcopy, variant)),
    );
    add(
        UNSHAPED,
        Workload::paced(UNSHAPED),
        &links.map(|variant| (HikkoshiPrecopy, variant)),
    );
    for system in [HikkoshiPostcopy, HikkoshiPrecopy] {
        let links = links.map(|variant| (system, variant));
        add(ONE_A_FLOW, Workload::Fill, &links);
    }
    let precopy = [
        (HikkoshiPrecopy, Plain),
        (HikkoshiPrecopy, NoDrain),
        (QemuPrecopy, Plain),
    ];
    add(TEN, Workload::Disk20, &precopy);
    add(TEN, Workload::Disk100, &precopy);
    add(ONE, Workload::Disk20Long, &precopy);
    let both = [
        HikkoshiPrecopy,
        QemuPrecopy,
        HikkoshiHybrid,
        HikkoshiPostcopy,
        QemuPostcopy,
    ];
    add(TEN, Workload::Clients, &both.map(|system| (system, Plain)));
    // Beside hikkoshi's post-copy; the other one beside hybrid.
    add(TEN, Workload::Clients, &[(QemuPostcopyAtOnce, Plain)]);
    add(TEN, Workload::Debian, &both.map(|system| (system, Plain)));
    let policies = [NoHotFirst, NoPriority, Links(2), NoReadAhead];
    add(
        TEN,
        Workload::Debian,
        &policies.map(|variant| (HikkoshiHybrid, variant)),
    );
    let hikkoshi = [HikkoshiPrecopy, HikkoshiHybrid];
    add(
        ONE,
        Workload::Debian,
        &hikkoshi.map(|system| (system, Plain)),
    );
    add(
        ONE,
        Workload::Debian,
        &hikkoshi.map(|system| (system, CompressOff)),
    );
    let domains = [
        VirshPrecopy,
        HikkoshiPrecopy,
        VirshPostcopy,
        HikkoshiHybrid,
        HikkoshiPostcopy,
    ];
    add(
        TEN,
        Workload::Domain,
        &domains.map(|system| (system, Plain)),
    );
    let servers = [HikkoshiHybrid, QemuPreempt, HikkoshiPostcopy, QemuPrecopy];
    add(ONE, Workload::Web, &servers.map(|system| (system, Plain)));
    cases.extend(nano());
    cases
}

/// The cases of the nano guest, each with asynchronous page faults and without.
fn nano() -> Vec<Case> {
    use System::{HikkoshiPostcopy, QemuPreempt};
    use Variant::{NoReadAhead, Plain, ReadAhead8, Traced};

    let mut cases = Vec::new();
    let with = |async_faults, network, workload, (system, variant)| Case {
        network,
        workload,
        system,
        variant,
        async_faults,
    };
    let mut add = |network, workload, systems: &[(System, Variant)]| {
        for &system in systems {
            cases.extend([true, false].map(|on| with(on, network, workload, system)));
        }
    };
    let read_ahead = [NoReadAhead, ReadAhead8, Plain].map(|variant| (HikkoshiPostcopy, variant));
    for network in [NetworkKind::Gbit(10), NetworkKind::Gbit(1)] {
        add(network, Workload::NanoScan, &read_ahead);
        add(network, Workload::NanoScan, &[(QemuPreempt, Plain)]);
    }
    let requests_only = (HikkoshiPostcopy, NoReadAhead);
    let few = Workload::NanoTasks(4);
    add(NetworkKind::RoundTrip(1_000), few, &[requests_only]);
    for network in [NetworkKind::Gbit(10), NetworkKind::RoundTrip(1_000)] {
        for cpus in [1, 2] {
            add(network, Workload::NanoWalk(cpus), &[requests_only]);
        }
    }
    // Round trips of a network card of 10 Gbit/s, and of longer lines.
    for round_trip_us in [150, 1_000, 10_000] {
        let network = NetworkKind::RoundTrip(round_trip_us);
        add(network, Workload::NanoWebRequests, &read_ahead[..2]);
        add(network, Workload::NanoWeb, &read_ahead[2..]);
    }
    // Without asynchronous faults, it would take as long as with one task.
    cases.extend([32, 64, 96, 128].map(|tasks| {
        let workload = Workload::NanoTasks(tasks);
        with(
            true,
            NetworkKind::RoundTrip(10_000),
            workload,
            requests_only,
        )
    }));
    for network in [NetworkKind::Gbit(10), NetworkKind::Gbit(1)] {
        let traced = (HikkoshiPostcopy, Traced);
        cases.push(with(true, network, Workload::NanoTimeline, traced));
        for system in [HikkoshiPostcopy, QemuPreempt] {
            let web = |on| with(on, network, Workload::NanoWeb, (system, Plain));
            cases.extend([true, false].map(web));
        }
    }
    cases
}

pub(super) fn is_quick(case: &Case) -> bool {
    case.network != NetworkKind::Loopback
        && case.variant == Variant::Plain
        && matches!(case.workload, Workload::Busy | Workload::Paced(_))
}
