//! Tests the refusal of devices whose writes cannot be tracked, in one mode or in all, also
//! if they are plugged in during the move; with real QEMUs.

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode, SourceGuest, SourceProcess};
use hikkoshi_qemu::qmp::Client;
use hikkoshi_qemu::{Allowed, AttachError, QemuSource};
use serde_json::{Value, json};

use crate::support::{Qemu, RamPath, eventually, options, print_always, says, usual, with_each};

const ROUNDS: [Mode; 2] = [Mode::Precopy, Mode::Hybrid];

/// Checks that modes with pre-copy rounds are refused with a message that contains all of
/// `parts`, and that post-copy is allowed.
fn refused_in_rounds(qemu: &Qemu, parts: &[&str]) {
    let mut source = qemu.source();
    for mode in ROUNDS {
        let error = source.check_mode(mode).unwrap_err();
        let text = Report::new(&error).to_string();
        eprintln!("   {text}");
        for part in parts.iter().chain(&["--mode postcopy"]) {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert!(!error.may_be_handed_over());
    }
    source.check_mode(Mode::Postcopy).unwrap();
}

#[test]
fn nested_virtualization_under_kvm() {
    with_each(|program| {
        // AMD's feature can be forced on without KVM's support, Intel's cannot.
        let mut cases = vec![("qemu64,+svm", "svm")];
        if std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" vmx ")) {
            cases.push(("Nehalem,+vmx", "vmx"));
        }
        for (model, feature) in cases {
            let line = format!("-S -cpu {model},x-force-features=on");
            let Some(qemu) = Qemu::usual_under(program, "kvm", &line) else {
                print_always(&format!("NOT TESTED with QEMU {}: no KVM", program.label));
                return;
            };
            refused_in_rounds(&qemu, &[feature, "nested guests"]);
        }
        let plain = Qemu::usual_under(program, "kvm", "-S -cpu qemu64,-svm").unwrap();
        every_mode(&plain);
    });
}

#[test]
fn emulated_nested_virtualization() {
    with_each(|program| {
        let qemu = Qemu::usual_under(program, "tcg", "-S -cpu qemu64,+svm").unwrap();
        every_mode(&qemu);
    });
}

fn every_mode(qemu: &Qemu) {
    let mut source = qemu.source();
    for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
        source.check_mode(mode).unwrap();
    }
}

#[test]
fn disks_with_scsi_passthrough() {
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

/// A usual guest: nothing prevents a move.
#[test]
fn an_ordinary_guest() {
    with_each(|program| {
        let image = RamPath::image();
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

/// Starts a move in a mode with pre-copy rounds.
fn under_way(qemu: &Qemu) -> QemuSource {
    let mut source = qemu.source();
    source.check_mode(Mode::Hybrid).unwrap();
    source.start_dirty_log().unwrap();
    source
}

/// Checks that pausing the guest is refused with a message that contains all of `parts`,
/// and that the guest continues to run.
fn not_paused(qemu: &Qemu, mut source: QemuSource, parts: &[&str]) {
    let error = source.pause().unwrap_err();
    eprintln!("   {}", says(&error, parts));
    assert_eq!(qemu.state(), "running");
    source.release().unwrap();
    drop(source);
    assert_eq!(qemu.descriptors("userfaultfd"), 0);
}

/// Pauses the guest and resumes it.
fn paused(qemu: &Qemu, mut source: QemuSource) {
    source.pause().unwrap();
    source.resume().unwrap();
    source.release().unwrap();
    drop(source);
    assert_eq!(qemu.state_at_rest(), "running");
}

#[test]
fn a_device_that_is_plugged_in_during_the_move() {
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
            // It is a migration blocker of QEMU, too, which would not say what to do.
            &["peripheral/late is a ivshmem-plain", "unplug it"],
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
        let image = RamPath::image();
        let mut qemu = Qemu::usual(program, "");
        let path = image.as_str().to_owned();
        qemu.keep(image);
        // Buffered disks do not matter.
        let source = under_way(&qemu);
        assert!(!source.needs_drain());
        open(&qemu, "buffered", &path, false);
        paused(&qemu, source);
        // A disk that is added.
        let source = under_way(&qemu);
        open(&qemu, "late", &path, true);
        not_paused(
            &qemu,
            source,
            &["late", &path, "opened for direct I/O after"],
        );
        qemu.execute("blockdev-del", json!({ "node-name": "late" }));
        // One that is added after the pause was prepared.
        let mut source = under_way(&qemu);
        source.prepare_pause().unwrap();
        open(&qemu, "late", &path, true);
        source.pause().unwrap();
        let save = source.save_device_state(&mut Vec::new(), &CancelFlag::new());
        save.unwrap();
        says(
            &source.check_device_state().unwrap_err(),
            &["was added right before"],
        );
        source.resume().unwrap();
        source.release().unwrap();
        drop(source);
        // If there was one from the beginning, the rounds have drained all disks.
        let source = under_way(&qemu);
        assert!(source.needs_drain());
        open(&qemu, "later", &path, true);
        paused(&qemu, source);
        for node in ["late", "later"] {
            qemu.execute("blockdev-del", json!({ "node-name": node }));
        }
        // A disk that is reopened for direct I/O.
        let source = under_way(&qemu);
        qemu.execute(
            "blockdev-reopen",
            json!({ "options": [{ "driver": "file", "node-name": "buffered", "filename": path,
                                  "locking": "off", "cache": { "direct": true } }] }),
        );
        not_paused(&qemu, source, &["buffered", "opened for direct I/O after"]);
    });
}

/// Prevents only post-copy.
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

/// Starts a job that runs for a long time.
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
            says(&error, &[part]);
        }
        assert!(matches!(error, AttachError::Refused(_)));
        qemu.execute("job-cancel", json!({ "id": "bk" }));
        eventually("the job ends", || {
            qemu.execute("query-jobs", json!({})) == Value::Array(Vec::new())
        });
        paused(&qemu, under_way(&qemu));
    });
}

/// Types that are known to be unsafe are refused even if the user allows them.
#[test]
fn an_unsafe_device_cannot_be_allowed() {
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
        let allowed = Allowed::new(["ivshmem-plain".to_owned()]);
        let error = QemuSource::attach_allowing(&qemu.qmp(), &allowed).unwrap_err();
        says(&error, &["ivshmem-plain"]);
    });
}

/// The comparison with the destination did not include this device.
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
        // In the next move it belongs to the guest from the start.
        paused(&qemu, under_way(&qemu));
    });
}
