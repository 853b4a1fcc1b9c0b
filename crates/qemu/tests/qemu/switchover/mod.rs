//! Tests pausing, saving, loading and resuming, and undoing each step, with real QEMUs.

mod dirty_log;
mod handed_over;
mod loading;
mod missing_pages;
mod running_state;
mod source_steps;

use std::sync::Arc;
use std::time::Instant;

use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use hikkoshi_memory::RamWriter;
use hikkoshi_qemu::{QemuDestination, QemuSource};
use serde_json::json;

use crate::support::{FIRMWARE, Program, Qemu, RamPath, device_state, with_each};

fn source(program: &Program, more: &str) -> Qemu {
    Qemu::usual(program, &format!("-vga std -smp 2 {FIRMWARE} {more}"))
}

fn destination(program: &Program, more: &str) -> Qemu {
    source(program, &format!("-incoming defer {more}"))
}

/// Copies the pages of a paused guest, as the engine does.
fn copy_memory(from: &QemuSource, to: &QemuDestination) {
    let (from, to) = (from.ram(), to.ram());
    assert_eq!(from.layout(), to.layout());
    let writer = RamWriter::open(Arc::clone(&to)).unwrap();
    for pages in from.layout().all().chunks(1024) {
        let mut bytes = vec![0; usize::try_from(pages.bytes()).unwrap()];
        from.read(pages, &mut bytes).unwrap();
        writer.write(pages, &bytes).unwrap();
    }
}

/// Pauses and saves. Returns the device state.
fn save(source: &mut QemuSource) -> Vec<u8> {
    let asked = Instant::now();
    let stopped = source.pause().unwrap();
    let paused = Instant::now();
    assert!(stopped >= asked && stopped <= paused);
    let state = device_state(source);
    eprintln!(
        "   to STOP {:?}, to its answer {:?}, saved {:?}, {} bytes",
        stopped - asked,
        paused - stopped,
        paused.elapsed(),
        state.len()
    );
    state
}

fn load(destination: &mut QemuDestination, state: Vec<u8>) {
    let asked = Instant::now();
    destination.load_device_state(state).unwrap();
    eprintln!("   load {:?}", asked.elapsed());
}

#[test]
fn a_running_guest_moves_and_leaves_nothing_changed() {
    with_each(|program| {
        // With -S or without, a destination's guest starts only on resume.
        for start in ["", "-S"] {
            let (from, to) = (source(program, ""), destination(program, start));
            let (before_from, before_to) = (from.traces(), to.traces());
            let mut source = from.source();
            let mut destination = to.destination();
            let differences = source.describe().differences(destination.describe());
            assert!(differences.is_empty(), "{differences:?}");
            destination.prepare().unwrap();
            let state = save(&mut source);
            copy_memory(&source, &destination);
            load(&mut destination, state);
            let asked = Instant::now();
            let ran = destination.resume(true, &CancelFlag::new()).unwrap();
            assert!(ran >= asked && ran <= Instant::now());
            eprintln!("   cont to running {:?}", ran - asked);
            destination.release().unwrap();
            source.release().unwrap();
            // Idempotent.
            destination.release().unwrap();
            source.release().unwrap();
            drop((source, destination));
            assert_eq!(to.state(), "running");
            assert_eq!(from.state(), "paused", "never runs again by itself");
            assert!(from.is_marked());
            assert_eq!(from.traces(), before_from);
            assert_eq!(to.traces(), before_to);
        }
    });
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let number = i32::try_from(pid).ok();
    let process = number.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

#[test]
fn a_device_state_with_a_lot_of_video_memory() {
    with_each(|program| {
        let from = Qemu::usual(
            program,
            &format!("-device VGA,vgamem_mb=64 -smp 2 {FIRMWARE}"),
        );
        let mut guest = from.source();
        for _ in 0..2 {
            let state = save(&mut guest);
            assert!(!state.is_empty());
            guest.resume().unwrap();
        }
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn a_qemu_of_another_user_in_the_background_or_sandboxed() {
    with_each(|program| {
        let nobody = if program.is_old() {
            "-runas nobody"
        } else {
            "-run-with user=nobody"
        };
        for how in [nobody, "-daemonize", "-sandbox on"] {
            let from = source(program, how);
            let pid = from.client().peer().unwrap();
            let before = from.traces();
            let mut guest = from.source();
            assert_eq!(guest.pid(), pid);
            let log = guest.start_dirty_log().unwrap();
            log.take(guest.ram().layout().all(), &mut |_| {}).unwrap();
            drop(log);
            save(&mut guest);
            guest.resume().unwrap();
            drop(guest);
            assert_eq!(from.state(), "running");
            assert_eq!(from.traces(), before);
            from.execute("quit", json!({}));
        }
    });
}

/// An image, and QEMU's options for a disk with it, whose node is `disk`.
fn image() -> (RamPath, String) {
    let image = RamPath::image();
    let drive = format!(
        "-blockdev raw,node-name=disk,file.driver=file,file.filename={} \
         -device virtio-blk-pci,drive=disk",
        image.as_str()
    );
    (image, drive)
}
