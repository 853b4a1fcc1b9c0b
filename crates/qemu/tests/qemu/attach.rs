//! Tests finding QEMU's process and the guest's memory, with real QEMUs.

use std::os::unix::fs::FileExt;

use hikkoshi_engine::{DestinationGuest, SourceGuest};
use hikkoshi_lab::{HugePageSize, HugePages};
use hikkoshi_pages::{GuestRange, RamBlock};

use crate::support::{FIRMWARE, Mounted, Qemu, RamPath, eventually, options, usual, with_each};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn range(gpa: u64, offset: u64, bytes: u64) -> GuestRange {
    GuestRange { gpa, offset, bytes }
}

/// The blocks of main memory.
fn blocks(source: &impl SourceGuest) -> Vec<RamBlock> {
    source
        .ram()
        .layout()
        .blocks()
        .map(|(block, _)| block.clone())
        .filter(|block| !block.guest.is_empty())
        .collect()
}

#[test]
fn one_backend() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "-smp 2 -cpu qemu64 -vga std");
        let before = qemu.traces();
        let source = qemu.source();
        assert_eq!(source.pid(), qemu.pid());
        assert_eq!(
            blocks(&source),
            [RamBlock {
                id: "ram".into(),
                bytes: 32 * MIB,
                host_page: 4096,
                guest: vec![range(0, 0, 32 * MIB)],
            }]
        );
        let description = source.describe();
        let machine = format!("pc-q35-{}", program.label);
        assert_eq!(description.machine, machine);
        assert_eq!(description.architecture, "x86_64");
        assert_eq!(description.cpus, 2);
        assert!(description.cpu_model.starts_with("qemu64 ("));
        let version = format!("QEMU {}.", program.label);
        assert!(description.hypervisor.starts_with(&version));
        assert!(description.running);
        // The file is the guest's memory: QEMU reads there what we wrote.
        let file = std::fs::File::options()
            .write(true)
            .open(&qemu.ram.0)
            .unwrap();
        file.write_all_at(b"from the file", 16 * MIB).unwrap();
        let mut found = [0; 4096];
        let page = source.ram().layout().page_at(0, 16 * MIB).unwrap();
        source
            .ram()
            .read(hikkoshi_pages::PageRange::from_len(page, 1), &mut found)
            .unwrap();
        assert_eq!(&found[..13], b"from the file");
        drop(source);
        let read = qemu.human("xp /13c 0x1000000");
        assert!(read.contains("'f' 'r' 'o' 'm'"), "{read}");
        assert_eq!(qemu.traces(), before);
    });
}

#[test]
fn the_guest_addresses_do_not_depend_on_the_guests_state() {
    with_each(|program| {
        // After reset, and after the firmware has changed the memory map.
        let fresh = Qemu::usual(program, "-S -vga std");
        let used = Qemu::usual(program, &format!("-vga std {FIRMWARE}"));
        eventually("the firmware write-protects its copy", || {
            let view = used.human("info mtree -f");
            view.contains("rom): ram")
        });
        let fresh = fresh.source();
        let used = used.source();
        assert_eq!(blocks(&fresh), blocks(&used));
        assert!(!fresh.describe().running);
    });
}

#[test]
fn numa_backends_a_dimm_and_a_folder_as_path() {
    with_each(|program| {
        let (first, second, dimm) = (RamPath::new(), RamPath::new(), RamPath::new());
        // The files are sparse: the gigabytes are not allocated.
        let line = format!(
            "-m 4096,slots=2,maxmem=8G -machine q35 \
             -object memory-backend-file,id=dimm-memory,size=256M,mem-path={},share=on \
             -object memory-backend-file,id=node1,size=2G,mem-path=/dev/shm,share=on \
             -object memory-backend-file,id=node0,size=2G,mem-path={},share=on \
             -numa node,memdev=node0 -numa node,memdev=node1 \
             -device pc-dimm,id=dimm0,memdev=dimm-memory -S",
            dimm.as_str(),
            first.as_str(),
        );
        let mut qemu = Qemu::start(program, second, &options(&line));
        qemu.keep(first);
        qemu.keep(dimm);
        let source = qemu.source();
        let found = blocks(&source);
        let ids: Vec<_> = found.iter().map(|block| block.id.as_str()).collect();
        assert_eq!(ids, ["node0", "node1", "dimm-memory"], "by guest address");
        assert_eq!(found[0].guest, [range(0, 0, 2 * GIB)]);
        assert_eq!(found[1].guest, [range(4 * GIB, 0, 2 * GIB)]);
        assert_eq!(found[2].guest, [range(6 * GIB, 0, 256 * MIB)]);
    });
}

#[test]
fn a_backend_on_both_sides_of_the_hole_and_a_removed_file() {
    with_each(|program| {
        let ram = RamPath::new();
        let mut all = usual(3072, &ram);
        all.push("-S".into());
        let qemu = Qemu::start(program, ram, &all);
        std::fs::remove_file(&qemu.ram.0).unwrap();
        // Another file of that name must not be mistaken for it.
        for replaced in [false, true] {
            if replaced {
                std::fs::write(&qemu.ram.0, b"something else").unwrap();
            }
            let source = qemu.source();
            assert_eq!(
                blocks(&source)[0].guest,
                [range(0, 0, 2 * GIB), range(4 * GIB, 2 * GIB, GIB)]
            );
            let file = source.ram().backings()[0]
                .file()
                .unwrap()
                .file()
                .metadata()
                .unwrap();
            assert_eq!(file.len(), 3 * GIB);
        }
    });
}

#[test]
fn a_part_of_a_file() {
    with_each(|program| {
        if program.is_old() {
            // The backend's offset exists since QEMU 8.1.
            return;
        }
        let ram = RamPath::new();
        std::fs::File::create(&ram.0)
            .unwrap()
            .set_len(80 * MIB)
            .unwrap();
        let line = format!(
            "-m 64 -machine q35 -numa node,memdev=a -numa node,memdev=b -S \
             -object memory-backend-file,id=a,size=32M,mem-path={0},share=on,offset=48M \
             -object memory-backend-file,id=b,size=32M,mem-path={0},share=on,offset=16M",
            ram.as_str()
        );
        let qemu = Qemu::start(program, ram, &options(&line));
        let source = qemu.source();
        let offsets: Vec<_> = source
            .ram()
            .backings()
            .iter()
            .filter_map(|backing| Some(backing.file()?.offset()))
            .collect();
        assert_eq!(offsets, [48 * MIB, 16 * MIB]);
    });
}

#[test]
fn huge_pages_both_named_and_in_a_folder() {
    let _pages = HugePages::reserve(HugePageSize::Mib2, 64).unwrap();
    let mount = Mounted::new("hugetlbfs", "pagesize=2M");
    with_each(|program| {
        for named in [true, false] {
            let ram = RamPath::in_folder(mount.path());
            let path = if named {
                ram.as_str()
            } else {
                mount.path().to_str().unwrap()
            };
            let line = format!(
                "-m 64 -machine q35,memory-backend=ram -incoming defer \
                 -object memory-backend-file,id=ram,size=64M,mem-path={path},share=on"
            );
            let qemu = Qemu::start(program, ram, &options(&line));
            let destination = qemu.destination();
            assert_eq!(destination.describe().blocks[0].host_page, 2 * MIB);
        }
    });
}
