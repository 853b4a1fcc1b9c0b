//! Domains with an emulated TPM, whose state moves with them.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{How, LibvirtTest, assert_healthy};
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_lab::{Devices, Firmware, GuestReport, Workload};
use hikkoshi_tests::{DomainMove, DomainPlan, LONG};

const TPM: &str = "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>";

/// Where libvirt keeps the states of TPMs.
const STATES: &str = "/var/lib/libvirt/swtpm";

fn config() -> DomainConfig {
    let workload = Workload::verify(16).option("every_ms", 200);
    DomainConfig::new("guest", workload).devices(TPM)
}

/// Makes the guest use its TPM.
fn use_tpm(domain: &Domain<'_>, host: &LibvirtHost) -> Devices {
    let first = domain.console().len();
    domain.send(host, "devices").unwrap();
    let devices = domain.wait_report(host, "its TPM", first, LONG, |report| match report {
        GuestReport::Devices(devices) => Some(devices.clone()),
        GuestReport::Failed(reason) => panic!("{reason}"),
        _ => None,
    });
    devices.unwrap()
}

/// The files with states of TPMs, and their content.
fn states(host: &LibvirtHost) -> String {
    let find = format!("find {STATES} -name '*permall' -exec sha256sum {{}} + | sort");
    host.shell(&find).unwrap()
}

/// The guest has written to a register of its TPM.
#[test]
#[ignore = "one of its kind runs in CI: make test-libvirt"]
fn the_tpm_of_a_domain_keeps_its_state() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = Domain::boot(&test.hosts, config()).unwrap();
    let (before, stored) = (use_tpm(&domain, source), states(source));
    assert!(before.pcr.as_ref().unwrap().contains(|digit| digit != '0'));
    How::Hikkoshi("hybrid", &[]).moves(&test.env, &domain, [source, destination]);
    let after = use_tpm(&domain, destination);
    assert_eq!(after.pcr, before.pcr, "the TPM has lost its state");
    assert_ne!(after.tpm_random, before.tpm_random);
    assert_healthy(&domain, destination);
    assert!(stored.contains("permall"), "{stored}");
    assert_eq!(states(destination), stored, "what outlives a start");
    assert_eq!(
        states(source),
        "",
        "libvirt removes that of a transient domain"
    );
}

/// As Windows 11 needs it. The state is there when the domain is started again.
#[test]
#[ignore = "boots slowly: make test-libvirt"]
fn a_persistent_domain_with_uefi_firmware_and_a_tpm_is_started_again() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let config = config().memory_mib(256).firmware(Firmware::Ovmf);
    let domain = Domain::boot(&test.hosts, config.persistent()).unwrap();
    let mut order = [source, destination];
    for mode in ["precopy", "postcopy"] {
        let [here, there] = order;
        let (before, stored) = (use_tpm(&domain, here), states(here));
        How::Hikkoshi(mode, &["--persistent"]).moves(&test.env, &domain, order);
        let after = use_tpm(&domain, there);
        assert_eq!(after.pcr, before.pcr, "the TPM has lost its state");
        assert_healthy(&domain, there);
        let first = domain.console().len();
        domain.destroy(there).unwrap();
        // On the way back, it replaces an older one.
        assert_eq!(states(there), stored, "what outlives a start");
        there.virsh(&["start", "guest"]).unwrap();
        let ready = |report: &GuestReport| matches!(report, GuestReport::Ready(_)).then_some(());
        domain
            .wait_report(there, "it to start again", first, LONG, ready)
            .unwrap();
        assert!(use_tpm(&domain, there).pcr.is_some());
        assert_healthy(&domain, there);
        order.reverse();
    }
}

/// libvirt does not know that the domain is moved: it would let two emulators use one state, and
/// remove it.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn a_tpm_state_that_both_hosts_have_is_refused() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let order = test.hosts();
    let shared = test.env.folder().join("states");
    for host in order {
        let bind = format!(
            "mkdir -p {STATES} {shared}; chmod 711 {shared}; mount --bind {shared} {STATES}",
            shared = shared.display()
        );
        host.shell(&bind).unwrap();
    }
    let domain = Domain::boot(&test.hosts, config()).unwrap();
    let before = use_tpm(&domain, order[0]);
    let plan = DomainPlan::new("hybrid");
    let exits = DomainMove::start(&test.env, &domain, order, &plan).refused();
    let reasons = [
        "the state of its TPM is in /var/lib/libvirt/swtpm/",
        "another swtpm uses",
        "still runs at the source",
    ];
    exits.assert_source(1, &reasons);
    assert_eq!(order[1].state("guest").unwrap(), "absent");
    assert!(states(order[0]).contains("permall"), "it is still there");
    assert_eq!(use_tpm(&domain, order[0]).pcr, before.pcr);
    assert_healthy(&domain, order[0]);
}
