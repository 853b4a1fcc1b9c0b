//! `xen-save-devices-state`, and the stream that `stream` writes around it, with real QEMUs.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A failure is the message.

#[path = "../support/mod.rs"]
mod support;
mod walk;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use hikkoshi_lab::TpmEmulator;
use hikkoshi_qemu::qmp::Client;
use hikkoshi_qemu::stream::{SavedDevices, Section, StreamBlock, whole};
use serde_json::json;
use support::{Program, Qemu, RamPath, eventually, options, print_always, with_each};

/// Devices with every kind of connection to the machine. Disks are `null-co`: they have no file.
const DEVICES: &str = "-device VGA,vgamem_mb=1 \
    -blockdev null-co,read-zeroes=on,node-name=n0 -device virtio-blk-pci,drive=n0 \
    -device virtio-scsi-pci,id=scsi \
    -blockdev null-co,read-zeroes=on,node-name=n1 -device scsi-hd,bus=scsi.0,drive=n1 \
    -netdev hubport,id=h0,hubid=0 -device virtio-net-pci,netdev=h0,mac=52:54:00:00:00:01 \
    -netdev hubport,id=h1,hubid=0 -device e1000e,netdev=h1,mac=52:54:00:00:00:02 \
    -object rng-builtin,id=rng -device virtio-rng-pci,rng=rng \
    -device virtio-balloon-pci \
    -chardev null,id=c0 -device virtio-serial-pci,id=vs -device virtserialport,bus=vs.0,chardev=c0 \
    -device virtio-gpu-pci \
    -device ahci,id=sata \
    -blockdev null-co,read-zeroes=on,node-name=n2 -device ide-hd,bus=sata.0,drive=n2 \
    -device qemu-xhci,id=usb -device usb-tablet,bus=usb.0 \
    -blockdev null-co,read-zeroes=on,node-name=n3 -device usb-storage,bus=usb.0,drive=n3 \
    -serial null -rtc clock=vm -smp 2";

/// Sections that these devices save.
const SAVED: [&str; 14] = [
    "virtio-blk",
    "virtio-scsi",
    "virtio-net",
    "virtio-rng",
    "virtio-balloon",
    "virtio-console",
    "virtio-gpu",
    "ahci",
    "xhci",
    "usb-ptr",
    "usb-storage",
    "e1000e",
    "vga",
    "cpu",
];

/// Flash, devices that exclude one of the others, and a card with four queues: those need a tap, which
/// QEMU creates. A TPM is added.
const FLASH: &str = "pflash0=flash0,pflash1=flash1";
const MORE_DEVICES: &str = "-blockdev null-co,size=262144,read-zeroes=on,read-only=on,node-name=flash0 \
    -blockdev null-co,size=131072,read-zeroes=on,node-name=flash1 \
    -netdev tap,id=t0,queues=4,script=no,downscript=no \
    -device virtio-net-pci,netdev=t0,mq=on,vectors=10,mac=52:54:00:00:00:03 \
    -device virtio-vga -device vmgenid -serial null -rtc clock=vm";

/// Sections that these save.
const MORE_SAVED: [&str; 6] = [
    "virtio-gpu",
    "pflash_cfi01",
    "vmgenid",
    "virtio-net",
    "tpm-crb",
    "tpm-emulator",
];

/// Sections whose payloads may differ between the two ways, and why. `ram` and `dirty-bitmap` are
/// saved in parts, and `xen-save-devices-state` leaves them out.
const MAY_DIFFER: [(&str, &str); 1] = [(
    "globalstate",
    "holds the run state's name: xen-save-devices-state writes 'running' always, migrate the \
     guest's state. A guest that was paused is kept paused at the destination by other means",
)];

fn start(program: &Program, accelerator: &str, machine: &str, more: &str) -> Qemu {
    let line = format!("-m 16 -machine {machine} {DEVICES} {more}");
    Qemu::start_under(program, accelerator, RamPath::new(), &options(&line))
}

fn start_with_more(program: &Program, accelerator: &str, machine: &str, tpm: &TpmEmulator) -> Qemu {
    let line = options(&format!("-m 16 -machine {machine} {MORE_DEVICES}"));
    let line = [&line, tpm.arguments()].concat();
    Qemu::start_under(program, accelerator, RamPath::new(), &line)
}

/// The accelerators of this machine.
fn accelerators() -> Vec<&'static str> {
    let kvm = fs::File::options().read(true).write(true).open("/dev/kvm");
    let mut all = vec!["tcg"];
    if kvm.is_ok() {
        all.push("kvm");
    } else {
        print_always("NOT TESTED with KVM: there is no /dev/kvm");
    }
    all
}

fn save(client: &mut Client, path: &Path, live: bool) -> Vec<u8> {
    let arguments = json!({ "filename": path, "live": live });
    client.execute("xen-save-devices-state", arguments).unwrap();
    fs::read(path).unwrap()
}

/// Names and used lengths of all RAM blocks.
fn blocks(client: &mut Client) -> Vec<StreamBlock> {
    let command = json!({ "command-line": "info ramblock" });
    let answer = client.execute("human-monitor-command", command).unwrap();
    let table = answer.as_str().unwrap();
    // The name can contain blanks: read from the page size on.
    let row = |line: &str| {
        let (name, rest) = [" KiB ", " MiB ", " GiB "]
            .iter()
            .find_map(|unit| line.split_once(unit))?;
        let name = name.trim_end().rsplit_once(' ')?.0.trim();
        let used = rest.split_whitespace().nth(1)?.strip_prefix("0x")?;
        Some(StreamBlock {
            name: name.to_owned(),
            used: u64::from_str_radix(used, 16).ok()?,
        })
    };
    table.lines().filter_map(row).collect()
}

fn machine_type(client: &mut Client) -> String {
    let arguments = json!({ "path": "/machine", "property": "type" });
    let name = client.execute("qom-get", arguments).unwrap();
    let name = name.as_str().unwrap();
    name.strip_suffix("-machine").unwrap().to_owned()
}

fn own_stream(client: &mut Client, path: &Path) -> walk::Stream {
    let uri = format!("exec:cat > {}", path.display());
    client.execute("migrate", json!({ "uri": uri })).unwrap();
    eventually("the end of QEMU's migration", || {
        let info = client.execute("query-migrate", json!({})).unwrap();
        assert_ne!(info["status"], "failed", "{info}");
        info["status"] == "completed"
    });
    // `cat` may still be writing: the description is the last part.
    eventually("the end of the stream", || {
        fs::read(path).is_ok_and(|bytes| bytes.ends_with(b"}") && is_complete(&bytes))
    });
    walk::Stream::parse(&fs::read(path).unwrap())
}

fn is_complete(bytes: &[u8]) -> bool {
    let mark = b"\x00\x06\x00";
    let starts = bytes.windows(3).enumerate().filter(|(_, w)| w == mark);
    starts.map(|(at, _)| at).any(|at| {
        let length = bytes.get(at + 2..at + 6);
        length.is_some_and(|length| {
            let length = u32::from_be_bytes(length.try_into().unwrap());
            length as usize == bytes.len() - at - 6
        })
    })
}

/// Compares a device's two payloads, and says which field differs.
fn difference(stream: &walk::Stream, saved: &Section<'_>, own: &[u8]) -> Option<String> {
    if saved.payload == own {
        return None;
    }
    let same = saved.payload.iter().zip(own).take_while(|(a, b)| a == b);
    let same = same.count();
    let mut at = 0;
    let fields = stream
        .fields(saved.name, saved.instance)
        .unwrap_or_default();
    let field = fields.into_iter().find(|(_, bytes)| {
        at += bytes;
        at > same
    });
    Some(format!(
        "{} {}: {} and {} bytes, the first difference is byte {same}, field {field:?}",
        saved.name,
        saved.instance,
        saved.payload.len(),
        own.len(),
    ))
}

fn compare(program: &Program, qemu: &Qemu, machine: &str, expected: &[&str]) {
    // The firmware has run for a while.
    std::thread::sleep(Duration::from_millis(700));
    let mut client = qemu.client();
    client.execute("stop", json!({})).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let saved = save(&mut client, &folder.path().join("saved"), false);
    let stream = own_stream(&mut client, &folder.path().join("own"));
    let later = save(&mut client, &folder.path().join("later"), false);
    let devices = SavedDevices::parse(&saved).unwrap();
    let sections = devices.sections().unwrap();
    let later = SavedDevices::parse(&later).unwrap();
    let later = later.sections().unwrap();
    // KVM's timer runs on while QEMU's guest is paused, and may raise an interrupt between two saves.
    let has_changed = |section: &Section<'_>| {
        let same =
            |other: &&Section<'_>| (other.name, other.instance) == (section.name, section.instance);
        let changed = later.iter().find(same).unwrap().payload != section.payload;
        if changed {
            print_always(&format!(
                "{} changes while the guest is paused",
                section.name
            ));
        }
        changed
    };

    assert_eq!(stream.machine, machine_type(&mut client));
    let listed: Vec<_> = blocks(&mut client)
        .into_iter()
        .map(|block| (block.name, block.used))
        .collect();
    assert_eq!(
        listed.iter().collect::<BTreeSet<_>>(),
        stream.ram_blocks().iter().collect()
    );

    let full = stream.sections.iter().filter(|section| section.full);
    let own: Vec<_> = full.collect();
    let headers = |id, name: &str, instance, version| (id, name.to_owned(), instance, version);
    let saved_headers: Vec<_> = sections
        .iter()
        .map(|s| headers(s.id, s.name, s.instance, s.version))
        .collect();
    let own_headers: Vec<_> = own
        .iter()
        .map(|s| headers(s.id, &s.name, s.instance, s.version))
        .collect();
    assert_eq!(saved_headers, own_headers);
    let started = stream.sections.iter().filter(|section| !section.full);
    for section in started {
        assert!(
            ["ram", "dirty-bitmap"].contains(&section.name.as_str()),
            "{} is saved in parts",
            section.name
        );
    }

    let mut described = 0;
    for (saved, own) in sections.iter().zip(own) {
        // The boundaries were found by footers; the description says how long a section is.
        if let Some(fields) = stream.fields(saved.name, saved.instance) {
            let bytes: usize = fields.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(bytes, own.payload.len(), "{}", saved.name);
            described += 1;
        }
        let may_differ = MAY_DIFFER.iter().any(|(name, _)| *name == saved.name);
        match difference(&stream, saved, &own.payload) {
            Some(difference) => assert!(may_differ || has_changed(saved), "{difference}"),
            None => assert!(!may_differ, "{} is the same", saved.name),
        }
    }
    print_always(&format!(
        "{machine}, {}: {} sections, {described} of them described",
        program.label,
        sections.len()
    ));
    for device in expected {
        assert!(
            sections
                .iter()
                .any(|section| section.name.ends_with(device)),
            "{device} is not among them: {saved_headers:?}"
        );
    }
}

#[test]
fn the_device_state_is_the_one_of_qemus_own_migration() {
    with_each(|program| {
        for accelerator in accelerators() {
            for machine in ["pc", "q35"] {
                let qemu = start(program, accelerator, machine, "");
                compare(program, &qemu, machine, &SAVED);
            }
            let machine = format!("q35,{FLASH}");
            let folder = tempfile::tempdir().unwrap();
            let tpm = TpmEmulator::start(folder.path(), "tpm").unwrap();
            let qemu = start_with_more(program, accelerator, &machine, &tpm);
            compare(program, &qemu, &machine, &MORE_SAVED);
        }
    });
}

/// With all devices, into a QEMU of the same and of the newer version.
#[test]
fn an_incoming_qemu_loads_the_stream() {
    let versions = support::versions();
    for (label, run) in &versions {
        for (to_label, to_run) in &versions {
            if *to_label == "7.2" && label != "7.2" {
                continue;
            }
            for machine in ["pc-i440fx-7.2", "pc-q35-7.2"] {
                let program = |label: &String, run: &Path| Program {
                    label: label.clone(),
                    run: run.to_owned(),
                };
                load(&program(label, run), &program(to_label, to_run), machine);
            }
        }
    }
}

fn load(from: &Program, to: &Program, machine: &str) {
    let source = start(from, "tcg", machine, "");
    let mut client = source.client();
    client.execute("stop", json!({})).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let saved = save(&mut client, &folder.path().join("saved"), true);
    let devices = SavedDevices::parse(&saved).unwrap();
    let stream = whole(machine, &blocks(&mut client), &devices).unwrap();
    let path = folder.path().join("stream");
    fs::write(&path, stream).unwrap();

    let destination = start(to, "tcg", machine, "-incoming defer");
    let mut client = destination.client();
    client.execute("stop", json!({})).unwrap();
    let uri = format!("exec:cat {}", path.display());
    client
        .execute("migrate-incoming", json!({ "uri": uri }))
        .unwrap();
    let mut status = json!(null);
    eventually("the end of the load", || {
        let info = client.execute("query-migrate", json!({}));
        status = info.unwrap_or_else(|error| panic!("{error}: {}", destination.errors()));
        let status = status["status"].as_str().unwrap_or("none");
        status == "completed" || status == "failed"
    });
    assert_eq!(status["status"], "completed", "{}", destination.errors());
    eventually("the state paused", || {
        client.execute("query-status", json!({})).unwrap()["status"] == "paused"
    });
    client.execute("cont", json!({})).unwrap();
    print_always(&format!("{machine}: {} -> {}", from.label, to.label));
}

/// Nothing in `xen-save-devices-state` checks for this: QEMU ends with a segmentation fault.
#[test]
fn a_device_that_cannot_be_migrated_is_reported_as_a_blocker() {
    with_each(|program| {
        let nvme = "-blockdev null-co,read-zeroes=on,node-name=n9 -device nvme,serial=1,drive=n9";
        let qemu = start(program, "tcg", "q35", nvme);
        let info = qemu.execute("query-migrate", json!({}));
        let reasons = info["blocked-reasons"].to_string();
        assert!(reasons.contains("nvme"), "{info}");
    });
}
