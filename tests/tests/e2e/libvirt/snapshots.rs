//! Domains with snapshots, which their destination's libvirt knows afterwards.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{How, LibvirtTest, assert_healthy, file_system};
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_lab::{GuestReport, Workload};
use hikkoshi_tests::MessageKind::Pages;
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, LONG, hikkoshi};

fn boot(test: &LibvirtTest) -> Domain<'_> {
    let workload = Workload::verify(16).option("every_ms", 200);
    let config = DomainConfig::new("guest", workload).file_system(file_system(&test.env));
    Domain::boot(&test.hosts, config.persistent()).unwrap()
}

/// The snapshots that a host's libvirt knows, and which of them the domain is based on.
fn snapshots(host: &LibvirtHost) -> (String, String) {
    let tree = host.virsh(&["snapshot-list", "guest", "--tree"]).unwrap();
    let current = host.virsh(&["snapshot-current", "guest", "--name"]);
    (tree, current.unwrap_or_default())
}

/// They are in the image of the disk, with the guest's memory.
#[test]
#[ignore = "long: make test-libvirt"]
fn internal_snapshots_can_be_used_at_the_destination() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = boot(&test);
    for name in ["first", "second"] {
        source
            .virsh(&["snapshot-create-as", "guest", name])
            .unwrap();
    }
    let before = snapshots(source);
    assert!(
        before.0.contains("first") && before.1 == "second",
        "{before:?}"
    );
    let options = ["--persistent", "--undefine-source"];
    let plan = DomainPlan::new("hybrid").migrate_args(&options);
    DomainMove::start(&test.env, &domain, [source, destination], &plan).complete();
    assert_eq!(source.state("guest").unwrap(), "absent");
    assert_eq!(snapshots(destination), before);
    assert_healthy(&domain, destination);

    let first = domain.console().len();
    destination
        .virsh(&["snapshot-revert", "guest", "first"])
        .unwrap();
    let works = |report: &GuestReport| matches!(report, GuestReport::Verify(_)).then_some(());
    domain
        .wait_report(destination, "it as it was", first, LONG, works)
        .unwrap();
    assert_healthy(&domain, destination);
    assert_eq!(snapshots(destination).1, "first");
    // Back, where libvirt knows none of it any more.
    How::Hikkoshi("precopy", &["--persistent"]).moves(&test.env, &domain, [destination, source]);
    assert_eq!(snapshots(source), (before.0, "first".to_owned()));
    assert_healthy(&domain, source);
    for name in ["second", "first"] {
        source.virsh(&["snapshot-delete", "guest", name]).unwrap();
    }
}

/// Backups continue from them. They do not move, and libvirt would forget them with the domain's
/// configuration.
#[test]
#[ignore = "long: make test-libvirt"]
fn checkpoints_are_not_lost_with_the_configuration() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = boot(&test);
    source
        .virsh(&["checkpoint-create-as", "guest", "monday"])
        .unwrap();
    let refused = [
        "migrate",
        "--domain",
        "guest",
        "--undefine-source",
        "unix:/nowhere",
    ];
    let output = source.command(hikkoshi()).args(refused).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let part = "the domain guest has checkpoints (1), which do not move";
    assert!(said.contains(part), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_healthy(&domain, source);
    let plan = DomainPlan::new("hybrid").migrate_args(&["--persistent"]);
    DomainMove::start(&test.env, &domain, [source, destination], &plan).complete();
    assert_healthy(&domain, destination);
    let list = source
        .virsh(&["checkpoint-list", "guest", "--name"])
        .unwrap();
    assert_eq!(list.trim(), "monday");
}

/// The disk has an image on another one.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_with_a_backing_chain_and_an_external_snapshot_is_moved() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = boot(&test);
    let overlay = test.env.folder().join("overlay.qcow2");
    let spec = format!("vda,file={}", overlay.display());
    let take = ["snapshot-create-as", "guest", "before", "--disk-only"];
    source
        .virsh(&[&take[..], &["--diskspec", &spec]].concat())
        .unwrap();
    assert_healthy(&domain, source);
    let before = snapshots(source);
    assert_eq!(before.1, "before");
    for (mode, order) in [
        ("hybrid", [source, destination]),
        ("postcopy", [destination, source]),
    ] {
        How::Hikkoshi(mode, &["--persistent"]).moves(&test.env, &domain, order);
        assert_eq!(snapshots(order[1]), before, "{mode}");
        let disks = order[1].virsh(&["domblklist", "guest"]).unwrap();
        assert!(disks.contains("overlay.qcow2"), "{disks}");
        let xml = order[1].virsh(&["dumpxml", "guest"]).unwrap();
        assert!(xml.contains("<backingStore type='file'"), "{xml}");
        assert_healthy(&domain, order[1]);
    }
    // Its images become one again.
    source
        .virsh(&[
            "blockcommit",
            "guest",
            "vda",
            "--active",
            "--pivot",
            "--wait",
        ])
        .unwrap();
    assert_healthy(&domain, source);
}

/// It is in the images then, and the destination would not know of it.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_snapshot_that_is_deleted_meanwhile_ends_the_move() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = boot(&test);
    source
        .virsh(&["snapshot-create-as", "guest", "first"])
        .unwrap();
    let plan = DomainPlan::new("precopy").hold_at(Breakpoint::after(Pages).nth(100));
    let moving = DomainMove::start(&test.env, &domain, [source, destination], &plan);
    moving.wait_held();
    let delete = ["snapshot-delete", "guest", "first", "--metadata"];
    source.virsh(&delete).unwrap();
    moving.relay().release();
    let exits = moving.refused();
    let reasons = [
        "a snapshot was taken or deleted",
        "still runs at the source",
    ];
    exits.assert_source(1, &reasons);
    assert_healthy(&domain, source);
}

/// They name the images of its disks as they are at the source.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn snapshots_of_another_disk_are_refused() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = boot(&test);
    source
        .virsh(&["snapshot-create-as", "guest", "first"])
        .unwrap();
    let plan = DomainPlan::new("precopy").receive_args(&["--set", "disk=vda,path=/other.qcow2"]);
    let exits = DomainMove::start(&test.env, &domain, [source, destination], &plan).refused();
    exits.assert_source(1, &["the domain has snapshots", "still runs at the source"]);
    assert_healthy(&domain, source);
}
