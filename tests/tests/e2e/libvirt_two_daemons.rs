//! hikkoshi moves domains between two libvirt daemons.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::libvirt::built_with_libvirt;
use super::libvirt_domains::{Events, How, LibvirtTest, debian_is_moved, rich_domain_is_moved};

/// What the daemons report. It differs from what they report of `virsh migrate`: to libvirt, the
/// guest is paused by a monitor command, its QEMU quits, and at the destination a domain is
/// restored.
const EVENTS: Events = [
    &[
        "lifecycle: Suspended Paused",
        "lifecycle: Shutdown Finished after host request",
        "lifecycle: Stopped Destroyed",
    ],
    &["lifecycle: Started Restored", "lifecycle: Resumed Snapshot"],
];

/// The same connection of `virsh console` and the same client see all three moves.
#[test]
fn a_domain_is_moved_in_all_modes() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    for mode in ["hybrid", "precopy", "postcopy"] {
        let how = How::Hikkoshi(mode, &[]);
        let report = served.assert_moved(how, EVENTS).unwrap();
        let frames = report.frames.unwrap();
        assert_eq!(frames.kept, frames.delivered, "{frames:?}");
        assert_eq!(frames.dropped, 0, "{frames:?}");
    }
    assert_eq!(served.end(), 0, "lost datagrams");
}

#[test]
#[ignore = "as hikkoshi moves other domains: make test-libvirt"]
fn a_domain_with_disks_metadata_and_plugged_memory_is_moved() {
    if built_with_libvirt() {
        rich_domain_is_moved(How::Hikkoshi(
            "hybrid",
            &["--persistent", "--autostart", "--undefine-source"],
        ));
    }
}

#[test]
#[ignore = "long: make test-libvirt"]
fn a_debian_is_moved() {
    if built_with_libvirt() {
        debian_is_moved(How::Hikkoshi("hybrid", &[]));
    }
}
