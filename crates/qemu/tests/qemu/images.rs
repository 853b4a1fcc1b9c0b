//! Tests that only one side at a time holds the guest's images, with real QEMUs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationGuest, DestinationProcess, SourceGuest};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{Qemu, device_state, with_each};

const NAMES: [&str; 2] = ["one", "two"];

/// Two raw images.
fn images() -> (TempDir, [PathBuf; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let images = NAMES.map(|name| {
        let path = folder.path().join(name);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    });
    (folder, images)
}

/// The option for a disk. QEMU locks the image while it uses it.
fn disk(name: &str, image: &Path) -> String {
    format!(
        "-drive file={},format=raw,if=none,id={name} -device virtio-blk-pci,drive={name}",
        image.display()
    )
}

#[test]
fn images_of_a_refused_guest_are_released_for_its_source() {
    with_each(|program| {
        let (_folder, images) = images();
        // The memory is not moved here, and this part of KVM's APIC reads it when it is loaded, if
        // the guest's firmware has got as far as using it.
        let no_vapic = "-global apic-common.vapic=off".to_owned();
        let both = [
            disk(NAMES[0], &images[0]),
            disk(NAMES[1], &images[1]),
            no_vapic,
        ];
        let both = both.join(" ");
        let from = Qemu::usual(program, &both);
        let mut to = Qemu::usual(program, &format!("-incoming defer {both}"));
        let mut source = from.source();
        let mut destination = to.destination();
        destination.prepare().unwrap();
        source.pause().unwrap();
        let state = device_state(&mut source);
        destination.load_device_state(state).unwrap();
        // No QEMU holds the images now, and another one locks the second.
        let other = Qemu::usual(program, &disk(NAMES[1], &images[1]));
        let error = destination.resume(true, &CancelFlag::new()).unwrap_err();
        let said = Report::new(&error).to_string();
        assert!(
            said.contains("lock") && said.contains("was ended"),
            "{said}"
        );
        assert!(destination.never_ran());
        drop(other);
        // The source locks both again.
        source.resume().unwrap();
        assert_eq!(from.state(), "running");
        for (name, image) in NAMES.iter().zip(&images) {
            let write = format!("qemu-io {name} \"write -P 7 4096 512\"");
            from.execute("human-monitor-command", json!({ "command-line": write }));
            let mut read = [0; 512];
            let file = File::open(image).unwrap();
            file.read_exact_at(&mut read, 4096).unwrap();
            assert_eq!(read, [7; 512], "{name}");
        }
        destination.release().unwrap();
        assert!(!to.is_running());
        source.release().unwrap();
    });
}
