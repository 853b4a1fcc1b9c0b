//! Domains whose disks are copied with them: each host has an image of its own.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{LibvirtTest, assert_healthy};
use crate::disks::copied::{blank_disk, blank_disk_of, full_disk};
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_lab::{Disk, DiskFormat, Workload};
use hikkoshi_tests::MessageKind::{Commit, DiskBytes};
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, eventually};

/// Kills a host's guards, and fails if there is none. The root with libvirt 12.9 has no `pkill`.
const KILL_GUARD: &str = r"
killed=
for process in /proc/[0-9]*; do
    if tr '\0' ' ' <$process/cmdline | grep -q '[g]uard --journal'; then
        kill -KILL ${process#/proc/}
        killed=1
    fi
done
[[ $killed ]]";

/// The program that serves the disks, as the kernel calls it.
const STORAGE_DAEMON: &str = "qemu-storage-da";

/// A domain that writes to its disk all the time.
fn boot<'h>(test: &'h LibvirtTest, disk: &Disk) -> Domain<'h> {
    let workload = Workload::verify(32)
        .rate(10_000)
        .option("every_ms", 200)
        .option("disk", "/dev/vda")
        .option("disk_threads", 2)
        .option("disk_chunk_kib", 16)
        .option("disk_mib", 4)
        .option("disk_write", 50)
        .option("disk_rate", 400);
    let config = DomainConfig::new("guest", workload).disk(disk.clone());
    Domain::boot(&test.hosts, config).unwrap()
}

/// A move that copies the disk to this one.
fn plan(mode: &'static str, to: &Disk) -> DomainPlan {
    let set = format!("disk=vda,path={}", to.image().path().display());
    DomainPlan::new(mode)
        .migrate_args(&["--copy-disks"])
        .receive_args(&["--set", &set])
}

/// Nothing of a copy is left: in QEMU, which has the domain, and no program serves a disk.
fn assert_nothing_left(host: &LibvirtHost) {
    for command in ["query-jobs", "query-named-block-nodes"] {
        let asked = format!(r#"{{"execute":"{command}"}}"#);
        let answer = host.virsh(&["qemu-monitor-command", "guest", &asked]);
        let answer = answer.unwrap();
        assert!(!answer.contains("hikkoshi-disk-"), "{answer}");
    }
}

/// Whether the source's QEMU copies a disk.
fn is_copying(host: &LibvirtHost) -> bool {
    let jobs = r#"{"execute":"query-block-jobs"}"#;
    let answer = host.virsh(&["qemu-monitor-command", "guest", jobs]);
    answer.unwrap().contains("mirror")
}

fn assert_not_served(host: &LibvirtHost) {
    eventually("the storage daemon to end", || {
        match host.pids_of(STORAGE_DAEMON).unwrap().as_slice() {
            [] => Ok(()),
            pids => Err(format!("{pids:?}")),
        }
    });
}

/// There, and back to the image that the first copy has left.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn a_domain_is_moved_with_its_disk() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    for format in [DiskFormat::Qcow2, DiskFormat::Raw] {
        let mut disks = [full_disk(&test.env, format), blank_disk(&test.env, format)];
        let domain = boot(&test, &disks[0]);
        let mut order = [source, destination];
        for mode in ["hybrid", "precopy", "postcopy"] {
            let [from, to] = &disks;
            let plan = plan(mode, to).hold_at(Breakpoint::before(Commit));
            let moving = DomainMove::start(&test.env, &domain, order, &plan);
            moving.wait_held();
            let same = from.image().has_content_of(to.image()).unwrap();
            assert!(same, "the disks differ at the switch");
            assert_not_served(order[1]);
            moving.relay().release();
            let report = moving.complete();
            assert!(report.disks.iter().all(|disk| disk.in_sync), "{report:?}");
            assert_eq!(report.disks.len(), 1);
            assert_eq!(order[0].state("guest").unwrap(), "absent");
            let listed = order[1].virsh(&["domblklist", "guest"]).unwrap();
            assert!(
                listed.contains(to.image().path().to_str().unwrap()),
                "{listed}"
            );
            assert_healthy(&domain, order[1]);
            assert_nothing_left(order[1]);
            order.reverse();
            disks.reverse();
        }
        domain.destroy(order[0]).unwrap();
        disks[0].image().check().unwrap();
    }
}

/// The destination's engine is killed, and then the source's daemon ends meanwhile.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn a_copy_that_is_given_up_leaves_nothing_and_the_daemon_may_be_restarted() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let order = test.hosts();
    let [source, destination] = order;
    let disks = [DiskFormat::Qcow2; 2].map(|format| blank_disk(&test.env, format));
    let from = full_disk(&test.env, DiskFormat::Qcow2);
    let domain = boot(&test, &from);
    let copying = Breakpoint::after(DiskBytes).nth(40);
    let held = plan("hybrid", &disks[0])
        .migrate_args(&["--retry-for", "0"])
        .hold_at(copying);
    let mut moving = DomainMove::start(&test.env, &domain, order, &held);
    moving.wait_held();
    moving.receive.kill();
    moving.relay().cut();
    let exits = moving.wait();
    exits.assert_source(1, &["still runs at the source"]);
    assert_nothing_left(source);
    assert_not_served(destination);
    assert_healthy(&domain, source);
    eventually("the domain to be gone", || {
        match destination.state("guest").unwrap().as_str() {
            "absent" => Ok(()),
            state => Err(state.to_owned()),
        }
    });

    let held = plan("hybrid", &disks[1]).hold_at(copying);
    let moving = DomainMove::start(&test.env, &domain, order, &held);
    moving.wait_held();
    source.kill_daemon().unwrap();
    source.start_daemon().unwrap();
    moving.relay().release();
    moving.complete();
    assert_nothing_left(destination);
    assert_healthy(&domain, destination);
    domain.destroy(destination).unwrap();
    disks[1].image().check().unwrap();
}

/// The source's engine is killed while the disk is copied, in the second round with its guard: the
/// guest runs on with its own disk. The guard ends the copy, or the next move does.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn a_killed_source_leaves_no_copy() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let order = test.hosts();
    let [source, destination] = order;
    let from = full_disk(&test.env, DiskFormat::Qcow2);
    let domain = boot(&test, &from);
    for with_guard in [false, true] {
        let to = blank_disk(&test.env, DiskFormat::Qcow2);
        let held = plan("hybrid", &to).hold_at(Breakpoint::after(DiskBytes).nth(40));
        let mut moving = DomainMove::start(&test.env, &domain, order, &held);
        moving.wait_held();
        assert!(is_copying(source));
        assert_eq!(destination.pids_of(STORAGE_DAEMON).unwrap().len(), 1);
        if with_guard {
            source.shell(KILL_GUARD).unwrap();
        }
        moving.migrate.kill();
        moving.relay().cut();
        moving
            .receive
            .wait()
            .assert(1, &["nothing is left of its domain here"]);
        assert_not_served(destination);
        assert_eq!(destination.state("guest").unwrap(), "absent");
        if !with_guard {
            eventually("the guard to end the copy", || match is_copying(source) {
                false => Ok(()),
                true => Err(format!("{:?}", source.state("guest"))),
            });
        }
        // The guard pauses it for the moment in which it ends the copy.
        eventually("the domain to run", || {
            match source.state("guest").unwrap() {
                state if state == "running" => Ok(()),
                state => Err(state),
            }
        });
        if !with_guard {
            assert_nothing_left(source);
        }
        let job = source.virsh(&["blockjob", "guest", "vda"]).unwrap();
        assert_eq!(job, "", "libvirt knows of a job");
        assert_healthy(&domain, source);
    }
    // libvirt can do with the domain what it wants.
    source.virsh(&["suspend", "guest"]).unwrap();
    source.virsh(&["resume", "guest"]).unwrap();
    // An engine moves it also if only its guard is killed.
    let to = blank_disk(&test.env, DiskFormat::Qcow2);
    let held = plan("hybrid", &to).hold_at(Breakpoint::after(DiskBytes).nth(40));
    let moving = DomainMove::start(&test.env, &domain, order, &held);
    moving.wait_held();
    source.shell(KILL_GUARD).unwrap();
    moving.relay().release();
    moving.complete();
    assert_nothing_left(destination);
    assert_healthy(&domain, destination);
    domain.destroy(destination).unwrap();
    to.image().check().unwrap();
}

/// The image on the host that it moves to must be another one, of the same size.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn a_disk_that_cannot_be_copied_to_is_refused() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let order = test.hosts();
    let from = full_disk(&test.env, DiskFormat::Qcow2);
    let domain = boot(&test, &from);
    let refused = |to: &Disk, reason: &str| {
        let exits = DomainMove::start(&test.env, &domain, order, &plan("hybrid", to)).refused();
        exits.assert_source(1, &[reason, "still runs at the source"]);
        assert_nothing_left(order[0]);
        assert_not_served(order[1]);
        assert_healthy(&domain, order[0]);
    };
    refused(&from, "has the same image at both sides");
    let other_size = blank_disk_of(&test.env, None, DiskFormat::Qcow2, 25);
    refused(
        &other_size,
        "give the destination an image of the same size",
    );
}
