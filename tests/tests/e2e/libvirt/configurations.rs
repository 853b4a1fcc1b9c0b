//! Domains in other states, or with other configurations, that move between two libvirt daemons.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{How, LibvirtTest, assert_healthy};
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
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
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    for mode in ["hybrid", "precopy", "postcopy"] {
        let [here, there] = served.hosts();
        here.virsh(&["suspend", "guest"]).unwrap();
        let report = served.start_move(&DomainPlan::new(mode)).complete();
        assert!(
            report.downtime_ms == Some(0.0),
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
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let first = Domain::boot(&test.hosts, config("first").persistent()).unwrap();
    let second = Domain::boot(&test.hosts, config("second")).unwrap();
    move_to(&test.env, &first, [source, destination]);
    move_to(&test.env, &second, [source, destination]);
    assert_eq!(source.state("first").unwrap(), "shut off", "still defined");
    move_to(&test.env, &first, [destination, source]);
    let persistent = source.virsh(&["list", "--all", "--persistent", "--name"]);
    assert_eq!(persistent.unwrap(), "first");
    move_to(&test.env, &first, [source, destination]);
    assert_healthy(&second, destination);
    assert_running(destination, &["first", "second"]);
}

/// Domains of two hosts move to the same destination, one after the other.
#[test]
#[ignore = "long: make test-libvirt"]
fn two_sources_have_one_destination() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let third = test.hosts.third(test.env.lab()).unwrap();
    let destination = &test.hosts.destination;
    let first = Domain::boot(&test.hosts, config("first")).unwrap();
    let second = Domain::boot_on(&third, &test.hosts, config("second")).unwrap();
    move_to(&test.env, &first, [&test.hosts.source, destination]);
    move_to(&test.env, &second, [&third, destination]);
    assert_healthy(&first, destination);
    assert_running(destination, &["first", "second"]);
    // On the way back they do not mix either.
    move_to(&test.env, &second, [destination, &third]);
    assert_healthy(&first, destination);
    assert_running(destination, &["first"]);
    assert_running(&third, &["second"]);
}

/// Checks which domains run on the host.
fn assert_running(host: &LibvirtHost, expected: &[&str]) {
    let running = host.virsh(&["list", "--name"]).unwrap();
    let mut running: Vec<_> = running.lines().collect();
    running.sort_unstable();
    assert_eq!(running, expected);
}

/// `receive --xml FILE`.
#[test]
#[ignore = "libvirt itself compares the descriptions: make test-libvirt"]
fn another_description_may_change_what_is_specific_to_the_host() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [here, there] = served.hosts();
    let words = ["dumpxml", "guest", "--migratable", "--security-info"];
    let xml = here.virsh(&words).unwrap();
    let (file, image) = (test.env.folder().join("here.xml"), image_of(here));
    let with_file = || {
        let file = file.to_str().unwrap();
        DomainPlan::new("precopy").receive_args(&["--xml", file])
    };
    let write = |from: &str, to: &str| {
        assert!(xml.contains(from), "no {from} in {xml}");
        std::fs::write(&file, xml.replace(from, to)).unwrap();
    };

    // What the guest would notice. libvirt compares: an XML that is not valid is another error.
    let disk = "<target dev='vda' bus='virtio'/>";
    let (_, after_disk) = xml.split_once(disk).unwrap();
    let (address, _) = after_disk.trim_start().split_once('\n').unwrap();
    assert!(address.starts_with("<address type='pci'"), "{xml}");
    let at_disk = format!("{disk}\n      {address}");
    for (from, to, reason) in [
        (
            "<model type='virtio'/>",
            "<model type='e1000e'/>",
            "network card model e1000e does not match source virtio",
        ),
        (
            "52:54:00:12:34:56",
            "52:54:00:12:34:99",
            "network card mac 52:54:00:12:34:99 does not match source 52:54:00:12:34:56",
        ),
        (
            &at_disk,
            "<target dev='vda' bus='sata'/>",
            "disk bus sata does not match source virtio",
        ),
        (
            &at_disk,
            &at_disk.replace(" bus='0x0", " bus='0x1"),
            "does not match source",
        ),
        (
            disk,
            &format!("{disk}<serial>another</serial>"),
            "disk serial another does not match source",
        ),
        (
            ">1</vcpu>",
            ">2</vcpu>",
            "vCPU max 2 does not match source 1",
        ),
    ] {
        write(from, to);
        let exits = served.start_move(&with_file()).refused();
        exits.assert_source(1, &[reason, "the guest still runs at the source"]);
        served.assert_here();
    }
    write("<name>guest</name>", "<name>other</name>");
    let exits = served.start_move(&with_file()).refused();
    exits.assert_source(1, &["has the name \"other\"", "still runs at the source"]);
    served.assert_here();

    // The same image by another path, and a title.
    let other = test.env.folder().join("other.qcow2");
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
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let config = config("guest").memory_mib(256).firmware(Firmware::Ovmf);
    let domain = Domain::boot(&test.hosts, config).unwrap();
    let variables = |host: &LibvirtHost| {
        host.shell("sha256sum </var/lib/libvirt/qemu/nvram/guest_VARS.fd")
            .unwrap()
    };
    let xml = source.virsh(&["dumpxml", "guest"]).unwrap();
    let (_, template) = xml.split_once("<nvram template='").unwrap();
    let (path, _) = template.split_once('\'').unwrap();
    let template = source.shell(&format!("sha256sum <{path}")).unwrap();
    let before = variables(source);
    assert_ne!(before, template, "the firmware has stored variables");
    move_to(&test.env, &domain, [source, destination]);
    assert_eq!(variables(destination), before);
    // Back, where libvirt finds an older file, and does not make one.
    let older = format!("cat <{path} >/var/lib/libvirt/qemu/nvram/guest_VARS.fd");
    source.shell(&older).unwrap();
    assert_ne!(variables(source), before);
    How::Hikkoshi("postcopy", &[]).moves(&test.env, &domain, [destination, source]);
    assert_healthy(&domain, source);
    assert_eq!(variables(source), before);
    domain.destroy(source).unwrap();
    assert_eq!(variables(source), before, "written when QEMU has ended");
}

/// A domain that was saved does not run, and one whose saved state waits at the destination must
/// not run there: its next start would restore that state, on disks that are newer.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn a_saved_state_is_in_the_way() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = Domain::boot(&test.hosts, config("guest").persistent()).unwrap();
    source.virsh(&["managedsave", "guest"]).unwrap();
    let plan = DomainPlan::new("precopy");
    let mut moving = DomainMove::start(&test.env, &domain, [source, destination], &plan);
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
    let exits = DomainMove::start(&test.env, &domain, back, &plan).refused();
    let reason = ["managed save image", "virsh managedsave-remove guest"];
    exits.assert_source(1, &[&reason[..], &["still runs at the source"]].concat());
    assert_eq!(source.state("guest").unwrap(), "shut off");
    assert_healthy(&domain, destination);
    source.virsh(&["managedsave-remove", "guest"]).unwrap();
    move_to(&test.env, &domain, back);
}

/// Where libvirt keeps configurations.
const CONFIGURATIONS: &str = "/etc/libvirt/qemu";

/// Moves a domain to a host where libvirt cannot write its configuration, because of the command
/// `before`: the guest runs there, both sides are told what to do, and the source's configuration
/// stays. What they are told works after the command `then`. `is_dropped`: libvirt itself has
/// failed, and does not list the domain.
fn is_moved_but_not_persistent(before: &str, reason: &str, then: &str, is_dropped: bool) {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = Domain::boot(&test.hosts, config("guest").persistent()).unwrap();
    let prepare = format!("mkdir -p {CONFIGURATIONS}; cd {CONFIGURATIONS}; {before}");
    destination.shell(&prepare).unwrap();
    let options = ["--persistent", "--autostart", "--undefine-source"];
    let plan = DomainPlan::new("hybrid").migrate_args(&options);
    let moving = DomainMove::start(&test.env, &domain, [source, destination], &plan);
    let left = moving.wait_moved_but();
    let not_made = "the domain guest was not made persistent: ";
    assert!(
        left.starts_with(not_made) && left.contains(reason),
        "{left}"
    );
    assert_healthy(&domain, destination);
    let advice = "restart libvirt's daemon";
    assert_eq!(left.contains(advice), is_dropped, "{left}");
    let (state, persistent) = (
        if is_dropped { "absent" } else { "running" },
        ["list", "--all", "--persistent", "--name"],
    );
    assert_eq!(destination.state("guest").unwrap(), state);
    assert_eq!(destination.virsh(&persistent).unwrap(), "");
    assert_eq!(source.virsh(&persistent).unwrap(), "guest", "it stays");

    // What the message says.
    destination.shell(then).unwrap();
    if is_dropped {
        destination.kill_daemon().unwrap();
        destination.start_daemon().unwrap();
    }
    assert_eq!(destination.state("guest").unwrap(), "running");
    let commands: Vec<_> = left
        .split('\'')
        .filter(|part| part.starts_with("virsh "))
        .collect();
    assert_eq!(commands.len(), 2, "{left}");
    for command in commands {
        destination.shell(command).unwrap();
    }
    for kind in ["--persistent", "--autostart"] {
        let listed = destination.virsh(&["list", "--all", kind, "--name"]);
        assert_eq!(listed.unwrap(), "guest", "{kind}");
    }
    assert_healthy(&domain, destination);
}

#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_cannot_be_made_persistent_has_moved() {
    let mount = format!("mount -t tmpfs -o ro none {CONFIGURATIONS}");
    let unmount = format!("umount {CONFIGURATIONS}");
    is_moved_but_not_persistent(&mount, "Read-only file system", &unmount, false);
}

/// libvirt itself fails: it drops the running domain from its list.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_libvirt_fails_to_define_is_found_again() {
    let remove = format!("rmdir {CONFIGURATIONS}/guest.xml");
    is_moved_but_not_persistent("mkdir guest.xml", "libvirt: ", &remove, true);
}

/// Another process writes to the guest's memory for it, which is named.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn a_domain_with_a_folder_by_virtiofs_is_refused() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let order = test.hosts();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/qemu-7.2/root");
    let root = root.canonicalize().unwrap();
    let script = format!(
        "mkdir /srv/host/shared; printf '#!/bin/sh\\nLD_LIBRARY_PATH={root}/usr/lib/x86_64-linux-gnu:\
         {root}/lib/x86_64-linux-gnu exec {root}/usr/lib/qemu/virtiofsd \"$@\"\\n' \
         >/srv/host/virtiofsd; chmod +x /srv/host/virtiofsd",
        root = root.display()
    );
    order[0].shell(&script).unwrap();
    let config = config("guest")
        .elements("<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>")
        .devices(
            "<filesystem type='mount'><driver type='virtiofs'/><binary path='/srv/host/virtiofsd'/>\
             <source dir='/srv/host/shared'/><target dir='shared'/></filesystem>",
        );
    let domain = Domain::boot(&test.hosts, config).unwrap();
    let plan = DomainPlan::new("hybrid");
    let mut moving = DomainMove::start(&test.env, &domain, order, &plan);
    let exit = moving.migrate.wait();
    exit.assert(
        1,
        &[
            "is a vhost-user-fs-pci, and another process",
            "nothing was changed",
        ],
    );
    let pids = order[0].pids_of("virtiofsd").unwrap();
    let names = |pid| exit.stderr.contains(&format!("(process {pid}, virtiofsd)"));
    assert!(pids.iter().any(names), "{pids:?} {exit:?}");
    assert_eq!(order[1].state("guest").unwrap(), "absent");
    assert_healthy(&domain, order[0]);
}
