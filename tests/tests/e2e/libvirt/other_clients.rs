//! What other clients of libvirt do to a domain while it is moved away from there.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost, LibvirtHosts};
use hikkoshi_tests::MessageKind::{Pages, Ready};
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, TestEnv, eventually};
use std::path::Path;
use std::process::Command;

/// The block node by which QEMU refuses to migrate the guest: it is named in the message.
const LOCK: &str = "moved-by-hikkoshi";

/// The guest's memory is a file that the engine has open, too.
const SHARED: &str = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";

/// A device that is plugged while the domain is moved.
const CARD: &str =
    "<interface type='bridge'><source bridge='br0'/><model type='virtio'/></interface>";

/// A domain without a disk: on one machine, the lock of a disk's image would prevent the same.
fn domain<'h>(hosts: &'h LibvirtHosts, elements: &str) -> Domain<'h> {
    let workload = Workload::verify(32).option("every_ms", 200);
    let config = DomainConfig::new("guest", workload);
    let config = config.elements(elements).persistent();
    Domain::boot(hosts, config).unwrap()
}

/// Starts a move, which is held in the middle of the pages.
fn held<'h>(env: &TestEnv, domain: &Domain<'h>, mode: &'static str) -> DomainMove<'h> {
    held_at(env, domain, mode, Breakpoint::after(Pages).nth(300))
}

fn held_at<'h>(
    env: &TestEnv,
    domain: &Domain<'h>,
    mode: &'static str,
    at: Breakpoint,
) -> DomainMove<'h> {
    let hosts = domain.hosts();
    let plan = DomainPlan::new(mode).hold_at(at);
    let moving = DomainMove::start(env, domain, [&hosts.source, &hosts.destination], &plan);
    moving.wait_held();
    moving
}

/// Images in the folder of each host: what one of them writes does not reach the other.
const IMAGES: [&str; 2] = ["first.qcow2", "second.qcow2"];

/// Creates them, the same on all hosts. They have persistent bitmaps: QEMU writes to such an image
/// when it closes it, if the image is active.
fn create_images(hosts: [&LibvirtHost; 2]) {
    let qemu_img = concat!(env!("CARGO_MANIFEST_DIR"), "/../build/qemu-img/run");
    let run = |words: &[&str], image: &Path, more: &str| {
        let mut command = Command::new(qemu_img);
        let status = command.args(words).arg(image).arg(more).status();
        assert!(status.unwrap().success(), "{command:?}");
    };
    for name in IMAGES {
        let [image, copy] = hosts.map(|host| host.folder().join(name));
        run(&["create", "-q", "-f", "qcow2"], &image, "16M");
        run(&["bitmap", "--add"], &image, "kept");
        std::fs::copy(image, copy).unwrap();
    }
}

/// Disks with these images.
fn disks() -> String {
    let disk = |(name, target)| {
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>\
             <source file='{}/{name}'/><target dev='{target}' bus='virtio'/></disk>",
            LibvirtHost::FOLDER
        )
    };
    IMAGES.into_iter().zip(["vda", "vdb"]).map(disk).collect()
}

/// Asserts that `virsh` fails, with this part of a message.
fn assert_refused(host: &LibvirtHost, words: &[&str], part: &str) {
    let error = host.virsh(words).unwrap_err().to_string();
    assert!(error.contains(part), "{words:?}: no {part:?} in {error}");
}

/// Asserts that nothing lets QEMU migrate the guest to a file, or to another host.
fn assert_not_migrated([from, to]: [&LibvirtHost; 2]) {
    assert_refused(from, &["save", "guest", "/srv/host/saved"], LOCK);
    assert_refused(from, &["managedsave", "guest"], LOCK);
    let address = format!("tcp://{}", to.address());
    let migrate = [
        "migrate",
        "--live",
        "--unsafe",
        "guest",
        &to.uri(),
        &address,
    ];
    assert_refused(from, &migrate, LOCK);
    assert_no_snapshot(from);
}

/// Asserts that nothing lets QEMU save the guest with a snapshot. libvirt 12.9 first wants QEMU to
/// take the images of a paused domain back, as to resume it.
fn assert_no_snapshot(host: &LibvirtHost) {
    let words = [
        "snapshot-create-as",
        "guest",
        "--memspec",
        "/srv/host/memory",
    ];
    let error = host.virsh(&words).unwrap_err().to_string();
    let reasons = [LOCK, "'blockdev-set-active'"];
    assert!(
        reasons.iter().any(|reason| error.contains(reason)),
        "{error}"
    );
}

#[test]
#[ignore = "long: make test-libvirt"]
fn the_domain_is_not_saved_in_precopy() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let (source, destination) = (&hosts.source, &hosts.destination);
    let domain = domain(&hosts, "");
    let moving = held(&env, &domain, "precopy");
    assert_not_migrated([source, destination]);
    moving.relay().release();
    moving.complete();
    assert_healthy(&domain, destination);
}

/// A move that failed leaves nothing that is in libvirt's way.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_stays_can_be_saved() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let source = &hosts.source;
    let domain = domain(&hosts, "");
    // The engine is killed before and after the pause; its guard restores the domain.
    for at in [Breakpoint::after(Pages).nth(300), Breakpoint::before(Ready)] {
        let mut moving = held_at(&env, &domain, "precopy", at);
        moving.migrate.kill();
        moving.relay().cut();
        moving.receive.wait();
        eventually("the domain to run", || match source.state("guest") {
            Ok(state) if state == "running" => Ok(()),
            other => Err(format!("{other:?}")),
        });
        drop(moving);
        eventually("the domain to be saved", || {
            source
                .virsh(&["save", "guest", "/srv/host/saved"])
                .map(drop)
                .map_err(|error| error.to_string())
        });
        source.virsh(&["restore", "/srv/host/saved"]).unwrap();
        assert_healthy(&domain, source);
    }
}

#[test]
#[ignore = "long: make test-libvirt"]
fn the_domain_is_neither_resumed_nor_saved_in_postcopy() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let (source, destination) = (&hosts.source, &hosts.destination);
    let domain = domain(&hosts, "");
    std::fs::write(source.folder().join("card.xml"), CARD).unwrap();
    let moving = held(&env, &domain, "postcopy");
    let assert_nothing_works = || {
        assert_refused(source, &["resume", "guest"], "'cont'");
        assert_not_migrated([source, destination]);
        assert_eq!(source.state("guest").unwrap(), "paused");
    };
    assert_nothing_works();
    // QEMU refuses it, whatever daemon it has.
    source.kill_daemon().unwrap();
    source.start_daemon().unwrap();
    assert_nothing_works();
    let plug = ["attach-device", "guest", "/srv/host/card.xml", "--live"];
    source.virsh(&plug).unwrap();
    moving
        .migrate
        .wait_stderr("a device was plugged or unplugged at the source");
    moving.relay().release();
    moving.complete();
    assert_eq!(source.state("guest").unwrap(), "shut off");
    assert_healthy(&domain, destination);
}

/// QEMU takes the images back before it refuses to run the guest, and the destination uses them.
/// What it does to them at that moment is done. It does nothing more when it ends.
#[test]
#[ignore = "long: make test-libvirt"]
fn images_that_a_refused_resume_has_taken_back_are_not_written_at_the_end() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let (source, destination) = (&hosts.source, &hosts.destination);
    create_images([source, destination]);
    let workload = Workload::verify(32).option("every_ms", 200);
    let config = DomainConfig::new("guest", workload).devices(&disks());
    let domain = Domain::boot(&hosts, config.persistent()).unwrap();
    let images = || IMAGES.map(|name| std::fs::read(source.folder().join(name)).unwrap());
    // Each host's copy, which hikkoshi cannot tell from another disk.
    let plan = DomainPlan::new("postcopy")
        .migrate_args(&["--shared-disks"])
        .hold_at(Breakpoint::after(Pages).nth(300));
    let moving = DomainMove::start(&env, &domain, [source, destination], &plan);
    moving.wait_held();
    let released = images();
    assert_refused(source, &["resume", "guest"], "'cont'");
    assert_no_snapshot(source);
    let taken_back = images();
    for (before, after) in released.iter().zip(&taken_back) {
        assert!(before != after, "QEMU marks the bitmap as one in use");
    }
    moving.relay().release();
    moving.complete();
    let reason = source.virsh(&["domstate", "guest", "--reason"]).unwrap();
    assert_eq!(reason, "shut off (destroyed)");
    assert!(
        images() == taken_back,
        "QEMU has written to an image when it ended"
    );
    assert_healthy(&domain, destination);
}

/// QEMU has not released its images yet, and does not refuse to run it.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_its_owner_had_paused_is_paused_again() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let source = &hosts.source;
    let domain = domain(&hosts, "");
    source.virsh(&["suspend", "guest"]).unwrap();
    let mut moving = held(&env, &domain, "postcopy");
    source.virsh(&["resume", "guest"]).unwrap();
    let exit = moving.migrate.wait();
    let resumed = "the domain guest was resumed at the source after its guest was handed over";
    exit.assert(3, &[resumed, "It is paused again"]);
    assert_eq!(source.state("guest").unwrap(), "paused");
}

/// The engine is killed, and the next one finds out what was done meanwhile.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_reset_while_no_engine_runs_is_reported_by_the_next() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let source = &hosts.source;
    let domain = domain(&hosts, "");
    let plan = DomainPlan::new("postcopy").hold_at(Breakpoint::after(Pages).nth(300));
    let plan = plan.receive_args(&["--retry-for", "600"]);
    let order = [source, &hosts.destination];
    let mut moving = DomainMove::start(&env, &domain, order, &plan);
    moving.wait_held();
    moving.migrate.kill();
    moving.relay().cut();
    source.virsh(&["reset", "guest"]).unwrap();
    moving.resume_migrate();
    let exit = moving.migrate.wait();
    exit.assert(
        3,
        &[
            "the guest was reset at the source after it was, or may have been, handed over",
            "no more of its pages are sent",
        ],
    );
    assert_refused(source, &["resume", "guest"], "'cont'");
    // As they are.
    moving.resume_migrate();
    moving.complete();
}

/// What an operator can still do by force: QEMU's lock is removed first.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_is_resumed_in_postcopy_is_paused_again() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let source = &hosts.source;
    let domain = domain(&hosts, "");
    let mut moving = held(&env, &domain, "postcopy");
    let unlock = format!(r#"{{"execute":"blockdev-del","arguments":{{"node-name":"{LOCK}"}}}}"#);
    source
        .virsh(&["qemu-monitor-command", "guest", &unlock])
        .unwrap();
    source.virsh(&["resume", "guest"]).unwrap();
    let exit = moving.migrate.wait();
    exit.assert(
        3,
        &[
            "the domain guest was resumed at the source after its guest was handed over",
            "It is paused again",
            "no more of its pages are sent",
            "may be wrong",
        ],
    );
    assert_eq!(source.state("guest").unwrap(), "paused");
}

#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_is_reset_in_postcopy_sends_no_more_pages() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let source = &hosts.source;
    let domain = domain(&hosts, "");
    let mut moving = held(&env, &domain, "postcopy");
    source.virsh(&["reset", "guest"]).unwrap();
    let exit = moving.migrate.wait();
    let reset = "the domain guest was reset at the source after its guest was handed over";
    exit.assert(3, &[reset, "no more of its pages are sent"]);
    assert_refused(source, &["resume", "guest"], "'cont'");
}

/// Its private memory ends with its QEMU. Both sides report that, and why.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_is_destroyed_in_postcopy_is_lost() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let domain = domain(&hosts, "");
    let moving = held(&env, &domain, "postcopy");
    hosts.source.virsh(&["destroy", "guest"]).unwrap();
    moving.relay().release();
    let exits = moving.wait();
    let why = "a client of libvirt has destroyed the domain, as 'virsh destroy' does";
    exits.assert_source(
        4,
        &[why, "its private memory (RAM block", "the guest is lost"],
    );
    exits.assert_destination(4, &[why, "its private memory (RAM block"]);
}

/// The engine has the memory's file, which outlives QEMU.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_with_shared_memory_that_is_destroyed_in_postcopy_is_moved() {
    let Some(LibvirtTest { env, hosts }) = LibvirtTest::start() else {
        return;
    };
    let domain = domain(&hosts, SHARED);
    let moving = held(&env, &domain, "postcopy");
    hosts.source.virsh(&["destroy", "guest"]).unwrap();
    moving.relay().release();
    moving.complete();
    assert_healthy(&domain, &hosts.destination);
}
