//! The memory of devices and firmware: video memory, flash and ROMs. No guest checks it, so it is
//! read from outside after each move, and compared with the paused source's.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{
    Firmware, HostPair, Ram, RamBackend, RamBlock, RateLimit, Vm, VmConfig, Workload,
};
use hikkoshi_tests::{
    Breakpoint, Guest, JsonReport, LONG, MessageKind, MigrationPlan, Random, TestEnv, Transport,
    eventually, log,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// The guest's memory, MiB.
const RAM_MIB: u64 = 256;
/// Where firmware and the guest may draw: 1280 × 1024 pixels have 5 MiB.
const DRAWN: u64 = 8 * MIB;
const VIDEO: &str = "vga.vram";

/// A guest with a display that has so much video memory.
fn with_video(ram: Ram, mib: u64) -> VmConfig {
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let display = format!("VGA,vgamem_mb={mib}");
    let config = VmConfig::new().ram(ram).workload(workload);
    config.arguments(["-device", &display])
}

/// A page that says which it is, and how often something was written before. Some are zero.
fn stamped(page: u64, turn: u64) -> Vec<u8> {
    if (page + turn).is_multiple_of(16) {
        return vec![0; 4096];
    }
    let mut random = Random::new(page << 32 | turn);
    (0..PAGE / 8)
        .flat_map(|_| random.number().to_le_bytes())
        .collect()
}

/// Fills the video memory beyond what is drawn.
fn fill(vm: &Vm) {
    let video = vm.ram_block(VIDEO).unwrap();
    for chunk in (DRAWN / PAGE..video.size() / PAGE).step_by(256) {
        let content: Vec<_> = (chunk..chunk + 256)
            .flat_map(|page| stamped(page, 0))
            .collect();
        video.write(chunk * PAGE, &content).unwrap();
    }
}

/// When each page was written last, and when the guest was paused.
type Written = (HashMap<u64, Duration>, Duration);

/// Rewrites random pages of the video memory until the guest is paused, as a display driver would,
/// or its machine is dropped.
fn rewrite_until_paused(vm: &Arc<Vm>) -> JoinHandle<Option<Written>> {
    let video = vm.ram_block(VIDEO).unwrap();
    let events = vm.qmp().events().len();
    let vm = Arc::downgrade(vm);
    std::thread::spawn(move || {
        let mut random = Random::new(video.size());
        let mut written = HashMap::new();
        for turn in 1.. {
            let vm = vm.upgrade()?;
            let page = DRAWN / PAGE + random.below((video.size() - DRAWN) / PAGE);
            video.write(page * PAGE, &stamped(page, turn)).unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            written.insert(page, now);
            if turn % 8 == 0 {
                let wait = Duration::from_millis(1);
                if let Ok(pause) = vm.qmp().wait_event("STOP", events, wait) {
                    return Some((written, pause.happened));
                }
            }
        }
        None
    })
}

/// Moves a guest whose video memory is rewritten meanwhile. All of it must be the same afterwards.
fn move_with_video(guest: &mut Guest<'_>, plan: &MigrationPlan) -> (JsonReport, String) {
    let source = Arc::clone(guest.vm());
    fill(&source);
    let writer = rewrite_until_paused(&source);
    let (exits, finished) = guest.start_migration(plan).wait();
    let messages = format!("{}{}", exits.migrate.stderr, exits.migrate.stdout);
    let report = guest.complete_migration(&exits, finished, "running");
    let (written, paused) = writer.join().unwrap().unwrap();
    let [there, here] = [guest.vm(), &source].map(|vm| vm.ram_block(VIDEO).unwrap());
    let mut differ = here.differing_pages(&there, DRAWN).unwrap();
    // The writer receives that the guest is paused shortly after. What it has written then need not
    // have been sent.
    let before_pause = |page: &u64| written.get(page).is_none_or(|last| *last < paused);
    let late = written.keys().filter(|page| !before_pause(page)).count();
    log(format!(
        "{} pages of {} rewritten, {late} of them too late",
        written.len(),
        here.name()
    ));
    differ.retain(before_pause);
    assert!(
        differ.is_empty(),
        "NEVER RETRIED: lost or stale pages: {differ:?}"
    );
    assert!(written.len() > late + 100, "too few pages were rewritten");
    (report, messages)
}

/// A guest in that kind of memory, moved by each mode to the other kind of memory in turn.
fn in_every_mode(modes: [&'static str; 3], first: RamBackend, other: RamBackend) {
    const VIDEO_MIB: u64 = 32;
    let env = TestEnv::new();
    let config = |backend| with_video(Ram::new(backend, RAM_MIB).default_name(), VIDEO_MIB);
    let mut guest = Guest::boot_without_extra_disk(&env, config(first));
    for (mode, [from, to]) in modes
        .into_iter()
        .zip([[first, other], [other, first]].into_iter().cycle())
    {
        let plan = MigrationPlan::new(mode).destination_config(config(to));
        let (report, messages) = move_with_video(&mut guest, &plan);
        // What ends with the source's QEMU in post-copy is said before.
        let named = messages.contains("of the guest's memory are private to its process here")
            && messages.contains(VIDEO);
        assert_eq!(named, mode != "precopy", "{messages}");
        let private = report.source_private_bytes;
        match (mode, from) {
            ("precopy", _) => assert_eq!(private, None),
            // The small blocks of the firmware are sent before the handover.
            (_, RamBackend::File { .. }) => assert_eq!(private, Some(VIDEO_MIB * MIB)),
            _ => assert!(private >= Some((RAM_MIB + VIDEO_MIB) * MIB), "{private:?}"),
        }
    }
}

const FILE: RamBackend = RamBackend::File { share: true };

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn video_memory_of_a_guest_that_leaves_private_memory() {
    in_every_mode(
        ["precopy", "hybrid", "postcopy"],
        RamBackend::Anonymous,
        FILE,
    );
}

#[test]
#[ignore = "the same modes from the other kind of memory: make matrix"]
fn video_memory_of_a_guest_that_leaves_a_file() {
    in_every_mode(
        ["precopy", "hybrid", "postcopy"],
        FILE,
        RamBackend::Anonymous,
    );
}

/// Over 200 Mbit/s, 64 MiB take 2.7 s: they are not sent while the guest is paused.
fn over_a_slow_network(mib: u64) {
    let env = TestEnv::new();
    let mut guest = Guest::boot_without_extra_disk(&env, with_video(Ram::shared(RAM_MIB), mib));
    let line = HostPair::new(Some(RateLimit {
        rate_bits: 200_000_000,
        burst_bytes: 64 * 1024,
        latency: Duration::from_millis(50),
    }))
    .unwrap();
    let plan = MigrationPlan::new("hybrid")
        .transport(Transport::Address(format!(
            "{}:7200",
            HostPair::DESTINATION
        )))
        .between_namespaces(line.source(), line.destination());
    let source = Arc::clone(guest.vm());
    fill(&source);
    let events = source.qmp().events().len();
    let migration = guest.start_migration(&plan);
    source.qmp().wait_event("STOP", events, LONG).unwrap();
    let before = line.bytes().unwrap().0;
    let there = migration.destination.qmp();
    there.wait_event("RESUME", 0, LONG).unwrap();
    // With what follows until the test has noticed.
    let paused = line.bytes().unwrap().0 - before;
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    let [here, there] = [&source, guest.vm()].map(|vm| vm.ram_block(VIDEO).unwrap());
    let differ = here.differing_pages(&there, DRAWN).unwrap();
    assert!(
        differ.is_empty(),
        "NEVER RETRIED: lost or stale pages: {differ:?}"
    );
    log(format!(
        "{mib} MiB of video memory: {} KiB sent while paused",
        paused >> 10
    ));
    let content = (mib * MIB - DRAWN) / 16 * 15;
    assert!(report.bytes.precopy >= content, "{report:?}");
    assert!(paused < mib * MIB / 2, "{paused} bytes sent while paused");
}

#[test]
#[ignore = "a slow network: make matrix"]
fn much_video_memory_over_a_slow_network() {
    over_a_slow_network(64);
}

#[test]
#[ignore = "a slow network: make matrix"]
fn very_much_video_memory_over_a_slow_network() {
    over_a_slow_network(512);
}

/// Changes the last byte in use.
fn change_last_byte(block: &RamBlock) {
    let at = block.size() - 1;
    let mut byte = [0];
    block.read(at, &mut byte).unwrap();
    block.write(at, &[!byte[0]]).unwrap();
}

/// UEFI's variables are in flash, which QEMU writes to a file. Option ROMs are memory that the
/// guest only reads, and each QEMU reads them from its own files.
#[test]
#[ignore = "needs UEFI firmware: make matrix"]
fn flash_its_image_and_option_roms() {
    const VARIABLES: &str = "system.flash1";
    const ROM: &str = "vga.rom";
    let env = TestEnv::new();
    let config = with_video(Ram::shared(RAM_MIB), 16).firmware(Firmware::Ovmf);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    for mode in ["precopy", "hybrid", "postcopy"] {
        let source = Arc::clone(guest.vm());
        let at = Breakpoint::before(MessageKind::Offer);
        let migration = guest.start_migration(&MigrationPlan::new(mode).hold_at(at));
        migration.wait_held();
        let destination = Arc::clone(&migration.destination);
        let image = env
            .folder()
            .join(format!("{}.variables", destination.name()));
        let block = |vm: &Vm, name| vm.ram_block(name).unwrap();
        change_last_byte(&block(&source, VARIABLES));
        change_last_byte(&block(&destination, ROM));
        for name in [VARIABLES, ROM] {
            let [here, there] = [&source, &destination].map(|vm| block(vm, name));
            assert_ne!(here.content().unwrap(), there.content().unwrap(), "{name}");
        }
        let before = std::fs::read(&image).unwrap();
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
        for name in [VARIABLES, ROM] {
            let [here, there] = [&source, &destination].map(|vm| block(vm, name));
            let differ = here.differing_pages(&there, 0).unwrap();
            assert!(differ.is_empty(), "{mode}: {name}: {differ:?}");
        }
        let content = block(&source, VARIABLES).content().unwrap();
        assert_ne!(content, before);
        eventually("QEMU to write its flash", || {
            match std::fs::read(&image).unwrap() == content {
                true => Ok(()),
                false => Err(format!("{} differs", image.display())),
            }
        });
    }
}
