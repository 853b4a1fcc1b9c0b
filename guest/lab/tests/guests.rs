//! Real machines with the test guest: every QEMU, every kind of memory, and damage that the guest
//! must detect.
#![allow(clippy::unwrap_used)] // its failure is the message

use hikkoshi_lab::{
    Device, Disk, DiskBus, DiskContent, DiskFormat, DiskImage, Firmware, GuestReport, HugePageSize,
    Lab, LabError, Pattern, QemuVersion, Ram, RamBackend, Verdict, Vm, VmConfig, Workload,
};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);
/// Accesses a second at which the guest is idle most of the time. A guest paused during an access
/// to the page that is then damaged would report other damage, or none.
const UNHURRIED: u64 = 2000;

#[test]
fn a_machine_that_another_program_started_and_nobody_waited_for_is_killed() {
    let lab = Lab::new().unwrap();
    let expected = VmConfig::new().expect(&lab, "guest").unwrap();
    let command_line = expected.command_line();
    let socket = lab.folder().join("qmp");
    let mut qemu = Command::new(&command_line[0])
        .args(&command_line[1..])
        .args(["-incoming", "defer", "-qmp"])
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        .spawn()
        .unwrap();
    // QEMU greets when it has connected to its console.
    let begun = Instant::now();
    let monitor = loop {
        match UnixStream::connect(&socket) {
            Ok(monitor) => break monitor,
            Err(_) if begun.elapsed() < LONG => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => panic!("{error}"),
        }
    };
    BufReader::new(monitor)
        .read_line(&mut String::new())
        .unwrap();
    drop(expected);
    let ended = loop {
        match qemu.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() < LONG => std::thread::sleep(Duration::from_millis(10)),
            None => {
                qemu.kill().unwrap();
                panic!("it still runs");
            }
        }
    };
    assert_eq!(ended.signal(), Some(9), "{ended}");
}

/// Boots a guest, lets it work, and makes it check every page.
fn boots_and_is_sound(version: QemuVersion, ram: Ram) {
    let lab = Lab::new().unwrap();
    let vm = VmConfig::new()
        .version(version)
        .cpus(2)
        .ram(ram.clone())
        .workload(Workload::verify(32).threads(2).grow(4, 16))
        .start(&lab, "guest")
        .unwrap();
    let ready = vm.wait_ready().unwrap();
    assert_eq!((ready.cpus, ready.threads), (2, 2), "{ready:?}");
    let verify = vm
        .wait_report("growth", 0, LONG, |report| match report {
            GuestReport::Verify(verify) if verify.pages > ready.pages => Some(verify.clone()),
            _ => None,
        })
        .unwrap();
    assert!(verify.ok && verify.latency.accesses > 0 && verify.generation > 0);
    let verdict = vm.sweep(LONG).unwrap();
    assert!(verdict.ok && verdict.pages >= verify.pages, "{verdict:?}");
    let backed: u64 = vm
        .ram_files()
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    let has_files = !vm.ram_files().is_empty();
    let expected = if has_files { ram.mib() << 20 } else { 0 };
    assert_eq!(backed, expected, "named files hold all of the memory");
    vm.send("stop").unwrap();
    assert!(vm.wait_exit(LONG).unwrap().success());
}

macro_rules! layouts {
    ($($(#[$attribute:meta])* $name:ident: $version:ident, $ram:expr;)*) => { $(
        #[test]
        $(#[$attribute])*
        fn $name() {
            boots_and_is_sound(QemuVersion::$version, $ram);
        }
    )* };
}

layouts! {
    one_file_on_7_2: V7_2, Ram::shared(256);
    dimm_on_10_0: V10_0, Ram::shared(192).dimm(128);
    anonymous: V10_0, Ram::new(RamBackend::Anonymous, 256).default_name().locked();
}

/// `make test` moves guests with most of these.
macro_rules! other_layouts {
    ($($name:ident: $version:ident, $ram:expr;)*) => {
        layouts! { $(#[ignore = "part of `make matrix`"] $name: $version, $ram;)* }
    };
}

other_layouts! {
    one_file_on_10_0: V10_0, Ram::shared(256);
    numa_on_7_2: V7_2, Ram::shared(0).numa(&[128, 192]);
    numa_on_10_0: V10_0, Ram::shared(0).numa(&[128, 192]);
    dimm_on_7_2: V7_2, Ram::shared(192).dimm(128);
    huge_pages_on_7_2: V7_2, Ram::huge_2m(256);
    huge_pages_on_10_0: V10_0, Ram::huge_2m(256);
    private_file: V10_0, Ram::new(RamBackend::File { share: false }, 256);
    private_file_on_a_disk: V7_2, Ram::new(RamBackend::DiskFile { share: false }, 256);
    default: V7_2, Ram::new(RamBackend::Default, 256);
    shared_anonymous: V7_2, Ram::new(RamBackend::SharedAnonymous, 256);
    memfd: V10_0, Ram::new(RamBackend::MEMFD, 0).numa(&[128, 128]).prealloc();
    memfd_of_huge_pages: V10_0, Ram::new(PRIVATE_HUGE_MEMFD, 256);
}

const PRIVATE_HUGE_MEMFD: RamBackend = RamBackend::Memfd {
    share: false,
    seal: false,
    huge: Some(HugePageSize::Mib2),
};

#[test]
fn i440fx_with_four_processors() {
    let lab = Lab::new().unwrap();
    let vm = VmConfig::new()
        .machine("pc-i440fx-7.2")
        .cpus(4)
        .workload(Workload::dirty(64).threads(4).pattern(Pattern::Hotspot))
        .start(&lab, "guest")
        .unwrap();
    assert_eq!(vm.wait_ready().unwrap().cpus, 4);
    // The report is printed while the threads continue to count: a thread may be one access further
    // in one number than in the other, and many if the printing thread was descheduled in between.
    // That happens to some reports only.
    let agree = |report: &GuestReport| match report {
        GuestReport::Dirty(dirty) => {
            let counted = dirty.latency.histogram.count();
            (counted.abs_diff(dirty.latency.accesses) <= 4).then_some(())
        }
        _ => None,
    };
    vm.wait_report("a report with consistent numbers", 0, LONG, agree)
        .unwrap();
    let wanted = Verdict {
        ok: true,
        pages: 64 * 256,
        bad: 0,
        disk_pages: 0,
    };
    assert_eq!(vm.sweep(LONG).unwrap(), wanted);
}

/// A guest that has written for a while, and is paused.
fn stopped_guest(lab: &Lab, workload: Workload) -> Vm {
    let vm = VmConfig::new()
        .workload(workload)
        .start(lab, "guest")
        .unwrap();
    vm.wait_ready().unwrap();
    vm.wait_output(LONG).unwrap();
    vm.stop().unwrap();
    vm
}

/// Finds the page in the RAM file that satisfies `is_it`; returns the file, the offset and the
/// content.
fn find_page(path: &Path, is_it: impl Fn(&[u64]) -> bool) -> (File, u64, Vec<u8>) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let pages = file.metadata().unwrap().len() / PAGE as u64;
    let mut bytes = vec![0; PAGE];
    for page in 0..pages {
        file.read_exact_at(&mut bytes, page * PAGE as u64).unwrap();
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        if is_it(&words) {
            return (file, page * PAGE as u64, bytes);
        }
    }
    panic!("no such page in {}", path.display());
}

/// Whether this is the page of `verify` with that number: number, small generation, checksum,
/// filling.
fn is_verify_page(words: &[u64], number: u64) -> bool {
    words[0] == number && words[1] < 1 << 20 && words[2] >> 32 != 0 && words[511] >> 32 != 0
}

/// Resumes the guest, and returns its verdict and its reports of bad pages.
fn verdict_after(vm: &Vm) -> (Verdict, Vec<String>) {
    let first = vm.console().len();
    vm.cont().unwrap();
    let verdict = vm.sweep(LONG).unwrap();
    let bad = vm
        .console()
        .since(first)
        .into_iter()
        .filter_map(|line| match line.report {
            GuestReport::Bad(text) => Some(text),
            _ => None,
        })
        .collect();
    (verdict, bad)
}

#[test]
fn a_flipped_byte_in_the_ram_file_is_reported_with_its_address() {
    let lab = Lab::new().unwrap();
    let vm = stopped_guest(&lab, Workload::verify(32).rate(UNHURRIED));
    let number = 1234;
    let (file, at, bytes) = find_page(&vm.ram_files()[0], |w| is_verify_page(w, number));
    file.write_all_at(&[!bytes[3000]], at + 3000).unwrap();
    let (verdict, bad) = verdict_after(&vm);
    assert!(!verdict.ok && verdict.bad == 1, "{verdict:?} {bad:?}");
    for part in [
        format!("page={number} "),
        format!("physical={at:#x} "),
        "fault=corrupt word=375 ".to_owned(),
    ] {
        assert!(bad[0].contains(&part), "no {part} in {}", bad[0]);
    }
}

#[test]
fn a_missing_page_is_detected_even_if_it_is_only_read() {
    let lab = Lab::new().unwrap();
    let vm = stopped_guest(&lab, Workload::verify(32).rate(UNHURRIED));
    // The last tenth is only read.
    let number = 32 * 256 - 7;
    let (file, at, _) = find_page(&vm.ram_files()[0], |w| is_verify_page(w, number));
    file.write_all_at(&[0; PAGE], at).unwrap();
    let (verdict, bad) = verdict_after(&vm);
    assert!(!verdict.ok, "{verdict:?}");
    assert!(
        bad[0].contains(&format!("page={number} ")) && bad[0].contains("fault=zero"),
        "{bad:?}"
    );
}

#[test]
fn a_stale_page_is_detected() {
    let lab = Lab::new().unwrap();
    let vm = stopped_guest(
        &lab,
        Workload::verify(8)
            .option("clean", 0)
            .option("zero", 0)
            .rate(UNHURRIED),
    );
    let (file, at, old) = find_page(&vm.ram_files()[0], |w| is_verify_page(w, 77));
    vm.cont().unwrap();
    // Wait until the page has been written again: it is one of 2,048.
    let mut new = old.clone();
    for _ in 0..1000 {
        vm.wait_output(LONG).unwrap();
        vm.stop().unwrap();
        file.read_exact_at(&mut new, at).unwrap();
        if new != old {
            break;
        }
        vm.cont().unwrap();
    }
    assert_ne!(new, old);
    file.write_all_at(&old, at).unwrap();
    let (verdict, bad) = verdict_after(&vm);
    assert!(!verdict.ok, "{verdict:?}");
    assert!(
        bad[0].contains("page=77 ") && bad[0].contains("fault=stale"),
        "{bad:?}"
    );
}

#[test]
fn a_lost_write_is_detected_by_dirty() {
    let lab = Lab::new().unwrap();
    let vm = stopped_guest(&lab, Workload::dirty(32));
    let (file, at, bytes) = find_page(&vm.ram_files()[0], |words| {
        words[0] >> 32 == 5000 && words[0] & 0xffff_ffff > 0 && words[1..].iter().all(|&w| w == 0)
    });
    file.write_all_at(&[bytes[0].wrapping_sub(1)], at).unwrap();
    let (verdict, bad) = verdict_after(&vm);
    assert!(!verdict.ok, "{verdict:?}");
    assert!(bad[0].contains("fault=sum"), "{bad:?}");
}

#[test]
fn qemus_standard_error_is_in_the_error() {
    let lab = Lab::new().unwrap();
    let error = VmConfig::new()
        .arguments(["-device", "no-such-thing"])
        .start(&lab, "guest")
        .unwrap_err();
    assert!(matches!(error, LabError::Ended { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("'no-such-thing' is not a valid"), "{text}");
}

#[test]
fn a_panicking_test_leaves_nothing_behind() {
    let (mut pid, mut files, mut folder) = (0, Vec::new(), None);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let lab = Lab::new().unwrap();
        let ram = Ram::huge_2m(64);
        let vm = VmConfig::new()
            .ram(ram)
            .arguments(["-S"])
            .start(&lab, "guest")
            .unwrap();
        assert_eq!(vm.status().unwrap(), "prelaunch");
        pid = vm.pid();
        files = vm.ram_files().to_vec();
        folder = Some(lab.folder().to_owned());
        assert!(files[0].exists());
        panic!("simulated test failure");
    }));
    assert!(result.is_err());
    assert!(!Path::new("/proc").join(pid.to_string()).exists());
    assert!(!files[0].exists());
    assert!(!folder.unwrap().exists(), "unmounted and removed");
}

/// A guest whose disk is on that bus works with it, and the disk is valid afterwards.
fn works_with_disk(config: VmConfig, bus: DiskBus) {
    let lab = Lab::new().unwrap();
    let content = DiskContent::FileSystem {
        mib: 24,
        blocks_mib: 4,
    };
    let image = DiskImage::new(&lab, "disk", DiskFormat::Qcow2, content).unwrap();
    let disk = Disk::new(image).bus(bus);
    let vm = config
        .workload(Workload::verify(16).rate(1000))
        .file_system(disk.clone())
        .start(&lab, "guest")
        .unwrap();
    vm.wait_ready().unwrap();
    let worked = |report: &GuestReport| match report {
        GuestReport::Disk(work) if work.reads > 0 => Some(work.ok),
        _ => None,
    };
    let ok = vm.wait_report("work on the disk", 0, LONG, worked).unwrap();
    assert!(ok && vm.sweep(LONG).unwrap().ok);
    vm.quit(LONG).unwrap();
    disk.image().check().unwrap();
}

#[test]
fn microvm() {
    works_with_disk(VmConfig::new().machine("microvm"), DiskBus::VirtioMmio);
}

#[test]
#[ignore = "needs `make guest-devices`: part of `make matrix`"]
fn uefi_with_nvme() {
    let config = VmConfig::new().firmware(Firmware::Ovmf);
    works_with_disk(config.device(Device::Vga), DiskBus::Nvme);
}

#[test]
#[ignore = "needs `make guest-devices`: part of `make matrix`"]
fn every_device_with_its_driver() {
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
    let config = VmConfig::new().all_drivers().unwrap();
    let config = devices.into_iter().fold(config, VmConfig::device);
    works_with_disk(config, DiskBus::Ahci);
}

#[test]
fn plugged_memory_and_processors() {
    let lab = Lab::new().unwrap();
    // The workload grows beyond the memory that the machine boots with, of which the kernel uses
    // some 100 MiB, because memory can be plugged beyond 4 GiB (swiotlb).
    let config = VmConfig::new()
        .ram(Ram::new(RamBackend::Anonymous, 224).hot_dimm(128))
        .hot_cpus(1)
        .workload(Workload::verify(16).rate(1000).grow(20, 160));
    let vm = config.start(&lab, "guest").unwrap();
    vm.wait_ready().unwrap();
    vm.plug_dimm().unwrap();
    vm.plug_processors().unwrap();
    let grown = |report: &GuestReport| match report {
        GuestReport::Verify(verify) if verify.pages >= 176 * 256 => Some(()),
        _ => None,
    };
    vm.wait_report("growth", 0, LONG, grown).unwrap();
    assert!(vm.sweep(LONG).unwrap().ok);
    let processors = vm.qmp().execute("query-cpus-fast", json!({})).unwrap();
    assert_eq!(processors.as_array().map(Vec::len), Some(2));
    config.incoming().start(&lab, "destination").unwrap();
}
