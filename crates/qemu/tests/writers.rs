//! What may write a guest's memory unseen, in one mode or in all, and what comes
//! to a guest while it is being moved; on real QEMUs.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A failure is the message.
#![allow(clippy::print_stdout, clippy::print_stderr)] // What QEMU said.

mod support;

use hikkoshi_engine::{Mode, SourceGuest};
use hikkoshi_qemu::qmp::Client;
use hikkoshi_qemu::{AllowedTypes, AttachError, QemuSource};
use serde_json::{Value, json};
use support::{Qemu, RamPath, aloud, eventually, options, usual, with_each};

const ROUNDS: [Mode; 2] = [Mode::Precopy, Mode::Hybrid];

/// Refused in modes with rounds, with a text that has all of `parts`; post-copy
/// moves it.
fn refused_in_rounds(qemu: &Qemu, parts: &[&str]) {
    let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
    for mode in ROUNDS {
        let error = source.check_mode(mode).unwrap_err();
        let text = error.to_string();
        eprintln!("   {text}");
        for part in parts.iter().chain(&["--mode postcopy"]) {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert!(error.found_guest() && !error.may_be_handed_over());
    }
    source.check_mode(Mode::Postcopy).unwrap();
}

#[test]
fn nested_virtualization_under_kvm() {
    with_each(|program| {
        // What KVM does not offer can be forced on with AMD's, and not with Intel's.
        let mut cases = vec![("qemu64,+svm", "svm")];
        if std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" vmx ")) {
            cases.push(("Nehalem,+vmx", "vmx"));
        }
        for (model, feature) in cases {
            let line = format!("-S -cpu {model},x-force-features=on");
            let Some(qemu) = Qemu::usual_under(program, "kvm", &line) else {
                aloud(&format!("NOT TESTED with QEMU {}: no KVM", program.label));
                return;
            };
            refused_in_rounds(&qemu, &[feature, "nested guests"]);
        }
        let plain = Qemu::usual_under(program, "kvm", "-S -cpu qemu64,-svm").unwrap();
        every_mode(&plain);
    });
}

#[test]
fn nested_virtualization_that_is_emulated() {
    with_each(|program| {
        let qemu = Qemu::usual_under(program, "tcg", "-S -cpu qemu64,+svm").unwrap();
        every_mode(&qemu);
    });
}

fn every_mode(qemu: &Qemu) {
    let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
    for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
        source.check_mode(mode).unwrap();
    }
}

#[test]
fn disks_that_pass_scsi_commands_on() {
    with_each(|program| {
        let disk = "-blockdev null-co,node-name=d,size=1048576 -device virtio-blk-pci,drive=d,id=v";
        if program.is_old() {
            let line = format!("-S {disk},scsi=on,disable-modern=on");
            let qemu = Qemu::usual(program, &line);
            refused_in_rounds(&qemu, &["/machine/peripheral/v", "SCSI"]);
        }
        every_mode(&Qemu::usual(program, &format!("-S {disk}")));
    });
}

/// A guest as many have it: nothing of it is in the way.
#[test]
fn an_ordinary_guest() {
    with_each(|program| {
        let image = image();
        let file = image.as_str();
        let mut qemu = Qemu::usual(
            program,
            &format!(
                "-S -smp 2 -vga std -device virtio-gpu-pci -device pcie-root-port,id=rp \
                 -drive file={file},format=raw,if=none,id=d,cache=none,file.locking=off \
                 -device virtio-blk-pci,drive=d,bus=rp \
                 -blockdev null-co,node-name=n,size=1048576 -device virtio-scsi-pci,id=s \
                 -device scsi-hd,drive=n,bus=s.0 -device qemu-xhci -device usb-tablet \
                 -netdev user,id=u -device virtio-net-pci,netdev=u -netdev hubport,id=h,hubid=0 \
                 -device e1000,netdev=h -device virtio-balloon-pci -device virtio-rng-pci \
                 -chardev null,id=c -device virtio-serial -device virtserialport,chardev=c \
                 -audiodev none,id=au -device intel-hda -device hda-output,audiodev=au -watchdog-action none -device i6300esb \
                 -device pvpanic -device vmgenid -device vmcoreinfo -serial null \
                 -device ich9-ahci,id=a -device ide-cd,bus=a.0 -device virtio-keyboard-pci \
                 -device ich9-usb-ehci1 -device usb-kbd"
            ),
        );
        qemu.keep(image);
        every_mode(&qemu);
    });
}

/// An empty disk.
fn image() -> RamPath {
    let image = RamPath::new();
    let file = std::fs::File::create(&image.0).unwrap();
    file.set_len(1 << 20).unwrap();
    image
}

/// A guest whose move is under way, by a mode with rounds.
fn under_way(qemu: &Qemu) -> QemuSource {
    let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
    source.check_mode(Mode::Hybrid).unwrap();
    source.start_dirty_log().unwrap();
    source
}

/// The guest is not paused, for a reason whose text has all of `parts`, and runs
/// as before.
fn not_paused(qemu: &Qemu, mut source: QemuSource, parts: &[&str]) {
    let error = source.pause().unwrap_err();
    let text = error.to_string();
    eprintln!("   {text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert_eq!(qemu.state(), "running");
    source.release().unwrap();
    drop(source);
    assert_eq!(qemu.descriptors("userfaultfd"), 0);
}

/// Paused, and let go on.
fn paused(qemu: &Qemu, mut source: QemuSource) {
    source.pause().unwrap();
    source.resume().unwrap();
    source.release().unwrap();
    drop(source);
    assert_eq!(qemu.state_at_rest(), "running");
}

#[test]
fn what_is_plugged_in_during_the_move() {
    with_each(|program| {
        let window = RamPath::new();
        let mut qemu = Qemu::usual(program, "-device pcie-root-port,id=rp");
        let path = window.as_str().to_owned();
        qemu.keep(window);
        let source = under_way(&qemu);
        let backend = json!({ "qom-type": "memory-backend-file", "id": "window", "size": 1 << 20,
                              "mem-path": path, "share": true });
        qemu.execute("object-add", backend);
        let window = json!({ "driver": "ivshmem-plain", "memdev": "window", "bus": "rp",
                             "id": "late" });
        qemu.execute("device_add", window);
        not_paused(
            &qemu,
            source,
            &["/machine/peripheral/late", "ivshmem-plain"],
        );
    });
}

fn open(qemu: &Qemu, name: &str, file: &str, direct: bool) {
    qemu.execute(
        "blockdev-add",
        json!({ "driver": "file", "node-name": name, "filename": file, "locking": "off",
                "cache": { "direct": direct } }),
    );
}

#[test]
fn a_disk_that_is_opened_for_direct_io_during_the_move() {
    with_each(|program| {
        let image = image();
        let mut qemu = Qemu::usual(program, "");
        let path = image.as_str().to_owned();
        qemu.keep(image);
        // Buffered ones change nothing.
        let source = under_way(&qemu);
        assert!(!source.needs_drain());
        open(&qemu, "buffered", &path, false);
        paused(&qemu, source);
        // One that is opened anew.
        let source = under_way(&qemu);
        open(&qemu, "late", &path, true);
        not_paused(
            &qemu,
            source,
            &["late", &path, "opened for direct I/O after"],
        );
        // With one there from the beginning the rounds have drained them all.
        let source = under_way(&qemu);
        assert!(source.needs_drain());
        open(&qemu, "later", &path, true);
        paused(&qemu, source);
        for node in ["late", "later"] {
            qemu.execute("blockdev-del", json!({ "node-name": node }));
        }
        // One that was there before, in another way.
        let source = under_way(&qemu);
        qemu.execute(
            "blockdev-reopen",
            json!({ "options": [{ "driver": "file", "node-name": "buffered", "filename": path,
                                  "locking": "off", "cache": { "direct": true } }] }),
        );
        not_paused(&qemu, source, &["buffered", "opened for direct I/O after"]);
    });
}

/// Only in the way of post-copy, and only noticed when it is there.
#[test]
fn a_balloon_that_is_plugged_in_during_the_move() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-device pcie-root-port,id=rp");
        let source = under_way(&qemu);
        qemu.execute(
            "device_add",
            json!({ "driver": "virtio-balloon-pci", "free-page-reporting": true, "bus": "rp",
                    "id": "late" }),
        );
        not_paused(
            &qemu,
            source,
            &["/machine/peripheral/late", "free-page-reporting"],
        );
    });
}

/// A job that does not end by itself for a long time.
fn start_job(client: &mut Client) {
    for node in ["from", "to"] {
        let null = json!({ "driver": "null-co", "node-name": node, "size": 1 << 30 });
        client.execute("blockdev-add", null).unwrap();
    }
    let backup = json!({ "job-id": "bk", "device": "from", "target": "to", "sync": "full",
                         "speed": 1 });
    client.execute("blockdev-backup", backup).unwrap();
}

#[test]
fn a_block_job() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let source = under_way(&qemu);
        start_job(&mut qemu.client());
        let parts = ["block job 'bk' (backup)", "running", "job-cancel"];
        not_paused(&qemu, source, &parts);
        let error = QemuSource::attach(&qemu.qmp()).unwrap_err();
        for part in parts {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(matches!(error, AttachError::Refused(_)) && error.found_guest());
        qemu.execute("job-cancel", json!({ "id": "bk" }));
        eventually("the job ends", || {
            qemu.execute("query-jobs", json!({})) == Value::Array(Vec::new())
        });
        paused(&qemu, under_way(&qemu));
    });
}

/// What is known to be unsafe is refused whatever its user says.
#[test]
fn an_unsafe_device_cannot_be_vouched_for() {
    with_each(|program| {
        let window = RamPath::new();
        let ram = RamPath::new();
        let mut all = usual(32, &ram);
        all.extend(options(&format!(
            "-object memory-backend-file,id=window,size=1M,mem-path={},share=on \
             -device ivshmem-plain,memdev=window",
            window.as_str()
        )));
        let mut qemu = Qemu::start(program, ram, &all);
        qemu.keep(window);
        let allowed = AllowedTypes::new(["ivshmem-plain".to_owned()]);
        let error = QemuSource::attach_allowing(&qemu.qmp(), &allowed).unwrap_err();
        assert!(error.to_string().contains("ivshmem-plain"), "{error}");
    });
}

/// A device that the destination has not compared.
#[test]
fn an_ordinary_device_that_is_plugged_in_during_the_move() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-device pcie-root-port,id=rp");
        let source = under_way(&qemu);
        let device = json!({ "driver": "virtio-rng-pci", "bus": "rp", "id": "late" });
        qemu.execute("device_add", device);
        not_paused(
            &qemu,
            source,
            &[
                "have changed",
                "there was nothing",
                "virtio-rng-pci (\"late\")",
            ],
        );
        // From the beginning of the next move on it belongs to the guest.
        paused(&qemu, under_way(&qemu));
    });
}
