//! Guests that read their disk by direct I/O while they are moved.
//!
//! The device writes such data into guest memory when it arrives. On a slow disk that is long after
//! the page was marked as written. Six threads of the guest read; one more checks all that was
//! read, repeatedly (guest/README.md).
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::{V7_2, V10_0, V11_1};
use hikkoshi_lab::{
    Aio, Cache, Disk, DiskContent, DiskFormat, DiskImage, GuestReport, LabError, QemuVersion, Ram,
    Throttle, VmConfig, Workload,
};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, log};

/// Memory that the guest reads its disk into, MiB.
const ARENA_MIB: u64 = 300;
/// The disk's size, MiB.
const DISK_MIB: u64 = 128;
/// A rate at which a read takes 40 ms.
const BYTES_PER_SECOND: u64 = 20_000_000;
/// Migrations without draining after which a stale page must have been found. A hybrid migration
/// leaves dozens, a pre-copy more.
const MAX_MIGRATIONS: u32 = 8;

/// A rate limit for the disk; `None` where the host does not support it. Then nothing can be
/// tested, and a run of CI fails.
fn slow_disk(env: &TestEnv) -> Option<Throttle> {
    match Throttle::new(env.lab(), BYTES_PER_SECOND) {
        Ok(throttle) => Some(throttle),
        Err(error @ LabError::NoThrottle { .. }) => {
            assert!(
                std::env::var_os("CI").is_none_or(|ci| ci != "true"),
                "{error}"
            );
            log(format!(
                "NOT TESTED: {}",
                error_reporter::Report::new(&error)
            ));
            None
        }
        Err(error) => panic!("{}", error_reporter::Report::new(error)),
    }
}

/// Hosts for one guest, with different ways of reading its disk.
struct Hosts {
    config: VmConfig,
    disk: Disk,
    throttle: Throttle,
}

impl Hosts {
    fn new(env: &TestEnv, throttle: &Throttle, version: QemuVersion, format: DiskFormat) -> Self {
        let content = DiskContent::Blocks { mib: DISK_MIB };
        let disk = DiskImage::new(env.lab(), "disk", format, content).unwrap();
        let workload = Workload::idle()
            .option("every_ms", 200)
            .with_direct_reads(ARENA_MIB);
        Self {
            config: VmConfig::new()
                .version(version)
                .cpus(2)
                .ram(Ram::shared(512))
                .workload(workload)
                .throttle(throttle),
            disk: Disk::new(disk),
            throttle: throttle.clone(),
        }
    }

    fn with(&self, change: impl FnOnce(Disk) -> Disk) -> VmConfig {
        self.config.clone().disk(change(self.disk.clone()))
    }

    /// Boots the guest, and waits until it has used almost all of its arena; the disk is limited
    /// only then.
    fn boot<'a>(&self, env: &'a TestEnv, config: VmConfig) -> Guest<'a> {
        self.throttle.set(0).unwrap();
        let guest = Guest::boot(env, config);
        let mut kib = 0;
        let full = |report: &GuestReport| {
            if let GuestReport::Disk(work) = report {
                kib += work.read_kib;
            }
            (kib >= 2 * ARENA_MIB * 1024).then_some(())
        };
        let vm = guest.vm();
        vm.wait_report("the guest to fill the arena", 0, LONG, full)
            .unwrap();
        self.throttle.set(BYTES_PER_SECOND).unwrap();
        guest
    }
}

/// Boots a guest with `first` as its way of reading, and migrates it by these modes to these ways
/// of reading. No page may ever be stale.
fn no_stale_page(
    version: QemuVersion,
    format: DiskFormat,
    first: Aio,
    moves: &[(&'static str, Aio)],
) {
    let env = TestEnv::new();
    let Some(throttle) = slow_disk(&env) else {
        return;
    };
    let hosts = Hosts::new(&env, &throttle, version, format);
    // In an iothread with one format, in QEMU's main loop with the other.
    let with = |aio| {
        hosts.with(|disk| match format {
            DiskFormat::Raw => disk.aio(aio),
            DiskFormat::Qcow2 => disk.aio(aio).iothread(),
        })
    };
    let mut guest = hosts.boot(&env, with(first));
    let mut from = first;
    for &(mode, to) in moves {
        log(format!(
            "{mode} from aio={} to aio={}, {}",
            from.option(),
            to.option(),
            format.option()
        ));
        guest.migrate(&MigrationPlan::new(mode).destination_config(with(to)));
        from = to;
    }
}

#[test]
fn direct_reads_of_a_raw_disk_in_each_mode() {
    use Aio::{IoUring, Native, Threads};
    let moves = [
        ("hybrid", Native),
        ("precopy", IoUring),
        ("postcopy", Threads),
    ];
    no_stale_page(V11_1, DiskFormat::Raw, Threads, &moves);
}

#[test]
#[ignore = "part of `make direct-io`"]
fn direct_reads_of_a_qcow2_disk_with_an_iothread() {
    use Aio::{IoUring, Native, Threads};
    let moves = [("precopy", IoUring), ("hybrid", Threads)];
    no_stale_page(V11_1, DiskFormat::Qcow2, Native, &moves);
}

/// Every mode from every way of reading; hybrid twice.
fn everything(version: QemuVersion, format: DiskFormat) {
    let modes = ["hybrid", "precopy", "postcopy", "hybrid"];
    let mut at = Aio::ALL.iter().cycle();
    let first = *at.next().unwrap();
    let moves: Vec<_> = modes
        .into_iter()
        .flat_map(|mode| [mode; Aio::ALL.len()])
        .map(|mode| (mode, *at.next().unwrap()))
        .collect();
    no_stale_page(version, format, first, &moves);
}

#[test]
#[ignore = "two times twelve migrations: `make direct-io`"]
fn every_mode_from_every_way_of_reading_a_raw_disk() {
    everything(V11_1, DiskFormat::Raw);
    everything(V10_0, DiskFormat::Raw);
}

#[test]
#[ignore = "two times twelve migrations: `make direct-io`"]
fn every_mode_from_every_way_of_reading_a_qcow2_disk() {
    everything(V11_1, DiskFormat::Qcow2);
    everything(V7_2, DiskFormat::Qcow2);
}

/// Through the host's page cache, a processor copies the data into guest memory, and the dirty log
/// sees it.
#[test]
#[ignore = "part of `make direct-io`"]
fn a_disk_with_cache_writeback_needs_no_draining() {
    let env = TestEnv::new();
    let Some(throttle) = slow_disk(&env) else {
        return;
    };
    let hosts = Hosts::new(&env, &throttle, V11_1, DiskFormat::Raw);
    let config = hosts.with(|disk| disk.aio(Aio::Threads).cache(Cache::Writeback));
    let mut guest = hosts.boot(&env, config);
    for mode in ["hybrid", "precopy"] {
        guest.migrate(&MigrationPlan::new(mode).migrate_args(&["--no-drain"]));
    }
}

/// Shows that the tests above would detect stale pages.
#[test]
#[ignore = "part of `make direct-io`"]
fn without_draining_pages_are_stale() {
    let env = TestEnv::new();
    let Some(throttle) = slow_disk(&env) else {
        return;
    };
    let hosts = Hosts::new(&env, &throttle, V11_1, DiskFormat::Raw);
    let mut guest = hosts.boot(&env, hosts.with(|disk| disk));
    for (number, mode) in (1..=MAX_MIGRATIONS).zip(["precopy", "hybrid"].into_iter().cycle()) {
        let plan = MigrationPlan::new(mode).migrate_args(&["--no-drain"]);
        let (exits, finished) = guest.start_migration(&plan).wait();
        exits.assert_source(0, &[]);
        exits.assert_destination(0, &[]);
        guest.set_vm(finished.destination);
        let verdict = guest.vm().sweep(LONG).unwrap();
        log(format!(
            "{mode} without draining: {} stale pages",
            verdict.bad
        ));
        if verdict.bad > 0 {
            // The slot's previous data, or zeros in memory that was never read into.
            let lost = |report: &GuestReport| match report {
                GuestReport::Bad(finding) => ["fault=stale", "fault=zero"]
                    .iter()
                    .any(|fault| finding.contains(fault)),
                _ => false,
            };
            let lines = guest.vm().console().lines();
            assert!(lines.iter().any(|line| lost(&line.report)), "{lines:?}");
            return;
        }
        assert!(
            number < MAX_MIGRATIONS,
            "no stale page in {number} migrations"
        );
    }
}
