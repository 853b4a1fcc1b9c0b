//! The comparison with devices that a guest has used: their rings, counters and queues are not
//! those of a reset.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use hikkoshi_lab::{
    Device, Disk, DiskBus, DiskContent, DiskFormat, DiskImage, GuestNetwork, GuestReport, Lab,
    QemuVersion, VmConfig, Workload,
};
use hikkoshi_qemu::qmp::Client;
use serde_json::json;

use super::compare::Compared;

const LONG: Duration = Duration::from_secs(120);

/// The server's port in the guest.
const PORT: u16 = 7000;

/// Ends of the names of the sections of the devices that the guest uses.
const SAVED: [&str; 11] = [
    "virtio-gpu",
    "xhci",
    "usb-ptr",
    "e1000e",
    "virtio-net",
    "virtio-rng",
    "virtio-balloon",
    "virtio-console",
    "tpm-crb",
    "ahci",
    "cpu",
];

#[test]
#[ignore = "needs `make guest-devices`: part of `make matrix`"]
fn the_state_of_used_devices_is_the_one_of_qemus_own_migration() {
    for version in QemuVersion::ALL {
        for machine in ["pc-i440fx-7.2", "pc-q35-7.2"] {
            compare_used(version, machine);
        }
    }
}

fn compare_used(version: QemuVersion, machine: &str) {
    let lab = Lab::new().unwrap();
    let network = GuestNetwork::new().unwrap();
    let content = DiskContent::FileSystem {
        mib: 24,
        blocks_mib: 4,
    };
    let image = DiskImage::new(&lab, "disk", DiskFormat::Qcow2, content).unwrap();
    let devices = [
        Device::VirtioVga,
        Device::UsbTablet,
        Device::E1000e,
        Device::VirtioNet { queues: 4 },
        Device::VirtioRng,
        Device::VirtioBalloon,
        Device::VirtioSerial,
        Device::Tpm,
    ];
    let config = VmConfig::new().version(version).machine(machine);
    let config = devices
        .into_iter()
        .fold(config.all_drivers().unwrap(), VmConfig::device)
        .workload(Workload::verify(16).rate(1000).with_server(PORT))
        .file_system(Disk::new(image).bus(DiskBus::Ahci))
        .nic(network.nic())
        .namespace(network.source())
        // Otherwise it is the host's clock, which runs on between two saves.
        .arguments(["-rtc", "clock=vm"]);
    let vm = config.start(&lab, "guest").unwrap();
    vm.wait_ready().unwrap();

    // The card, the balloon and the tablet; the drivers of the random number generator and of the
    // TPM use these by themselves.
    let server = network
        .client()
        .run(|| TcpStream::connect((GuestNetwork::GUEST, PORT)).unwrap());
    let mut server = server.unwrap();
    let mut answers = BufReader::new(server.try_clone().unwrap());
    let mut client = Client::connect(vm.qmp_path(), Duration::from_secs(20)).unwrap();
    for mib in [200u64, 256] {
        let balloon = json!({ "value": mib << 20 });
        client.execute("balloon", balloon).unwrap();
        let moved = json!([{ "type": "abs", "data": { "axis": "x", "value": 64 * mib } }]);
        let arguments = json!({ "events": moved });
        client.execute("input-send-event", arguments).unwrap();
        for number in 0..100 {
            server.write_all(format!("{number}\n").as_bytes()).unwrap();
            answers.read_line(&mut String::new()).unwrap();
        }
    }
    let first = vm.console().len();
    let worked = |report: &GuestReport| match report {
        GuestReport::Disk(work) if work.reads > 0 => Some(work.ok),
        _ => None,
    };
    let ok = vm.wait_report("work on the disk", first, LONG, worked);
    assert!(ok.unwrap());
    let compared = Compared {
        label: &format!("QEMU {version}, {machine}, used devices"),
        accelerator: "tcg",
        expected: &SAVED,
    };
    compared.assert_same(&mut client);
}
