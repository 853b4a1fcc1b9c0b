//! Memory that cannot be moved, or not in every mode.

use error_reporter::Report;
use hikkoshi_engine::{DestinationGuest, Mode, SourceGuest};
use hikkoshi_qemu::{Allowed, DiskSelection, check};
use serde_json::json;

use crate::support::{Mounted, Qemu, RamPath, options, print_always, says, usual, with_each};

use super::{memory_in, refused, start};

#[test]
fn memory_on_an_unknown_file_system() {
    let mount = Mounted::new("ramfs", "mode=700");
    with_each(|program| {
        let qemu = start(program, &memory_in(mount.path(), "on"));
        refused(&qemu, &["not on tmpfs, hugetlbfs, ext4", "share=off"]);
    });
}

#[test]
fn a_file_on_a_disk_is_noted() {
    with_each(|program| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let magic: i64 = rustix::fs::statfs(folder.path()).unwrap().f_type;
        if ![0xef53, 0x5846_5342].contains(&magic) {
            return print_always("NOT TESTED: the build folder is not on ext4 or XFS");
        }
        let qemu = start(program, &memory_in(folder.path(), "on"));
        let disks = DiskSelection::default();
        let checked = check(&qemu.qmp(), &Allowed::default(), &disks).unwrap();
        let noted = |note: &String| note.contains("ram is a shared file on a disk");
        assert!(checked.notes.iter().any(noted), "{:?}", checked.notes);
        let mut source = qemu.source();
        for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
            source.check_mode(mode).unwrap();
        }
    });
}

/// A page that is dropped there becomes the file's page, without a fault that could be handled.
#[test]
fn post_copy_into_a_file_on_a_disk() {
    for share in ["on", "off"] {
        post_copy_into_a_disk_file(share);
    }
}

fn post_copy_into_a_disk_file(share: &str) {
    with_each(|program| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let line = format!("{} -incoming defer", memory_in(folder.path(), share));
        let qemu = start(program, &line);
        let before = qemu.traces();
        let mut destination = qemu.destination();
        let error = destination.take_userfault().unwrap_err();
        says(
            &error,
            &[
                "\"ram\"",
                "neither on tmpfs nor on hugetlbfs",
                "--mode precopy",
            ],
        );
        drop(destination);
        assert_eq!(qemu.traces(), before);
    });
}

/// The destination has no place for it, and the source would lose it.
#[test]
fn memory_that_is_plugged_during_the_move() {
    with_each(|program| {
        let plug = |qemu: &Qemu, id: &str| {
            let backend = json!({ "qom-type": "memory-backend-ram", "id": id, "size": 128 << 20 });
            qemu.execute("object-add", backend);
            let dimm = json!({ "driver": "pc-dimm", "id": format!("d{id}"), "memdev": id });
            qemu.execute("device_add", dimm);
        };
        let line = "-m 64M,slots=2,maxmem=1G -machine q35";
        let qemu = start(program, line);
        let mut source = qemu.source();
        plug(&qemu, "plugged");
        let error = source.pause().unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(
            text.contains("there were 0 of the type pc-dimm, and are 1"),
            "{text}"
        );
        drop(source);
        assert_eq!(qemu.state(), "running");

        let qemu = start(program, &format!("{line} -incoming defer"));
        let mut destination = qemu.destination();
        plug(&qemu, "plugged");
        let error = destination.prepare().unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(text.contains("\"plugged\" has been added"), "{text}");
    });
}

#[test]
fn memory_outside_the_guest_or_mapped_twice() {
    with_each(|program| {
        let (spare, ram) = (RamPath::new(), RamPath::new());
        let mut all = usual(32, &ram);
        all.extend(options(&format!(
            "-object memory-backend-file,id=spare,size=32M,mem-path={},share=on",
            spare.as_str()
        )));
        let mut qemu = Qemu::start(program, ram, &all);
        qemu.keep(spare);
        let source = qemu.source();
        let ram = source.ram();
        let all = ram.layout().blocks();
        let main: Vec<_> = all.filter(|(block, _)| !block.guest.is_empty()).collect();
        assert_eq!(main.len(), 1, "what is not plugged in is not the guest's");
        assert_eq!(main[0].0.id, "ram");

        let ram = RamPath::new();
        let line = format!(
            "-m 64 -machine q35 -numa node,memdev=a -numa node,memdev=b \
             -object memory-backend-file,id=a,size=32M,mem-path={0},share=on \
             -object memory-backend-file,id=b,size=32M,mem-path={0},share=on",
            ram.as_str()
        );
        let qemu = Qemu::start(program, ram, &options(&line));
        // The two mappings cannot be distinguished.
        refused(&qemu, &["is mapped 2 times"]);
    });
}

#[test]
fn a_truncated_memory_file() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-S");
        let file = std::fs::File::options().write(true).open(&qemu.ram.0);
        file.unwrap().set_len(16 << 20).unwrap();
        refused(&qemu, &["has 16777216 bytes", "33554432"]);
    });
}

/// Prevents only post-copy.
#[test]
fn a_guest_that_returns_memory_to_the_host() {
    with_each(|program| {
        for (property, more) in [
            ("free-page-reporting", ""),
            ("free-page-hint", ",iothread=io0"),
        ] {
            let balloon = format!("-device virtio-balloon-pci,id=b,{property}=on{more}");
            let qemu = Qemu::usual(program, &format!("-object iothread,id=io0 {balloon}"));
            let mut source = qemu.source();
            let error = source.check_mode(Mode::Hybrid).unwrap_err();
            let text = Report::new(&error).to_string();
            assert!(text.contains("/machine/peripheral/b"), "{text}");
            assert!(text.contains(property), "{text}");
            assert!(text.contains("--mode precopy"), "{text}");
            assert!(!error.may_be_handed_over());
            source.check_mode(Mode::Precopy).unwrap();
        }
        let qemu = Qemu::usual(program, "-device virtio-balloon-pci,id=b");
        let mut source = qemu.source();
        source.check_mode(Mode::Hybrid).unwrap();
    });
}
