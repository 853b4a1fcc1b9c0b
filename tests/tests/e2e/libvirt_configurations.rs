//! Domains in other states, or with other configurations, that move between two libvirt daemons.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::libvirt::built_with_libvirt;
use super::libvirt_domains::{How, Served, assert_healthy};
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost, LibvirtHosts};
use hikkoshi_lab::{Firmware, Workload};
use hikkoshi_tests::{DomainMove, DomainPlan, TestEnv};
use std::path::Path;

fn config(name: &str) -> DomainConfig {
    DomainConfig::new(name, Workload::verify(16).option("every_ms", 200))
}

/// Moves a domain by hybrid. Afterwards it runs at the destination only.
fn move_to(env: &TestEnv, domain: &Domain<'_>, order: [&LibvirtHost; 2]) {
    How::Hikkoshi("hybrid", &[]).moves(env, domain, order);
    assert_healthy(domain, order[1]);
}

/// Its owner has paused the domain: `virsh suspend`.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn a_paused_domain_stays_paused() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let mut served = Served::boot(&hosts, &env);
    for mode in ["hybrid", "precopy", "postcopy"] {
        let [here, there] = served.hosts();
        here.virsh(&["suspend", "guest"]).unwrap();
        let report = served.start_move(&DomainPlan::new(mode)).complete();
        assert!(
            report.downtime_ms == 0.0,
            "its owner paused it, not hikkoshi"
        );
        assert_eq!(here.state("guest").unwrap(), "absent", "{mode}");
        assert_eq!(there.state("guest").unwrap(), "paused", "{mode}");
        there.virsh(&["resume", "guest"]).unwrap();
        served.assert_arrived();
    }
    served.end();
}

/// Two domains share both hosts. One is persistent, and returns to the host where it is still
/// defined.
#[test]
#[ignore = "long: make test-libvirt"]
fn two_domains_are_moved_and_one_of_them_back() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let (source, destination) = (&hosts.source, &hosts.destination);
    let first = Domain::boot(&hosts, config("first").persistent()).unwrap();
    let second = Domain::boot(&hosts, config("second")).unwrap();
    move_to(&env, &first, [source, destination]);
    move_to(&env, &second, [source, destination]);
    assert_eq!(source.state("first").unwrap(), "shut off", "still defined");
    move_to(&env, &first, [destination, source]);
    let persistent = source.virsh(&["list", "--all", "--persistent", "--name"]);
    assert_eq!(persistent.unwrap(), "first");
    move_to(&env, &first, [source, destination]);
    assert_healthy(&second, destination);
    let running = destination.virsh(&["list", "--name"]).unwrap();
    let mut running: Vec<_> = running.lines().collect();
    running.sort_unstable();
    assert_eq!(running, ["first", "second"]);
}

/// `receive --xml FILE`.
#[test]
#[ignore = "libvirt itself compares the descriptions: make test-libvirt"]
fn another_description_may_change_what_is_specific_to_the_host() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let mut served = Served::boot(&hosts, &env);
    let [here, there] = served.hosts();
    let words = ["dumpxml", "guest", "--migratable", "--security-info"];
    let xml = here.virsh(&words).unwrap();
    let (file, image) = (env.folder().join("here.xml"), image_of(here));
    let with_file = || {
        let file = file.to_str().unwrap();
        DomainPlan::new("precopy").receive_args(&["--xml", file])
    };
    let write = |from: &str, to: &str| {
        assert!(xml.contains(from), "no {from} in {xml}");
        std::fs::write(&file, xml.replace(from, to)).unwrap();
    };

    // What the guest would notice.
    for (from, to, reason) in [
        (
            "<model type='virtio'/>",
            "<model type='e1000e'/>",
            "network card model",
        ),
        ("52:54:00:12:34:56", "52:54:00:12:34:99", "network card mac"),
        (
            "bus='virtio'/>",
            "bus='virtio' removable='on'/>",
            "removable",
        ),
        (">1</vcpu>", ">2</vcpu>", "vCPU"),
    ] {
        write(from, to);
        let exits = served.start_move(&with_file()).refused();
        exits.assert_source(1, &[reason, "the guest still runs at the source"]);
        served.assert_here();
    }
    write("<name>guest</name>", "<name>other</name>");
    let exits = served.start_move(&with_file()).refused();
    exits.assert_source(1, &["has the name other", "still runs at the source"]);
    served.assert_here();

    // The same image by another path, and a title.
    let other = env.folder().join("other.qcow2");
    std::os::unix::fs::symlink(Path::new(&image), &other).unwrap();
    write(&image, other.to_str().unwrap());
    let titled = std::fs::read_to_string(&file).unwrap();
    let titled = titled.replace(
        "<name>guest</name>",
        "<name>guest</name><title>moved</title>",
    );
    std::fs::write(&file, titled).unwrap();
    served.start_move(&with_file()).complete();
    assert_eq!(image_of(there), other.to_str().unwrap());
    assert_eq!(there.virsh(&["desc", "guest", "--title"]).unwrap(), "moved");
    served.assert_arrived();
    served.end();
}

/// The image of the domain's disk.
fn image_of(host: &LibvirtHost) -> String {
    let disks = host.virsh(&["domblklist", "guest"]).unwrap();
    disks.split_whitespace().last().unwrap().to_owned()
}

/// The variables of the firmware are in a file that libvirt makes on each host.
#[test]
#[ignore = "boots slowly: make test-libvirt"]
fn a_domain_with_uefi_firmware_keeps_its_variables() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let (source, destination) = (&hosts.source, &hosts.destination);
    let config = config("guest").memory_mib(256).firmware(Firmware::Ovmf);
    let domain = Domain::boot(&hosts, config).unwrap();
    let variables = |host: &LibvirtHost| {
        host.shell("sha256sum </var/lib/libvirt/qemu/nvram/guest_VARS.fd")
            .unwrap()
    };
    let xml = source.virsh(&["dumpxml", "guest"]).unwrap();
    let (_, template) = xml.split_once("<nvram template='").unwrap();
    let (template, _) = template.split_once('\'').unwrap();
    let template = source.shell(&format!("sha256sum <{template}")).unwrap();
    let before = variables(source);
    assert_ne!(before, template, "the firmware has stored variables");
    move_to(&env, &domain, [source, destination]);
    assert_eq!(variables(destination), before);
    domain.destroy(destination).unwrap();
    assert_eq!(
        variables(destination),
        before,
        "written when QEMU has ended"
    );
}

/// A domain that was saved does not run, and one whose saved state waits at the destination must
/// not run there: its next start would restore that state, on disks that are newer.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn a_saved_state_is_in_the_way() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let (source, destination) = (&hosts.source, &hosts.destination);
    let domain = Domain::boot(&hosts, config("guest").persistent()).unwrap();
    source.virsh(&["managedsave", "guest"]).unwrap();
    let plan = DomainPlan::new("precopy");
    let mut moving = DomainMove::start(&env, &domain, [source, destination], &plan);
    let exit = moving.migrate.wait();
    exit.assert(1, &["does not run: there is nothing to move"]);
    drop(moving);

    // Somebody starts it at the other host, and moves it back to where it was saved.
    let xml = source.virsh(&["dumpxml", "guest", "--inactive"]).unwrap();
    std::fs::write(destination.folder().join("again.xml"), xml).unwrap();
    let path = format!("{}/again.xml", LibvirtHost::FOLDER);
    destination.virsh(&["create", &path]).unwrap();
    assert_healthy(&domain, destination);
    let back = [destination, source];
    let exits = DomainMove::start(&env, &domain, back, &plan).refused();
    let reason = ["managed save image", "virsh managedsave-remove guest"];
    exits.assert_source(1, &[&reason[..], &["still runs at the source"]].concat());
    assert_eq!(source.state("guest").unwrap(), "shut off");
    assert_healthy(&domain, destination);
    source.virsh(&["managedsave-remove", "guest"]).unwrap();
    move_to(&env, &domain, back);
}
