//! `xen-save-devices-state`, and the stream that `stream` writes around it, with real QEMUs.

mod asynchronous_faults;
mod compare;
mod used_devices;
mod walk;

use std::fs;
use std::path::Path;
use std::time::Duration;

use hikkoshi_lab::TpmEmulator;
use hikkoshi_qemu::qmp::Client;
use hikkoshi_qemu::stream::{SavedDevices, Section, whole};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    Program, Qemu, RamPath, eventually, options, print_always, versions, with_each,
};

use compare::{Compared, blocks, headers, save};

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

/// Flash, devices that exclude one of the others, and a card with four queues: those need a tap,
/// which QEMU creates. A TPM is added.
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

/// The devices that one machine can have.
#[derive(Clone, Copy, Debug)]
enum Devices {
    /// [`DEVICES`].
    Most,
    /// [`MORE_DEVICES`].
    Others,
}

impl Devices {
    const ALL: [Self; 2] = [Self::Most, Self::Others];

    /// Ends of the names of sections that they save.
    fn saved(self) -> &'static [&'static str] {
        match self {
            Self::Most => &SAVED,
            Self::Others => &MORE_SAVED,
        }
    }
}

/// A machine, and the TPM emulator that it may need.
#[derive(Debug)]
struct Machine {
    qemu: Qemu,
    _tpm: Option<(TpmEmulator, TempDir)>,
}

impl Machine {
    fn start(
        program: &Program,
        accelerator: &str,
        machine: &str,
        devices: Devices,
        more: &str,
    ) -> Self {
        let (line, tpm) = match devices {
            Devices::Most => (format!("-machine {machine} {DEVICES} {more}"), None),
            Devices::Others => {
                let folder = tempfile::tempdir().unwrap();
                let tpm = TpmEmulator::start(folder.path(), "tpm").unwrap();
                let line = format!("-machine {machine},{FLASH} {MORE_DEVICES} {more}");
                (line, Some((tpm, folder)))
            }
        };
        let mut line = options(&format!("-m 16 {line}"));
        if let Some((tpm, _)) = &tpm {
            line.extend_from_slice(tpm.arguments());
        }
        Self {
            qemu: Qemu::start_under(program, accelerator, RamPath::new(), &line),
            _tpm: tpm,
        }
    }
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

#[test]
fn the_device_state_is_the_one_of_qemus_own_migration() {
    with_each(|program| {
        for accelerator in accelerators() {
            for machine in ["pc", "q35"] {
                for devices in Devices::ALL {
                    let machine_with = Machine::start(program, accelerator, machine, devices, "");
                    // The firmware has run for a while.
                    std::thread::sleep(Duration::from_millis(700));
                    let compared = Compared {
                        label: &format!("QEMU {}, {machine}, {devices:?}", program.label),
                        accelerator,
                        expected: devices.saved(),
                    };
                    compared.assert_same(&mut machine_with.qemu.client());
                }
            }
        }
    });
}

/// With all devices, into a QEMU of the same and of the newer version.
#[test]
fn an_incoming_qemu_loads_the_stream() {
    let versions = versions();
    for (number, (label, run)) in versions.iter().enumerate() {
        for (to_label, to_run) in &versions[number..] {
            for machine in ["pc-i440fx-7.2", "pc-q35-7.2"] {
                let program = |label: &String, run: &Path| Program {
                    label: label.clone(),
                    run: run.to_owned(),
                };
                let (from, to) = (program(label, run), program(to_label, to_run));
                for devices in Devices::ALL {
                    load(&from, &to, machine, devices);
                }
            }
        }
    }
}

fn load(from: &Program, to: &Program, machine: &str, devices: Devices) {
    let what = format!("{machine}, {devices:?}: {} -> {}", from.label, to.label);
    let source = Machine::start(from, "tcg", machine, devices, "");
    let mut client = source.qemu.client();
    client.execute("stop", json!({})).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let saved = save(&mut client, &folder.path().join("saved"), true);
    let saved = SavedDevices::parse(&saved).unwrap();
    let stream = whole(machine, &blocks(&mut client), &saved).unwrap();
    let path = folder.path().join("stream");
    fs::write(&path, stream).unwrap();

    let destination = Machine::start(to, "tcg", machine, devices, "-incoming defer");
    let destination = &destination.qemu;
    let mut client = destination.client();
    client.execute("stop", json!({})).unwrap();
    let uri = format!("exec:cat {}", path.display());
    client
        .execute("migrate-incoming", json!({ "uri": uri }))
        .unwrap();
    let mut status = json!(null);
    eventually("the end of the load", || {
        let info = client.execute("query-migrate", json!({}));
        status = info.unwrap_or_else(|error| panic!("{what}: {error}: {}", destination.errors()));
        let status = status["status"].as_str().unwrap_or("none");
        status == "completed" || status == "failed"
    });
    let errors = destination.errors();
    assert_eq!(status["status"], "completed", "{what}: {errors}");
    let status = |client: &mut Client| client.execute("query-status", json!({})).unwrap();
    eventually("the state paused", || {
        status(&mut client)["status"] == "paused"
    });
    // What was loaded is saved again.
    let again = save(&mut client, &folder.path().join("again"), false);
    let again = SavedDevices::parse(&again).unwrap().sections().unwrap();
    compare_loaded(&what, saved.sections().unwrap(), again.clone());
    client.execute("cont", json!({})).unwrap();
    let running = status(&mut client);
    assert_eq!(running["status"], "running", "{what}: {running}");
    client.execute("stop", json!({})).unwrap();
    let after = save(&mut client, &folder.path().join("after"), false);
    let after = SavedDevices::parse(&after).unwrap().sections().unwrap();
    assert_eq!(headers(&again), headers(&after), "{what}: after it ran");
    print_always(&what);
}

/// Ends of the names of sections that the destination saves otherwise than it has loaded them, and
/// why.
const LOADED_OTHERWISE: [(&str, &str); 4] = [
    (
        "virtio-gpu",
        "has the device's configuration, which has one more field in QEMU 11.1",
    ),
    (
        "e1000e",
        "has the sizes of receive buffers, which QEMU 11.1 derives from a register when it loads",
    ),
    (
        "tpm-emulator",
        "the TPM's clock is that of its emulator, which is not paused with the guest",
    ),
    (
        "globalstate",
        "holds the run state's name in a buffer; what is behind the name depends on the version",
    ),
];

/// Sections to which a newer destination adds a part, and why.
const LOADED_WITH_LESS: [(&str, &str); 2] = [("piix4_pm", CPU_HOTPLUG), ("ICH9LPC", CPU_HOTPLUG)];
const CPU_HOTPLUG: &str = "QEMU 11.1 always saves the registers for plugging processors; an older \
    one does so once the firmware has used them";

/// Compares the sections that were loaded with those that the destination saves. Each QEMU numbers
/// and orders them by itself.
fn compare_loaded(what: &str, mut loaded: Vec<Section<'_>>, mut again: Vec<Section<'_>>) {
    let key = |section: &Section<'_>| (section.name.to_owned(), section.instance);
    loaded.sort_by_key(key);
    again.sort_by_key(key);
    let names = |all: &[Section<'_>]| -> Vec<_> {
        let keys = all.iter().map(|section| (key(section), section.version));
        keys.collect()
    };
    assert_eq!(names(&loaded), names(&again), "{what}");
    let is_listed = |list: &[(&str, &str)], name: &str| {
        let mut listed = list.iter();
        listed.any(|(end, _)| name.ends_with(end))
    };
    let mut otherwise = Vec::new();
    for (one, other) in loaded.iter().zip(&again) {
        let added =
            is_listed(&LOADED_WITH_LESS, one.name) && is_inserted(one.payload, other.payload);
        if one.payload != other.payload && !added && !is_listed(&LOADED_OTHERWISE, one.name) {
            let bytes = one.payload.iter().zip(other.payload);
            let at = bytes.clone().position(|(one, other)| one != other);
            let lengths = [one.payload.len(), other.payload.len()];
            let differing = bytes.filter(|(one, other)| one != other).count();
            otherwise.push(format!(
                "{} {}: {lengths:?} bytes, {differing} differ, from {at:?} on",
                one.name, one.instance
            ));
        }
    }
    assert!(
        otherwise.is_empty(),
        "{what}: saved otherwise than it was loaded: {otherwise:#?}"
    );
}

/// Whether `more` is `less` with one part inserted.
fn is_inserted(less: &[u8], more: &[u8]) -> bool {
    let same = |(one, other): &(&u8, &u8)| one == other;
    let begin = less.iter().zip(more).take_while(same).count();
    let end = less
        .iter()
        .rev()
        .zip(more.iter().rev())
        .take_while(same)
        .count();
    begin + end >= less.len() && more.len() >= less.len()
}

/// Nothing in `xen-save-devices-state` checks for this: QEMU ends with a segmentation fault.
#[test]
fn a_device_that_cannot_be_migrated_is_reported_as_a_blocker() {
    with_each(|program| {
        let card = "-device usb-net,bus=usb.0";
        let machine = Machine::start(program, "tcg", "q35", Devices::Most, card);
        let info = machine.qemu.execute("query-migrate", json!({}));
        let reasons = info["blocked-reasons"].to_string();
        assert!(reasons.contains("usb-net"), "{info}");
    });
}
