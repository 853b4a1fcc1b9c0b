//! Fault drills: at random times of post-copy, links are cut, and one engine, both engines or the
//! source's QEMU are killed. Each time the migration is resumed, and in the end the guest has all
//! of its pages. Half of the drills use plain-text links, half TLS. Where engines are killed, every
//! other migration goes from shared files into private memory, and the next one back.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::Side;
use hikkoshi_lab::{HostPair, Ram, RamBackend, RateLimit, VmConfig, Workload};
use hikkoshi_tests::{
    FaultDrill, Guest, LONG, Migration, MigrationPlan, RAM_MIB, Random, TestEnv, Transport,
    kvm_present, unique_address,
};
use std::cell::Cell;
use std::time::Duration;

/// Slow background, so that post-copy lasts for all interruptions of a migration, and no pages
/// around the requested one: the guest misses pages until the end.
const SLOW_BACKGROUND: [&str; 3] = ["--bandwidth", "16M", "--read-ahead=off"];

/// Longer than any drill.
const LONG_RETRY: [&str; 2] = ["--retry-for", "1h"];

/// A link without data for that long is considered broken.
const STALL: [&str; 2] = ["--stall-timeout", "1s"];

/// Printed by the source when both engines work together again.
const AGAIN: &str = "reconnected to the destination";

/// A guest that continues to fault on missing pages, and reports often.
fn faulting_workload() -> Workload {
    Workload::verify(96).rate(500).option("every_ms", 50)
}

fn faulting_guest() -> VmConfig {
    VmConfig::new()
        .ram(Ram::shared(RAM_MIB))
        .workload(faulting_workload())
}

/// Into private memory in every other migration of a drill, and back. `private`: whether the last
/// one was.
fn alternate_ram(plan: MigrationPlan, private: &Cell<bool>) -> MigrationPlan {
    private.set(!private.get());
    if !private.get() {
        return plan;
    }
    let memory = Ram::new(RamBackend::Anonymous, RAM_MIB);
    plan.destination_config(faulting_guest().ram(memory))
}

/// Every other migration uses TLS, as is the default between hosts; the others use this transport.
fn alternate_tls(plan: MigrationPlan, number: u32, plain: Transport) -> MigrationPlan {
    if number.is_multiple_of(2) {
        return plan.transport(plain);
    }
    let address = match plain {
        Transport::Address(address) => address,
        _ => unique_address(),
    };
    plan.transport(Transport::Invitation(address))
        .receive_args(&["--invite"])
}

/// Which engines are killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Source,
    Destination,
    Both,
}

impl Victim {
    fn kill(self, migration: &mut Migration, random: &mut Random) {
        let source_first = random.below(2) == 0;
        for source in [source_first, !source_first] {
            if source && self != Self::Destination {
                migration.migrate.kill();
            }
            if !source && self != Self::Source {
                migration.receive.kill();
            }
        }
    }

    /// Kills the engine, and restarts it at the same address while the other one waits. In one of
    /// three cases the restarted engine is killed again.
    fn replaced(self, migration: &mut Migration, random: &mut Random) -> Option<String> {
        let source = [&SLOW_BACKGROUND[..], &LONG_RETRY].concat();
        let before = match self {
            Self::Destination => migration.migrate.stderr_count(AGAIN),
            Self::Source | Self::Both => 0,
        };
        self.kill(migration, random);
        let twice = random.below(3) == 0;
        if twice {
            if self != Self::Source {
                migration.start_receive_resume(&LONG_RETRY);
            }
            if self != Self::Destination {
                migration.resume_migrate(&source);
            }
            std::thread::sleep(random.part_of(Duration::from_millis(20)));
            self.kill(migration, random);
        }
        if migration.has_succeeded() || migration.have_journals() != [true; 2] {
            return None;
        }
        if self != Self::Source {
            migration.resume_receive(&LONG_RETRY);
        }
        if self != Self::Destination {
            migration.resume_migrate(&source);
        }
        migration
            .wait_stderr_or_success(Side::Source, AGAIN, before + 1)
            .then(|| format!("replaced{}", if twice { ", killed again" } else { "" }))
    }

    /// Kills the engine; the other one exits. Restarts both at another address with another number
    /// of links.
    fn elsewhere(self, migration: &mut Migration, random: &mut Random) -> Option<String> {
        self.kill(migration, random);
        let [migrate, receive] = [migration.migrate.wait(), migration.receive.wait()];
        if migration.has_succeeded() || migration.have_journals() != [true; 2] {
            return None;
        }
        if migrate.code.is_some() {
            migrate.assert(3, &["o data is lost", "hikkoshi migrate --resume="]);
        }
        if receive.code.is_some() {
            receive.assert(3, &["o data is lost", "hikkoshi receive --resume="]);
        }
        let number = random.number();
        let address = match random.below(2) {
            0 => unique_address(),
            _ => format!(
                "unix:{}/{number:x}",
                migration.journal_folders()[0].parent().unwrap().display()
            ),
        };
        let links = 1 + random.below(6);
        migration.set_address(&address);
        migration.resume_receive(&[]);
        let links_word = format!("--links={links}");
        migration.resume_migrate(&[&SLOW_BACKGROUND[..], &[&links_word]].concat());
        let family = address.split(':').next().unwrap_or_default();
        let family = if family == "unix" { "unix" } else { "TCP" };
        migration
            .wait_stderr_or_success(Side::Source, AGAIN, 1)
            .then(|| format!("both restarted, {family}, links: {links}"))
    }
}

/// The nano guest, with a task on each processor.
fn faulting_guest_under_kvm(cpus: u32) -> VmConfig {
    let config = faulting_guest().kvm().nano().cpus(cpus);
    config.workload(faulting_workload().threads(cpus))
}

/// Under KVM, from shared and from private memory.
#[test]
#[ignore = "long: make drills"]
fn engines_killed_under_kvm() {
    if !kvm_present() {
        return;
    }
    let mut drill = FaultDrill::new("engines killed, KVM");
    for (cpus, backend) in [
        (1, RamBackend::File { share: true }),
        (2, RamBackend::Default),
    ] {
        let env = TestEnv::new();
        let config = faulting_guest_under_kvm(cpus).ram(Ram::new(backend, RAM_MIB));
        let mut guest = Guest::boot_without_extra_disk(&env, config);
        let plan = |number| {
            let plan = MigrationPlan::new("postcopy").migrate_args(&SLOW_BACKGROUND);
            let plan = plan.migrate_args(&LONG_RETRY).receive_args(&LONG_RETRY);
            alternate_tls(plan, number, Transport::Tcp)
        };
        drill.run(&mut guest, (12, 6), plan, |migration, random| {
            let all = [Victim::Source, Victim::Destination, Victim::Both];
            let victim = all[usize::try_from(random.below(3)).unwrap()];
            let how = victim.replaced(migration, random)?;
            Some(format!("{victim:?} {how}"))
        });
    }
    drill.finish();
}

fn killed(what: &'static str, victim: Victim) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, faulting_guest());
    let mut drill = FaultDrill::new(what);
    let private = Cell::new(false);
    let patient = |number| {
        let plan = MigrationPlan::new("postcopy").migrate_args(&SLOW_BACKGROUND);
        let plan = plan.migrate_args(&LONG_RETRY).receive_args(&LONG_RETRY);
        alternate_ram(alternate_tls(plan, number, Transport::Unix), &private)
    };
    drill.run(&mut guest, (10, 5), patient, |migration, random| {
        victim.replaced(migration, random)
    });
    let impatient = |number| {
        let plan = MigrationPlan::new("postcopy").migrate_args(&SLOW_BACKGROUND);
        alternate_ram(alternate_tls(plan, number, Transport::Tcp), &private)
    };
    drill.run(&mut guest, (10, 5), impatient, |migration, random| {
        victim.elsewhere(migration, random)
    });
    drill.finish();
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_engine_killed() {
    killed("source engine killed", Victim::Source);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn destination_engine_killed() {
    killed("destination engine killed", Victim::Destination);
}

#[test]
#[ignore = "part of `make drills`"]
fn both_engines_killed() {
    killed("both engines killed", Victim::Both);
}

/// Ways to cut the network between two hosts.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// `ip link set … down`: nothing passes, and one host detects it.
    Down,
    /// `tc`: all packets are dropped, and neither host is notified.
    Dropped,
    /// Every connection is reset.
    Reset,
}

/// The queue is shorter than any packet's transmission time, so all packets are dropped.
const NOTHING: RateLimit = RateLimit {
    rate_bits: 1000,
    burst_bytes: 1,
    latency: Duration::from_millis(1),
};

impl Cut {
    /// Cuts the network until both engines have detected it.
    fn done(self, link: &mut HostPair, migration: &mut Migration) -> Option<String> {
        const LOST: [&str; 2] = ["Reconnecting to the destination", "Waiting for the source"];
        let (migrate, receive) = (&migration.migrate, &migration.receive);
        let before = [migrate.stderr_count(LOST[0]), receive.stderr_count(LOST[1])];
        let together = migrate.stderr_count(AGAIN);
        match self {
            Self::Down => link.cut().unwrap(),
            Self::Dropped => link.set_rate_limit(Some(NOTHING)).unwrap(),
            Self::Reset => link.reset_connections().unwrap(),
        }
        let noticed = migration.wait_stderr_or_success(Side::Source, LOST[0], before[0] + 1)
            && migration.wait_stderr_or_success(Side::Destination, LOST[1], before[1] + 1);
        match self {
            Self::Down => link.restore().unwrap(),
            Self::Dropped => link.set_rate_limit(None).unwrap(),
            Self::Reset => {}
        }
        let how = match self {
            Self::Down => "ip link down",
            Self::Dropped => "tc drops all",
            Self::Reset => "connections reset",
        };
        (noticed && migration.wait_stderr_or_success(Side::Source, AGAIN, together + 1))
            .then(|| how.to_owned())
    }
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn links_cut() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, faulting_guest());
    cut_links("links cut", guest, [(15, 8), (5, 3)]);
}

#[test]
#[ignore = "long: make drills"]
fn links_cut_under_kvm() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let guest = Guest::boot_without_extra_disk(&env, faulting_guest_under_kvm(2));
    cut_links("links cut, KVM", guest, [(12, 6), (4, 2)]);
}

/// Cuts the network, and then the connections only, so often in all and in one migration.
fn cut_links(what: &'static str, mut guest: Guest<'_>, times: [(usize, usize); 2]) {
    let mut link = HostPair::new(None).unwrap();
    let mut drill = FaultDrill::new(what);
    let patient = MigrationPlan::new("postcopy")
        .migrate_args(&SLOW_BACKGROUND)
        .migrate_args(&LONG_RETRY)
        .receive_args(&LONG_RETRY);
    let hosts = (link.source().clone(), link.destination().clone());
    let across = |number: u32| {
        let (from, to, address) = match number % 2 {
            0 => (&hosts.0, &hosts.1, HostPair::DESTINATION),
            _ => (&hosts.1, &hosts.0, HostPair::SOURCE),
        };
        let address = Transport::Address(format!("{address}:7100"));
        let stalls = patient.clone().migrate_args(&STALL).receive_args(&STALL);
        alternate_tls(stalls, number, address).between_namespaces(from, to)
    };
    let mut turn = [Cut::Down, Cut::Dropped, Cut::Reset].into_iter().cycle();
    drill.run(&mut guest, times[0], across, |migration, _| {
        turn.next().unwrap().done(&mut link, migration)
    });
    // A relay that closes all links.
    let closed = |number| alternate_tls(patient.clone(), number, Transport::Tcp).with_relay();
    drill.run(&mut guest, times[1], closed, |migration, _| {
        let together = migration.migrate.stderr_count(AGAIN);
        migration.relay().reset_links();
        migration
            .wait_stderr_or_success(Side::Source, AGAIN, together + 1)
            .then(|| "closed".to_owned())
    });
    drill.finish();
}

/// Engines are killed while huge pages arrive in pieces: the pieces of incomplete ones are sent
/// again.
#[test]
#[ignore = "part of `make drills`"]
fn engines_killed_with_huge_pages() {
    let env = TestEnv::new();
    // A request is for a whole huge page, and is not delayed by the limits, so the network must be
    // slow.
    let slow = RateLimit {
        rate_bits: 200_000_000,
        burst_bytes: 128 * 1024,
        latency: Duration::from_millis(50),
    };
    let link = HostPair::new(Some(slow)).unwrap();
    let mut guest = Guest::boot(&env, faulting_guest());
    let mut drill = FaultDrill::new("engines killed, huge pages");
    let plan = |number| {
        let plan = MigrationPlan::new("postcopy")
            .between_namespaces(link.source(), link.destination())
            .destination_config(faulting_guest().ram(Ram::huge_2m(256)))
            .migrate_args(&LONG_RETRY)
            .receive_args(&LONG_RETRY);
        let address = Transport::Address(format!("{}:7100", HostPair::DESTINATION));
        alternate_tls(plan, number, address)
    };
    drill.run(&mut guest, (6, 3), plan, |migration, random| {
        let all = [Victim::Source, Victim::Destination, Victim::Both];
        let victim = all[usize::try_from(random.below(3)).unwrap()];
        let how = victim.replaced(migration, random)?;
        Some(format!("{victim:?} {how}"))
    });
    drill.finish();
}

/// The source's QEMU is killed, half of the time with its engine: the RAM file is sufficient.
#[test]
#[ignore = "part of `make drills`"]
fn source_qemu_killed() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, faulting_guest());
    let mut drill = FaultDrill::new("source QEMU killed");
    let plan = MigrationPlan::new("postcopy")
        .migrate_args(&SLOW_BACKGROUND)
        .receive_args(&LONG_RETRY);
    let mut with_engine = false;
    for round in 0..4 {
        let plan = |_| alternate_tls(plan.clone(), round / 2, Transport::Unix);
        drill.run(&mut guest, (1, 1), plan, |migration, _| {
            migration.source().kill();
            migration.source().wait_exit(LONG).unwrap();
            if migration.has_succeeded() {
                return None;
            }
            with_engine = !with_engine;
            if !with_engine {
                return Some("QEMU only".to_owned());
            }
            migration.migrate.kill();
            if migration.has_succeeded() || migration.have_journals() != [true; 2] {
                with_engine = false;
                return None;
            }
            migration.resume_migrate(&SLOW_BACKGROUND);
            let again = migration.wait_stderr_or_success(Side::Source, AGAIN, 1);
            with_engine = again;
            again.then(|| "with its engine".to_owned())
        });
    }
    drill.finish();
}
