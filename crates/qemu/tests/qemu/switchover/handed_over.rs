//! The source's QEMU after the guest was handed over.

use error_reporter::Report;
use hikkoshi_engine::{SourceGuest, SourceProcess};
use hikkoshi_qemu::QemuSource;
use serde_json::json;

use crate::support::{FIRMWARE, Qemu, RamPath, monitor, options, with_each};

use super::{image, save, source};

/// With `discard-data=on` QEMU discards the RAM file's content when it exits. This must not
/// happen while the file may hold the only copy of a page.
#[test]
fn a_qemu_that_exits_after_the_handover_keeps_its_ram_file() {
    with_each(|program| {
        for handed_over in [true, false] {
            let ram = RamPath::new();
            let line = format!(
                "-m 32 -object memory-backend-file,id=ram,size=32M,mem-path={},share=on,\
                 discard-data=on -machine q35,memory-backend=ram {FIRMWARE}",
                ram.as_str()
            );
            let mut qemu = Qemu::start(program, ram, &options(&line));
            let discards = |qemu: &Qemu| {
                let of = json!({ "path": "/objects/ram", "property": "discard-data" });
                qemu.execute("qom-get", of)
            };
            let mut source = qemu.source();
            save(&mut source);
            assert_eq!(discards(&qemu), false);
            if handed_over {
                source.leave();
            } else {
                source.resume().unwrap();
                source.release().unwrap();
                assert_eq!(discards(&qemu), true, "restored");
            }
            let file = std::fs::File::open(&qemu.ram.0).unwrap();
            let held = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
            let before = held();
            assert_ne!(before, 0);
            qemu.execute("quit", json!({}));
            qemu.wait();
            assert_eq!(held(), if handed_over { before } else { 0 });
        }
    });
}

/// Another program may resume a guest that was handed over. The destination must not get
/// the pages that it writes then.
#[test]
fn a_handed_over_guest_that_runs_is_noticed() {
    with_each(|program| {
        let qemu = source(program, "");
        let mut engine = qemu.source();
        save(&mut engine);
        let reattach_info = engine.reattach_info();
        engine.leave();
        drop(engine);
        let taken_up = || {
            QemuSource::reattach(&reattach_info, monitor(&reattach_info.identity))
                .unwrap()
                .unwrap()
        };
        let mut again = taken_up();
        again.check_paused().unwrap();
        again.leave();
        drop(again);
        assert_eq!(qemu.state(), "paused");
        qemu.client().execute("cont", json!({})).unwrap_err();
        assert_eq!(qemu.state(), "paused");
        qemu.resume_by_hand();
        let mut again = taken_up();
        let error = Report::new(again.check_paused().unwrap_err()).to_string();
        assert!(
            error.contains("the guest runs at the source") && error.contains("--give-up"),
            "{error}"
        );
        again.leave();
        drop(again);
        assert_eq!(qemu.state(), "running");
    });
}

/// QEMU releases the disks of a guest that its owner had paused when it was handed over, also by
/// another engine, and by one more that does not know that they were released.
#[test]
fn the_disks_of_a_paused_guest_are_released_after_the_handover() {
    with_each(|program| {
        for killed in [false, true] {
            let (image, drive) = image();
            let qemu = source(program, &drive);
            qemu.execute("stop", json!({}));
            let before = qemu.traces();
            let mut engine = qemu.source();
            save(&mut engine);
            assert!(is_locked(&image), "until the handover");
            let reattach_info = engine.reattach_info();
            let reattach = || {
                let mut engine =
                    QemuSource::reattach(&reattach_info, monitor(&reattach_info.identity))
                        .unwrap()
                        .unwrap();
                engine.check_paused().unwrap();
                engine
            };
            if killed {
                engine.leave();
                drop(engine);
                engine = reattach();
            }
            for what in ["released", "released again"] {
                engine.release().unwrap();
                drop(engine);
                assert!(!is_locked(&image), "{what}");
                assert_eq!(qemu.state(), "paused");
                assert!(qemu.is_marked());
                assert_eq!(qemu.traces(), before);
                engine = reattach();
            }
            engine.release().unwrap();
            engine.quit().unwrap();
        }
    });
}

/// Whether a QEMU holds its lock on the image: it locks bytes from 100 on for itself
/// (`RAW_LOCK_PERM_BASE`).
fn is_locked(image: &RamPath) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(&image.0).unwrap().ino();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let suffix = format!(":{inode}");
    locks
        .lines()
        .any(|line| line.split_whitespace().any(|word| word.ends_with(&suffix)))
}
