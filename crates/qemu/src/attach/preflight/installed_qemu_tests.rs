//! Tests that every type that the installed QEMUs offer is classified.

#![allow(clippy::unwrap_used)] // A failure is the message.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use hikkoshi_lab::QemuVersion;
use serde_json::{Value, json};

use super::block;
use super::devices::{MemoryWrites, is_not_a_device, of_network, of_type};
use super::untested::{Command as Drain, DRAIN, Drains, try_drains};
use crate::qmp::{Client, wait_until_started};

/// Runs `test` with a QEMU of each installed version.
fn with_each(mut test: impl FnMut(&mut Client, &dyn Fn(&str) -> String)) {
    let mut tried = 0;
    for version in QemuVersion::ALL {
        let Ok(run) = version.runner() else { continue };
        tried += 1;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let mut child = Command::new(&run)
            .args(["-machine", "none", "-nodefaults", "-display", "none", "-S"])
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", path.display()))
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut client = loop {
            wait_until_started(&path);
            match Client::connect(&path, Duration::from_secs(20)) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let help = |option: &str| {
            let output = Command::new(&run).args([option, "help"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        test(&mut client, &help);
        let _ = child.kill();
        let _ = child.wait();
    }
    assert!(tried > 0, "no QEMU has been set up: run make setup");
}

/// Names of the QOM types that implement `what`.
fn types(client: &mut Client, what: &str, is_abstract: bool) -> Vec<String> {
    let arguments = json!({ "implements": what, "abstract": is_abstract });
    let types = client.execute("qom-list-types", arguments).unwrap();
    let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
    types.as_array().unwrap().iter().map(name).collect()
}

/// The types that are not safe in every mode.
const UNSAFE: &str = "PIIX3-xen cryptodev-vhost-user cxl-downstream cxl-fmw cxl-rp cxl-switch-mailbox-cci \
    cxl-type3 cxl-upstream hv-balloon ivshmem-doorbell ivshmem-flat ivshmem-plain nitro-heartbeat \
    nitro-serial-vsock nitro-vsock-bridge pvrdma pxb-cxl \
    pxb-cxl-host remote-pcihost scsi-block scsi-generic sgx-epc vfio-pci vfio-pci-igd-lpc-bridge \
    vfio-pci-nohotplug vfio-user-pci vhost-scsi vhost-scsi-pci vhost-scsi-pci-non-transitional \
    vhost-scsi-pci-transitional vhost-user-blk vhost-user-blk-pci \
    vhost-user-blk-pci-non-transitional vhost-user-blk-pci-transitional vhost-user-device \
    vhost-user-device-pci vhost-user-fs-device vhost-user-fs-pci vhost-user-gpio-device \
    vhost-user-gpio-pci vhost-user-gpu vhost-user-gpu-pci vhost-user-i2c-device \
    vhost-user-i2c-pci vhost-user-rtc vhost-user-rtc-pci vhost-user-spi-device vhost-user-spi-pci \
    vhost-user-test-device vhost-user-test-device-pci vhost-user-input vhost-user-input-pci vhost-user-rng vhost-user-rng-pci \
    vhost-user-scsi vhost-user-scsi-pci vhost-user-scsi-pci-non-transitional \
    vhost-user-scsi-pci-transitional vhost-user-snd vhost-user-snd-pci vhost-user-vga \
    vhost-user-vsock-device vhost-user-vsock-pci vhost-user-vsock-pci-non-transitional \
    vhost-vdpa-device vhost-vdpa-device-pci vhost-vdpa-device-pci-non-transitional \
    vhost-vdpa-device-pci-transitional virtio-gpu-gl-device virtio-gpu-gl-pci virtio-mem \
    virtio-mem-pci virtio-pmem virtio-pmem-pci virtio-vga-gl x-pci-proxy-dev x-remote-object \
    xen-backend xen-bridge xen-cdrom xen-console xen-disk xen-evtchn xen-gnttab xen-net-device \
    xen-overlay xen-platform xen-primary-console xen-sysdev xen-xenstore";

#[test]
fn every_device_and_object_is_classified() {
    let expected: BTreeSet<_> = UNSAFE.split_whitespace().map(str::to_owned).collect();
    with_each(|client, help| {
        let mut kinds = types(client, "device", false);
        kinds.extend(types(client, "user-creatable", false));
        // QOM lists everything that `-device` offers.
        let offered = help("-device");
        let offered = offered.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("name \"")?.split_once('"')?;
            Some(name.to_owned())
        });
        let offered: Vec<_> = offered.collect();
        assert!(offered.len() > 100 && offered.iter().all(|name| kinds.contains(name)));
        let unknown: Vec<_> = kinds
            .iter()
            .filter(|kind| of_type(kind) == MemoryWrites::Unknown)
            .collect();
        assert!(unknown.is_empty(), "not classified: {unknown:?}");
        let unsafe_ones = kinds
            .into_iter()
            .filter(|kind| of_type(kind) != MemoryWrites::Tracked);
        for kind in unsafe_ones {
            assert!(expected.contains(&kind), "{kind}: {:?}", of_type(&kind));
        }
    });
}

#[test]
fn a_drain_is_told_from_a_command_that_does_not_drain() {
    const OTHER: Drain = ("query-status", || json!({}));
    with_each(|client, _| {
        assert_eq!(try_drains(client, DRAIN).unwrap(), Drains::Yes);
        assert_ne!(try_drains(client, OTHER).unwrap(), Drains::Yes);
        for list in ["query-named-block-nodes", "query-jobs"] {
            assert_eq!(
                client.execute(list, json!({})).unwrap(),
                json!([]),
                "{list}"
            );
        }
    });
}

#[test]
fn no_device_is_skipped() {
    with_each(|client, _| {
        for kind in types(client, "device", true) {
            assert!(!is_not_a_device(&kind), "{kind}");
        }
        for bus in types(client, "bus", false) {
            let classified = is_not_a_device(&bus) || bus.starts_with("xen-");
            assert!(classified, "{bus}: each survey would query QEMU for it");
        }
    });
}

#[test]
fn every_network_backend_is_classified() {
    with_each(|_, help| {
        let text = help("-netdev");
        let kinds: Vec<_> = text.lines().skip(1).map(str::trim).collect();
        assert!(kinds.contains(&"tap"), "{text}");
        for kind in kinds {
            // It is accepted by what `info network` prints of it.
            let refused = kind.starts_with("vhost-") || kind == "passt";
            match of_network(kind, "") {
                MemoryWrites::Tracked => assert!(!refused, "{kind}"),
                MemoryWrites::Refused(_) => assert!(refused, "{kind}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
    });
}

#[test]
fn every_block_driver_is_classified() {
    const REFUSED: [&str; 6] = [
        "io_uring",
        "nvme",
        "nvme-io_uring",
        "virtio-blk-vfio-pci",
        "virtio-blk-vhost-user",
        "virtio-blk-vhost-vdpa",
    ];
    with_each(|client, _| {
        let schema = client.execute("query-qmp-schema", json!({})).unwrap();
        // Types have no names in the schema: this is the one with host_device and nbd.
        let values = |entity: &Value| -> Option<Vec<String>> {
            let values = entity.get("values")?.as_array()?;
            let text = |value: &Value| Some(value.as_str()?.to_owned());
            values.iter().map(text).collect()
        };
        let has = |list: &[String], name: &str| list.iter().any(|value| value == name);
        let drivers = schema
            .as_array()
            .unwrap()
            .iter()
            .filter_map(values)
            .find(|values| has(values, "host_device") && has(values, "nbd"))
            .unwrap();
        for driver in &drivers {
            match block::of_driver(driver) {
                MemoryWrites::Tracked => assert!(!REFUSED.contains(&driver.as_str()), "{driver}"),
                MemoryWrites::Refused(_) => assert!(REFUSED.contains(&driver.as_str()), "{driver}"),
                other => panic!("{driver}: {other:?}"),
            }
        }
    });
}
