//! Tests that all RAM blocks of the installed QEMUs are found.

#![allow(clippy::unwrap_used)] // A failure is the message.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_lab::{HugePageSize, HugePages, QemuVersion};
use hikkoshi_linux::Process;
use hikkoshi_pages::PageRange;

use super::file::{FileSystem, Kind};
use super::{FoundRam, RamErrors, addresses, blocks, find_blocks};
use crate::process;
use crate::process::reopen::FileAccess;
use crate::qmp::human_monitor::human;
use crate::qmp::{Client, wait_until_started};

const MIB: u64 = 1 << 20;

/// Devices with memory of their own; three ROMs have the same size, and two of them the
/// same region name.
const DEVICES: &str = "-nic none -device virtio-net-pci,addr=5 -device virtio-net-pci,addr=6 \
    -device e1000e,addr=7 -device bochs-display,addr=9 -device virtio-scsi-pci,addr=a";

/// A QEMU.
struct Qemu {
    child: Child,
    client: Client,
    process: Arc<Process>,
    version: QemuVersion,
    _folder: tempfile::TempDir,
}

impl Qemu {
    fn start(version: QemuVersion, run: &Path, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let child = Command::new(run)
            .args(["-accel", "tcg", "-display", "none", "-nodefaults", "-S"])
            .args(options.split_whitespace())
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", path.display()))
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let client = loop {
            wait_until_started(&path);
            match Client::connect(&path, Duration::from_secs(20)) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < deadline, "{options}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let process = process::find(&client).unwrap();
        Self {
            child,
            client,
            process,
            version,
            _folder: folder,
        }
    }

    fn find(&mut self, access: FileAccess) -> Result<BTreeMap<String, FoundRam>, RamErrors> {
        let found = find_blocks(&mut self.client, &self.process, access)?;
        let named = found.into_iter();
        Ok(named
            .map(|found| (found.block.name.clone(), found))
            .collect())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `test` with a QEMU of each installed version with these options.
fn with_each(options: &str, mut test: impl FnMut(&mut Qemu)) {
    let mut tried = 0;
    for version in QemuVersion::ALL {
        let Ok(run) = version.runner() else { continue };
        tried += 1;
        test(&mut Qemu::start(version, &run, options));
    }
    assert!(tried > 0, "no QEMU has been set up: run make setup");
}

/// The first `bytes` bytes of a block.
fn read(found: &FoundRam, from: u64, bytes: usize) -> Vec<u8> {
    let block = hikkoshi_pages::RamBlock::new("x", found.block.total, found.block.page_size);
    assert!(found.memory.backing.private().is_some());
    let memory = found.memory.backing.private().unwrap();
    let own = hikkoshi_memory::PrivateMemory::open(
        Arc::clone(memory.process()),
        found.address,
        found.block.total,
        false,
    );
    let layout = hikkoshi_pages::RamLayout::new(vec![block]).unwrap();
    let ram = hikkoshi_memory::GuestRam::new(layout, vec![own.unwrap()]).unwrap();
    let page = ram.layout().page_at(0, from / 4096 * 4096).unwrap();
    let mut buffer = vec![0; 4096];
    ram.read(PageRange::from_len(page, 1), &mut buffer).unwrap();
    let from = usize::try_from(from % 4096).unwrap();
    buffer[from..from + bytes].to_vec()
}

#[test]
fn the_method_for_old_versions_finds_the_addresses_that_new_ones_print() {
    let mut compared = 0;
    for machine in [
        "-machine pc -vga std",
        "-machine q35 -device virtio-vga",
        "-machine pc -vga cirrus -m 5G",
        "-machine q35 -device virtio-gpu-pci -device VGA",
        "-machine microvm",
    ] {
        let devices = if machine.contains("microvm") {
            ""
        } else {
            DEVICES
        };
        with_each(&format!("{machine} {devices}"), |qemu| {
            let client = &mut qemu.client;
            let blocks = blocks::list(client).unwrap();
            let mtree = human(client, "info mtree -f -o").unwrap();
            let areas = process::areas(&qemu.process).unwrap();
            let found =
                addresses::find_unprinted(client, &qemu.process, &blocks, &areas, &mtree).unwrap();
            for (block, found) in blocks.iter().zip(found) {
                if let Some(printed) = block.host {
                    assert_eq!(printed, found, "{machine}: {block:?}");
                    compared += 1;
                }
            }
        });
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn blocks_of_the_same_size_are_told_apart() {
    with_each(&format!("-machine q35 {DEVICES}"), |qemu| {
        let found = qemu.find(FileAccess::Read).unwrap();
        for (name, device) in [
            ("0000:00:05.0/virtio-net-pci.rom", 0x1000_1af4u32),
            ("0000:00:06.0/virtio-net-pci.rom", 0x1000_1af4),
            ("0000:00:07.0/e1000e.rom", 0x10d3_8086),
        ] {
            let rom = &found[name];
            assert_eq!(rom.block.total, 0x4_0000);
            assert!(matches!(rom.memory.kind, Kind::Anonymous));
            // The ROM says for which device it is (PCI Firmware Specification, 5.1).
            assert_eq!(read(rom, 0, 2), [0x55, 0xaa], "{name}");
            let data = read(rom, 0x18, 2);
            let data = u64::from(u16::from_le_bytes(data.try_into().unwrap()));
            assert_eq!(read(rom, data, 4), *b"PCIR", "{name}");
            let numbers = read(rom, data + 4, 4);
            let numbers = u32::from_le_bytes(numbers.try_into().unwrap());
            assert_eq!(numbers, device, "{name}");
        }
    });
}

#[test]
fn every_kind_of_memory_is_told_apart() {
    let _pages = HugePages::reserve(HugePageSize::Mib2, 64).unwrap();
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let ram = |kind: &str, more: &str| {
        format!(
            "-machine q35,memory-backend=ram -m 64M -object memory-backend-{kind},id=ram,size=64M{more}"
        )
    };
    let path = |name: &str| {
        let path = shm.path().join(name);
        std::fs::File::create(&path)
            .unwrap()
            .set_len(64 * MIB)
            .unwrap();
        format!(",mem-path={}", path.display())
    };
    let cases = [
        ("-machine pc -m 64".to_owned(), "anonymous"),
        (ram("ram", ""), "anonymous"),
        (ram("ram", ",prealloc=on"), "anonymous"),
        (ram("ram", "") + " -overcommit mem-lock=on", "anonymous"),
        (ram("ram", ",share=on"), "shared Tmpfs"),
        (ram("memfd", ",share=on"), "shared Tmpfs"),
        (ram("memfd", ",share=on,seal=on"), "shared Tmpfs"),
        (ram("memfd", ",share=off"), "private Tmpfs"),
        (
            ram("memfd", ",share=on,hugetlb=on,hugetlbsize=2M"),
            "shared Huge",
        ),
        (
            ram("memfd", ",share=off,hugetlb=on,hugetlbsize=2M"),
            "private Huge",
        ),
        (
            ram("file", &format!(",share=on{}", path("a"))),
            "shared Tmpfs",
        ),
        (
            ram("file", &format!(",share=off{}", path("b"))),
            "private Tmpfs",
        ),
    ];
    for (options, expected) in cases {
        with_each(&options, |qemu| {
            let found = qemu.find(FileAccess::Read);
            let found = found.unwrap_or_else(|error| panic!("{options}: {error:?}"));
            let main: Vec<_> = found
                .values()
                .filter(|found| !found.guest.is_empty())
                .collect();
            assert_eq!(main.len(), 1, "{options}");
            assert_eq!(main[0].block.total, 64 * MIB);
            let system = |system: FileSystem| format!("{system:?}");
            let kind = match &main[0].memory.kind {
                Kind::Anonymous => "anonymous".to_owned(),
                Kind::Shared(file) => format!("shared {}", system(file.system)),
                Kind::Private(file) => format!("private {}", system(file.system)),
            };
            assert_eq!(kind, expected, "{options}, {}", qemu.version.label());
            let page = if expected.ends_with("Huge") {
                2 * MIB
            } else {
                4096
            };
            assert_eq!(main[0].block.page_size, page, "{options}");
            // The others are blocks of firmware.
            assert!(found.len() > 3, "{options}");
            for other in found.values().filter(|found| found.guest.is_empty()) {
                assert!(matches!(other.memory.kind, Kind::Anonymous), "{options}");
            }
        });
    }
}

#[test]
fn numa_nodes_and_a_plugged_dimm() {
    let options = "-machine q35 -m 128M,slots=2,maxmem=1G -smp 2 \
        -object memory-backend-ram,id=node0,size=64M -object memory-backend-memfd,id=node1,size=64M \
        -numa node,memdev=node0 -numa node,memdev=node1";
    with_each(options, |qemu| {
        use serde_json::json;
        let client = &mut qemu.client;
        // A backend that is not plugged in is not the guest's.
        for id in ["spare", "plugged"] {
            client
                .execute(
                    "object-add",
                    json!({"qom-type": "memory-backend-ram", "id": id, "size": 128 * MIB}),
                )
                .unwrap();
        }
        client
            .execute(
                "device_add",
                json!({"driver": "pc-dimm", "id": "dimm0", "memdev": "plugged"}),
            )
            .unwrap();
        let found = qemu.find(FileAccess::Read).unwrap();
        let main = |name: &str| &found[name].guest;
        assert_eq!(main("node0")[0].gpa, 0);
        assert_eq!(main("node1")[0].gpa, 64 * MIB);
        assert!(main("plugged")[0].gpa >= 4 << 30);
        assert!(!found.contains_key("spare"));
    });
}
