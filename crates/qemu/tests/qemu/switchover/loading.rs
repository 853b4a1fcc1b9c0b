//! Loading the device state, and what prevents it.

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use hikkoshi_qemu::QemuDestination;
use serde_json::json;

use crate::support::{eventually, says, with_each};

use super::{copy_memory, destination, save, signal, source};

/// QEMU would wait for each page of it, with the guest paused.
#[test]
fn flash_memory_is_read_at_resume() {
    with_each(|program| {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(256 << 10).unwrap();
        let path = image.path().display();
        let qemu = source(program, &format!("-drive if=pflash,format=raw,file={path}"));
        let source = qemu.source();
        let ram = source.ram();
        let block = |number| &*ram.layout().block(number).unwrap().0.id;
        let read: Vec<&str> = source.read_at_resume().into_iter().map(block).collect();
        assert_eq!(read, ["system.flash0"]);
    });
}

#[test]
fn a_bad_device_state_is_refused_with_qemus_message() {
    with_each(|program| {
        let from = source(program, "");
        let mut guest = from.source();
        let state = save(&mut guest);
        guest.resume().unwrap();
        let short = state[..state.len() / 2].to_vec();
        for bad in [b"no device state at all".to_vec(), Vec::new(), short] {
            let mut to = destination(program, "");
            let mut destination = to.destination();
            destination.prepare().unwrap();
            let error = destination.load_device_state(bad).unwrap_err();
            let text = Report::new(&error).to_string();
            assert!(text.contains("QEMU refused it"), "{text}");
            let is_there = text.contains(". It wrote: ") || program.is_newest();
            assert!(is_there && !text.contains("says why"), "{text}");
            assert!(!text.contains("the same options"), "{text}");
            let error = destination.resume(true, &CancelFlag::new()).unwrap_err();
            says(&error, &["not been loaded"]);
            // Also works with a QEMU that has exited.
            destination.release().unwrap();
            drop(destination);
            if program.is_old() {
                assert_eq!(to.wait(), (Some(1), None));
            } else {
                assert!(text.contains("load of migration failed"), "{text}");
                assert!(to.is_running());
                let error = QemuDestination::attach(&to.qmp()).unwrap_err();
                says(&error, &["was sent a guest before"]);
            }
        }
    });
}

#[test]
fn another_machine_refuses_the_state() {
    with_each(|program| {
        let from = source(program, "-device virtio-rng-pci");
        let to = destination(program, "");
        let mut guest = from.source();
        let state = save(&mut guest);
        let mut destination = to.destination();
        destination.prepare().unwrap();
        let error = destination.load_device_state(state).unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(text.contains("QEMU refused it"), "{text}");
        let unknown = ["Unknown savevm section", "Unknown section"];
        assert!(unknown.iter().any(|part| text.contains(part)), "{text}");
        let advice = " (start QEMU at the destination with the same options as at the source)";
        assert!(text.ends_with(advice), "{text}");
        guest.resume().unwrap();
        drop(guest);
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn a_guest_that_another_program_starts_too_early_is_paused() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let mut guest = from.source();
        let mut destination = to.destination();
        destination.prepare().unwrap();
        // In this state `cont` means: run as soon as the guest is loaded.
        to.execute("cont", json!({}));
        let state = save(&mut guest);
        copy_memory(&guest, &destination);
        let error = destination.load_device_state(state).unwrap_err();
        says(&error, &["another program"]);
        assert_eq!(to.state(), "paused");
        guest.resume().unwrap();
        drop(guest);
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn loading_can_be_cancelled() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let mut guest = from.source();
        let state = save(&mut guest);
        guest.resume().unwrap();
        let mut destination = to.destination();
        let cancel = CancelFlag::new();
        destination.cancel_load_with(cancel.clone());
        destination.prepare().unwrap();
        // QEMU does not respond: otherwise it could finish before the flag is checked.
        signal(to.pid(), rustix::process::Signal::STOP);
        eventually("QEMU to be stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", to.pid()));
            stat.unwrap().contains(") T")
        });
        cancel.cancel();
        let error = destination.load_device_state(state).unwrap_err();
        says(&error, &["cancelled"]);
        signal(to.pid(), rustix::process::Signal::CONT);
        destination.release().unwrap();
    });
}
