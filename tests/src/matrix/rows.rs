//! The rows of the matrix.

use super::Row;
use super::network::Card;
use super::probe::Probed;
use hikkoshi_account::Side;
use hikkoshi_lab::QemuVersion::{V7_2, V10_0, V11_1};
use hikkoshi_lab::{
    Device, DiskBus, Firmware, HugePageSize, QemuVersion, Ram, RamBackend, VmConfig, Workload,
};

/// The memory of each guest, MiB.
const MIB: u64 = 256;

const FILE: RamBackend = RamBackend::File { share: true };
const MEMFD: RamBackend = RamBackend::MEMFD;
const PRIVATE_FILE: RamBackend = RamBackend::File { share: false };
const PRIVATE_MEMFD: RamBackend = memfd(false, true, None);

const fn memfd(share: bool, seal: bool, huge: Option<HugePageSize>) -> RamBackend {
    RamBackend::Memfd { share, seal, huge }
}

/// All rows.
pub fn rows() -> Vec<Row> {
    [
        memory(),
        machines(),
        processors(),
        kvm(),
        disks(),
        devices(),
    ]
    .concat()
}

/// What can be moved: an absent page of a file on a disk does not fault, so post-copy needs other
/// memory at the destination.
fn expected(row: Row, source: RamBackend, destination: RamBackend) -> Row {
    let part = "neither on tmpfs nor on hugetlbfs";
    match (source, destination) {
        (_, RamBackend::DiskFile { .. }) => row.only_precopy(part),
        (RamBackend::DiskFile { .. }, _) => row.back_by_precopy(),
        _ => row,
    }
}

/// A guest that moves between these kinds of memory.
fn between(name: &str, source: Ram, destination: Ram) -> Row {
    let (from, to) = (source.backend(), destination.backend());
    let row = Row::new(name, VmConfig::new().ram(source)).to(|config| config.ram(destination));
    expected(row, from, to)
}

/// A guest with this kind of memory on both sides.
fn both(name: &str, ram: Ram) -> Row {
    between(name, ram.clone(), ram)
}

fn memory() -> Vec<Row> {
    use RamBackend::{Anonymous, Default, DiskFile, SharedAnonymous};
    let huge = |share| RamBackend::Hugetlbfs {
        size: HugePageSize::Mib2,
        share,
    };
    let one = |backend| Ram::new(backend, MIB);
    let mut rows: Vec<_> = [
        FILE,
        Default,
        Anonymous,
        SharedAnonymous,
        MEMFD,
        PRIVATE_MEMFD,
        memfd(true, false, None),
        memfd(true, true, Some(HugePageSize::Mib2)),
        memfd(false, true, Some(HugePageSize::Mib2)),
        PRIVATE_FILE,
        DiskFile { share: true },
        DiskFile { share: false },
        huge(true),
        huge(false),
    ]
    .into_iter()
    .map(|backend| both("memory", one(backend)))
    .collect();
    let named = |backend| one(backend).default_name();
    rows.extend([
        between("mixed memory", one(Default), named(FILE)),
        between("mixed memory", named(FILE), one(Default)),
        between("mixed memory", one(Default), named(PRIVATE_MEMFD)),
        between("mixed memory", one(Anonymous), one(MEMFD)),
        between("mixed memory", one(FILE), one(Anonymous)),
        between(
            "mixed memory",
            one(DiskFile { share: true }),
            one(Anonymous),
        ),
        between(
            "mixed memory",
            one(Anonymous),
            one(DiskFile { share: true }),
        ),
        between("mixed memory", one(huge(true)), one(Anonymous)),
        between("mixed memory", one(PRIVATE_FILE), one(huge(true))),
        both("memory filled at start", one(Anonymous).prealloc()),
        both("memory filled at start", one(FILE).prealloc()).sample(),
        both("locked memory", one(Anonymous).locked()),
        both("locked memory", one(FILE).locked()),
    ]);
    let numa = |backend| Ram::new(backend, 0).numa(&[128, 192]);
    let dimm = |backend| Ram::new(backend, 192).dimm(128);
    let hot = |backend| Ram::new(backend, 224).hot_dimm(128);
    // More than the machine boots with; the kernel uses some 100 MiB of that.
    let growing = || Workload::verify(32).rate(20_000).grow(4, 144);
    // More than one node has.
    let large = || Workload::verify(136).rate(20_000);
    rows.extend([
        both("NUMA nodes", numa(Anonymous)).workload(large()),
        between("NUMA nodes", numa(MEMFD), numa(Anonymous)).workload(large()),
        both("DIMM", dimm(Anonymous)).workload(large()),
        both("hot-plugged DIMM", hot(FILE)).workload(growing()),
        both("hot-plugged DIMM", hot(Anonymous)).workload(growing()),
        between("hot-plugged DIMM", hot(MEMFD), hot(Anonymous)).workload(growing()),
    ]);
    rows
}

/// Private memory, as with `-m` alone, and a move from the older QEMU to the newer one.
fn upgraded(row: Row) -> Row {
    row.both(|config| config.version(V7_2).ram(Ram::new(RamBackend::Default, MIB)))
        .to(|config| config.version(V10_0))
}

/// QEMU 11.1 with its own machine type and private memory.
fn newest(row: Row) -> Row {
    row.both(|config| {
        let config = config.version(V11_1).machine("pc-q35-11.1");
        config.ram(Ram::new(RamBackend::Default, MIB))
    })
}

/// This guest; the same on the other machine type with private memory and two QEMU versions; and
/// the same on the newest machine type.
fn in_all_versions(row: Row) -> [Row; 3] {
    let other = upgraded(row.clone()).both(|config| config.machine("pc-i440fx-7.2"));
    [row.clone(), other, newest(row)]
}

fn machines() -> Vec<Row> {
    let of = |machine| VmConfig::new().machine(machine);
    let uefi = |machine| of(machine).firmware(Firmware::Ovmf);
    let mut rows = vec![
        Row::new("SeaBIOS, VGA", of("pc-i440fx-7.2").device(Device::Vga)),
        Row::new("SeaBIOS, VGA", of("pc-q35-7.2").device(Device::Vga)),
        Row::new("UEFI", uefi("pc-q35-7.2")),
        Row::new("UEFI, VGA", uefi("pc-i440fx-7.2").device(Device::Vga)),
        upgraded(Row::new("UEFI", uefi("pc-q35-7.2"))),
        upgraded(Row::new(
            "UEFI, VGA",
            uefi("pc-i440fx-7.2").device(Device::Vga),
        )),
        newest(Row::new("UEFI", uefi("pc-q35-7.2"))),
        newest(Row::new(
            "SeaBIOS, VGA",
            of("pc-q35-7.2").device(Device::Vga),
        ))
        .both(|config| config.machine("pc-i440fx-11.1")),
        Row::new("SeaBIOS, VGA", of("pc-q35-10.0").device(Device::Vga)),
        Row::new("no disk", of("microvm,acpi=off")).without_disk(),
        Row::new("virtio-mmio", of("microvm")).bus(DiskBus::VirtioMmio),
    ];
    let versions: [[QemuVersion; 2]; 6] = [
        [V7_2, V7_2],
        [V7_2, V10_0],
        [V10_0, V7_2],
        [V11_1, V11_1],
        [V10_0, V11_1],
        [V11_1, V10_0],
    ];
    for backend in [FILE, RamBackend::Anonymous] {
        for machine in ["pc-i440fx-7.2", "pc-q35-7.2"] {
            for [from, to] in versions {
                let config = of(machine).version(from).ram(Ram::new(backend, MIB));
                rows.push(Row::new("QEMU versions", config).to(|config| config.version(to)));
            }
        }
    }
    rows
}

fn processors() -> Vec<Row> {
    let mut rows: Vec<_> = [1, 2, 4]
        .into_iter()
        .map(|cpus| {
            let workload = Workload::verify(32).threads(cpus).rate(20_000);
            let config = VmConfig::new().cpus(cpus);
            let row = Row::new(format!("processors: {cpus}"), config).workload(workload);
            row.probe(Probed::Processors(cpus))
        })
        .collect();
    let plugged = Row::new("hot-plugged processors: 3", VmConfig::new()).hot_cpus(3);
    rows.extend(in_all_versions(plugged.probe(Probed::Processors(4))));
    rows
}

/// The nano guest, which has neither a disk nor drivers.
fn kvm() -> Vec<Row> {
    let guest = |machine| VmConfig::new().machine(machine).kvm().nano();
    let with_memory =
        |config: VmConfig, ram| Row::new("KVM, nano guest", config.ram(ram)).without_disk();
    let row = |config, backend| with_memory(config, Ram::new(backend, MIB));
    let (size, share) = (HugePageSize::Mib2, true);
    // The guest does not use them, but their state goes through KVM's machine.
    let devices = guest("pc-q35-7.2")
        .device(Device::Vga)
        .device(Device::VirtioNet { queues: 1 })
        .device(Device::UsbTablet);
    let from_disk = row(guest("pc-q35-7.2"), RamBackend::DiskFile { share: true });
    let to_private = |config: VmConfig| config.ram(Ram::new(RamBackend::Anonymous, MIB));
    vec![
        from_disk.to(to_private).back_by_precopy(),
        row(guest("pc-q35-7.2"), RamBackend::Default),
        row(guest("pc-q35-7.2"), FILE),
        row(guest("pc-i440fx-7.2"), MEMFD),
        row(guest("pc-i440fx-7.2").version(V7_2), RamBackend::Default),
        upgraded(row(guest("pc-q35-7.2"), FILE)),
        row(guest("pc-q35-7.2"), RamBackend::Hugetlbfs { size, share }),
        row(guest("pc-q35-7.2"), PRIVATE_FILE),
        with_memory(
            guest("pc-q35-7.2"),
            Ram::new(RamBackend::Anonymous, 192).dimm(128),
        ),
        Row::new("KVM, nano guest, VGA, virtio-net, USB tablet", devices).without_disk(),
        Row::new("KVM, nano guest, 4 processors", guest("pc-q35-7.2").cpus(4)).without_disk(),
    ]
}

fn disks() -> Vec<Row> {
    let row = |name| Row::new(name, VmConfig::new());
    let nvme = row("NVMe").bus(DiskBus::Nvme);
    // QEMU itself migrates it only in newer versions.
    let refused = nvme.clone().refused(Side::Source, "non-migratable device");
    let nvme = nvme.all_drivers();
    let rows = [
        row("virtio-scsi").bus(DiskBus::VirtioScsi).all_drivers(),
        row("AHCI").bus(DiskBus::Ahci).all_drivers(),
        row("USB storage").bus(DiskBus::Usb).all_drivers(),
    ];
    let rows = rows.into_iter().flat_map(in_all_versions);
    let [older, upgraded, _] = in_all_versions(refused);
    let newest = [
        nvme.clone().both(|config| config.version(V11_1)),
        newest(nvme),
    ];
    rows.chain([older, upgraded]).chain(newest).collect()
}

fn devices() -> Vec<Row> {
    let with = |name, device| Row::new(name, VmConfig::new().device(device)).all_drivers();
    let card =
        |name, model, queues| Row::new(name, VmConfig::new()).clients(Card { model, queues });
    // The driver of the TPM is part of every kernel.
    let tpm = Row::new("TPM emulator", VmConfig::new().device(Device::Tpm)).probe(Probed::Tpm);
    let [tpm, upgraded_tpm, newest_tpm] = in_all_versions(tpm);
    let others = [
        with("VGA", Device::Vga).probe(Probed::Screen),
        with("virtio-vga", Device::VirtioVga).probe(Probed::Screen),
        with("virtio-gpu", Device::VirtioGpu).probe(Probed::Screen),
        with("USB tablet", Device::UsbTablet).probe(Probed::Tablet),
        card("e1000e", "e1000e", 1).all_drivers(),
        card("virtio-net, 4 queues", "virtio-net-pci", 4),
        with("virtio-rng", Device::VirtioRng).probe(Probed::Random),
        with("virtio-balloon", Device::VirtioBalloon).probe(Probed::Balloon),
        with("virtio-serial", Device::VirtioSerial).probe(Probed::Port),
        with("vhost-vsock", Device::VhostVsock)
            .requires("/dev/vhost-vsock", "the host's kernel has no vhost-vsock"),
    ];
    let others = others.into_iter().flat_map(in_all_versions);
    // Older ones do not have it; the guest has no driver for it.
    let rtc = newest(Row::new(
        "virtio-rtc",
        VmConfig::new().device(Device::VirtioRtc),
    ));
    [tpm, upgraded_tpm.sample(), newest_tpm, rtc]
        .into_iter()
        .chain(others)
        .collect()
}
