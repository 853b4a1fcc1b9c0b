//! Tests draining the disks of real QEMUs.

use std::process::Command;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, SourceGuest};
use serde_json::json;

use crate::support::{Qemu, with_each};

/// An image on a file system with direct I/O, and the option for its disk.
fn disk(cache: &str) -> (tempfile::NamedTempFile, String) {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let path = image.path().display();
    let option = format!("-drive file={path},format=raw,if=virtio,cache={cache}");
    (image, option)
}

#[test]
fn only_direct_io_needs_drains() {
    with_each(|program| {
        for (cache, needed) in [
            ("none", true),
            ("directsync", true),
            ("writeback", false),
            ("writethrough", false),
        ] {
            let (_image, option) = disk(cache);
            let qemu = Qemu::usual(program, &option);
            let mut source = qemu.source();
            let _log = source.start_dirty_log().unwrap();
            assert_eq!(source.needs_drain(), needed, "cache={cache}");
        }
        let qemu = Qemu::usual(program, "");
        let mut source = qemu.source();
        let _log = source.start_dirty_log().unwrap();
        assert!(!source.needs_drain(), "no disk");
    });
}

#[test]
fn a_drained_guest_continues_to_run() {
    with_each(|program| {
        let (_image, option) = disk("none");
        let qemu = Qemu::usual(program, &option);
        let before = qemu.traces();
        let mut source = qemu.source();
        let log = source.start_dirty_log().unwrap();
        for _ in 0..10 {
            source.drain(&CancelFlag::new()).unwrap();
        }
        assert_eq!(qemu.state(), "running");
        source.release().unwrap();
        drop((source, log));
        assert_eq!(qemu.traces(), before);
    });
}

/// A drain waits for storage, which may not respond.
#[test]
fn a_drain_can_be_cancelled() {
    with_each(|program| {
        let (_image, option) = disk("none");
        let qemu = Qemu::usual(program, &option);
        let mut source = qemu.source();
        let _log = source.start_dirty_log().unwrap();
        let signal = |name: &str| {
            let pid = qemu.pid().to_string();
            let status = Command::new("kill").args(["-s", name, &pid]).status();
            assert!(status.unwrap().success());
        };
        signal("STOP");
        let cancel = CancelFlag::new();
        let soon = cancel.clone();
        let cancelling = std::thread::spawn(move || {
            // By then the drain has most likely begun.
            std::thread::sleep(Duration::from_millis(200));
            soon.cancel();
        });
        let error = Report::new(source.drain(&cancel).unwrap_err()).to_string();
        cancelling.join().unwrap();
        signal("CONT");
        assert!(
            error.starts_with("draining the guest's disks (")
                && error.ends_with("cancelled while waiting for transaction"),
            "{error}"
        );
        // The late answer is dropped; the next drain works.
        source.drain(&CancelFlag::new()).unwrap();
        assert_eq!(qemu.execute("query-status", json!({}))["status"], "running");
    });
}
