//! Tests pausing, saving, loading and resuming, and undoing each step, with real QEMUs.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use hikkoshi_linux::{HostAddr, HostRange, Process, StopEventFd};
use hikkoshi_memory::{GuestRam, RamWriter};
use hikkoshi_pages::{PAGE_BYTES, Page, PageRange};
use hikkoshi_qemu::{QemuDestination, QemuSource};
use hikkoshi_userfault::{
    EventBuffer, Ready, RegisterMode, Userfault, UserfaultEvent, close_remote,
};
use serde_json::json;

use crate::support::{Program, Qemu, RamPath, eventually, monitor, options, with_each};

fn source(program: &Program, more: &str) -> Qemu {
    Qemu::usual(program, &format!("-vga std -smp 2 {more}"))
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
    let mut state = Vec::new();
    source
        .save_device_state(&mut state, &CancelFlag::new())
        .unwrap();
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
            let mut source = QemuSource::attach(&from.qmp()).unwrap();
            let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
            source
                .describe()
                .compatible_with(destination.describe())
                .unwrap();
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

/// QEMU would wait for each page of it, with the guest paused.
#[test]
fn flash_memory_is_read_at_resume() {
    with_each(|program| {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(256 << 10).unwrap();
        let path = image.path().display();
        let qemu = source(program, &format!("-drive if=pflash,format=raw,file={path}"));
        let source = QemuSource::attach(&qemu.qmp()).unwrap();
        let ram = source.ram();
        let block = |number| &*ram.layout().block(number).unwrap().0.id;
        let read: Vec<&str> = source.read_at_resume().into_iter().map(block).collect();
        assert_eq!(read, ["system.flash0"]);
    });
}

/// Between the preparation and the pause.
#[test]
fn a_guest_that_its_owner_pauses_after_the_preparation() {
    with_each(|program| {
        let qemu = source(program, "");
        let before = qemu.traces();
        let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
        source.prepare_pause().unwrap();
        assert_eq!(qemu.state(), "running");
        qemu.execute("stop", json!({}));
        source.pause().unwrap();
        assert!(!source.describe().running);
        source.resume().unwrap();
        assert_eq!(qemu.state(), "paused");
        qemu.execute("cont", json!({}));
        // A migration that is cancelled before the pause.
        source.prepare_pause().unwrap();
        qemu.execute("stop", json!({}));
        source.resume().unwrap();
        assert_eq!(qemu.state(), "paused");
        qemu.execute("cont", json!({}));
        source.prepare_pause().unwrap();
        source.resume().unwrap();
        assert_eq!(qemu.state(), "running");
        source.release().unwrap();
        drop(source);
        assert_eq!(qemu.traces(), before);
    });
}

#[test]
fn a_guest_that_its_owner_paused_stays_paused_at_both_ends() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let source = QemuSource::attach(&from.qmp()).unwrap();
        assert!(source.describe().running);
        drop(source);
        from.execute("stop", json!({}));
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        assert!(!source.describe().running);
        // It is restored after the pause and after the save.
        for saves in [false, true] {
            source.pause().unwrap();
            if saves {
                source
                    .save_device_state(&mut io::sink(), &CancelFlag::new())
                    .unwrap();
            }
            source.resume().unwrap();
            assert_eq!(from.state(), "paused");
            assert!(!from.is_marked());
        }
        drop(source);
        // Dropped without a decision when saved: it may run elsewhere.
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        source.pause().unwrap();
        source
            .save_device_state(&mut io::sink(), &CancelFlag::new())
            .unwrap();
        drop(source);
        assert_eq!(from.state(), "paused");
        let error = QemuSource::attach(&from.qmp()).unwrap_err();
        assert!(error.may_be_handed_over(), "{error}");
        from.execute("object-del", json!({ "id": "hikkoshi-paused" }));
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.prepare().unwrap();
        let state = save(&mut source);
        copy_memory(&source, &destination);
        load(&mut destination, state);
        destination
            .resume(source.describe().running, &CancelFlag::new())
            .unwrap();
        destination.release().unwrap();
        source.release().unwrap();
        drop((source, destination));
        assert_eq!(from.state(), "paused");
        assert!(from.is_marked(), "it has moved");
        assert_eq!(to.state(), "paused");
        to.execute("cont", json!({}));
        assert_eq!(to.state(), "running");
    });
}

#[test]
fn the_running_state_is_the_one_at_the_switchover() {
    with_each(|program| {
        let from = source(program, "");
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        assert!(guest.describe().running);
        from.execute("stop", json!({}));
        guest.pause().unwrap();
        assert!(!guest.describe().running);
        guest.resume().unwrap();
        assert_ne!(from.state(), "running", "its owner had paused it");
        from.execute("cont", json!({}));
        guest.pause().unwrap();
        assert!(guest.describe().running);
        guest.resume().unwrap();
        assert_eq!(from.state(), "running");
        // In a state that the migration does not change.
        from.execute("stop", json!({}));
        guest.resume().unwrap();
        assert_eq!(from.state(), "paused");
    });
}

#[test]
fn the_source_resumes_after_every_step() {
    with_each(|program| {
        let from = source(program, "");
        let before = from.traces();
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        // Never paused.
        guest.resume().unwrap();
        // Paused; paused twice; saved.
        for round in 0..3 {
            guest.pause().unwrap();
            if round == 2 {
                guest
                    .save_device_state(&mut io::sink(), &CancelFlag::new())
                    .unwrap();
            }
            guest.resume().unwrap();
            guest.resume().unwrap();
        }
        // A sink that fails, at once and half-way.
        for after in [0, 1] {
            guest.pause().unwrap();
            let error = guest
                .save_device_state(&mut Failing(after), &CancelFlag::new())
                .unwrap_err();
            assert!(
                Report::new(&error).to_string().contains("the link broke"),
                "{error}"
            );
            guest.resume().unwrap();
        }
        drop(guest);
        assert_eq!(from.state(), "running");
        assert_eq!(from.traces(), before);
        // Dropped without a decision when paused: it cannot run elsewhere.
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        guest.pause().unwrap();
        drop(guest);
        assert_eq!(from.state(), "running");
        // Dropped without a decision when saved: it may run elsewhere.
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        guest.pause().unwrap();
        guest
            .save_device_state(&mut io::sink(), &CancelFlag::new())
            .unwrap();
        drop(guest);
        assert_eq!(from.state(), "paused");
        assert!(from.is_marked());
        assert_eq!(from.traces(), before);
    });
}

/// Accepts this many writes of a few bytes.
struct Failing(usize);

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the link broke"));
        }
        self.0 -= 1;
        Ok(bytes.len().min(100))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_owners_settings_are_restored() {
    with_each(|program| {
        let from = source(program, "");
        let mut client = from.client();
        for command in [
            json!(["migrate-set-capabilities", { "capabilities": [
                { "capability": "auto-converge", "state": true },
                { "capability": "multifd", "state": true },
            ] }]),
            json!(["migrate-set-parameters", { "max-bandwidth": 12345678, "downtime-limit": 77 }]),
        ] {
            let name = command[0].as_str().unwrap();
            client.execute(name, command[1].clone()).unwrap();
        }
        drop(client);
        let before = from.traces();
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        guest.pause().unwrap();
        guest
            .save_device_state(&mut io::sink(), &CancelFlag::new())
            .unwrap();
        guest.resume().unwrap();
        drop(guest);
        assert_eq!(from.traces(), before);
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn until_commit_the_images_belong_to_the_source() {
    with_each(|program| {
        let (_image, drive) = image();
        let from = source(program, &drive);
        let mut to = destination(program, &drive);
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.prepare().unwrap();
        let state = save(&mut source);
        copy_memory(&source, &destination);
        load(&mut destination, state);
        // Commit never comes.
        source.resume().unwrap();
        drop(source);
        assert_eq!(from.state(), "running");
        // QEMU's image locks are a second safeguard: now it cannot also run here.
        let error = destination.resume(true, &CancelFlag::new()).unwrap_err();
        assert!(Report::new(&error).to_string().contains("lock"), "{error}");
        drop(destination);
        // It may have locked another image: its process was ended.
        to.wait();
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn a_bad_device_state_is_refused_with_qemus_message() {
    with_each(|program| {
        let from = source(program, "");
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let state = save(&mut guest);
        guest.resume().unwrap();
        let short = state[..state.len() / 2].to_vec();
        for bad in [b"no device state at all".to_vec(), Vec::new(), short] {
            let mut to = destination(program, "");
            let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
            destination.prepare().unwrap();
            let error = destination.load_device_state(bad).unwrap_err();
            let text = Report::new(&error).to_string();
            assert!(text.contains("QEMU refused it"), "{text}");
            let error = destination.resume(true, &CancelFlag::new()).unwrap_err();
            assert!(
                Report::new(&error).to_string().contains("not been loaded"),
                "{error}"
            );
            // Also works with a QEMU that has exited.
            destination.release().unwrap();
            drop(destination);
            if program.is_old() {
                assert_eq!(to.wait(), (Some(1), None));
            } else {
                assert!(text.contains("load of migration failed"), "{text}");
                assert!(to.is_running());
                let error = QemuDestination::attach(&to.qmp()).unwrap_err();
                assert!(
                    Report::new(&error)
                        .to_string()
                        .contains("already has a migration"),
                    "{error}"
                );
            }
        }
    });
}

#[test]
fn another_machine_refuses_the_state() {
    with_each(|program| {
        let from = source(program, "-device virtio-rng-pci");
        let to = destination(program, "");
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let state = save(&mut guest);
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.prepare().unwrap();
        let error = destination.load_device_state(state).unwrap_err();
        assert!(
            Report::new(&error).to_string().contains("QEMU refused it"),
            "{error}"
        );
        guest.resume().unwrap();
        drop(guest);
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn qemu_dies_at_every_step_of_the_source() {
    with_each(|program| {
        for step in 0..4 {
            let mut from = source(program, "");
            let mut guest = QemuSource::attach(&from.qmp()).unwrap();
            let pid = nix_kill(from.pid());
            if step == 0 {
                pid();
            }
            let paused = guest.pause();
            assert_eq!(paused.is_err(), step == 0, "{paused:?}");
            if step == 1 {
                pid();
            }
            let saved = guest.save_device_state(&mut io::sink(), &CancelFlag::new());
            // In step 1 QEMU may have written all before it ended.
            assert!(step == 1 || saved.is_err() == (step == 0), "{saved:?}");
            if step == 2 {
                pid();
            }
            let resumed = guest.resume();
            assert_eq!(resumed.is_err(), (1..3).contains(&step), "{resumed:?}");
            if step == 3 {
                pid();
            }
            let _ = guest.release();
            drop(guest);
            from.wait();
        }
    });
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let number = i32::try_from(pid).ok();
    let process = number.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

/// Kills a process when called.
fn nix_kill(pid: u32) -> impl Fn() {
    move || {
        signal(pid, rustix::process::Signal::KILL);
        // Wait until its sockets are closed, not only until the signal is sent.
        eventually("the end of QEMU", || {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |stat| stat.contains(") Z"))
        });
    }
}

#[test]
fn the_dirty_log_sees_qemus_writes_and_is_removed() {
    with_each(|program| {
        let from = source(program, "-S");
        let before = from.traces();
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let log = guest.start_dirty_log().unwrap();
        assert!(guest.start_dirty_log().is_err());
        let all = guest.ram().layout().all();
        log.take(all, &mut |_| {}).unwrap();
        assert_eq!(log.count(all).unwrap(), 0);
        assert_eq!(from.descriptors("userfaultfd"), 1);
        // Saving and resuming do not affect it. Loading a part of memory is a write of
        // QEMU itself.
        guest.pause().unwrap();
        guest
            .save_device_state(&mut io::sink(), &CancelFlag::new())
            .unwrap();
        guest.resume().unwrap();
        guest.release().unwrap();
        guest.release().unwrap();
        drop(log);
        drop(guest);
        assert_eq!(from.traces(), before);
    });
}

#[test]
fn the_dirty_log_sees_the_guests_writes() {
    with_each(|program| {
        // The firmware starts when the log has been started. It would also write after a reset,
        // but a reset while it still runs can stop the guest for good (`internal-error`), without
        // any log: under KVM with QEMU 10.0, 10 of 20 resets did so 150 ms after QEMU's start.
        let from = source(program, "-S");
        let before = from.traces();
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let log = guest.start_dirty_log().unwrap();
        let all = guest.ram().layout().all();
        let mut dirty = 0;
        log.take(all, &mut |run| dirty += run.len()).unwrap();
        assert_eq!(dirty, 0, "the guest has not run yet");
        from.execute("cont", json!({}));
        eventually("a write of the firmware", || {
            log.take(all, &mut |run| dirty += run.len()).unwrap();
            dirty > 0
        });
        drop(log);
        drop(guest);
        assert_eq!(from.traces(), before);
        assert_eq!(from.state(), "running", "QEMU said: {}", from.errors());
    });
}

/// The first page and the place of each block.
fn places(ram: &GuestRam, addresses: &[u64]) -> Vec<(Page, HostRange)> {
    let blocks = ram.layout().blocks().zip(addresses);
    blocks
        .map(|((_, pages), &at)| (pages.start(), HostRange::new(HostAddr(at), pages.bytes())))
        .collect()
}

/// Installs a page with the source's content.
fn copy_page(ram: &GuestRam, page: Page, userfault: &Userfault, places: &[(Page, HostRange)]) {
    let mut content = vec![0; 4096];
    ram.read(PageRange::one(page), &mut content).unwrap();
    let (first, block) = places.iter().rfind(|(first, _)| *first <= page).unwrap();
    let offset = PageRange::new(*first, page).bytes();
    let at = HostAddr(block.addr.0 + offset);
    userfault.copy(at, &content).unwrap();
}

#[test]
fn missing_pages_fault_during_and_after_loading() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.prepare().unwrap();
        let state = save(&mut source);
        let (userfault, addresses) = destination.take_userfault().unwrap();
        // What is here already would not fault.
        let writer = RamWriter::open(destination.ram()).unwrap();
        writer.drop_all().unwrap();
        let ram = source.ram();
        let places = places(&ram, &addresses);
        for place in &places {
            userfault.register(place.1, RegisterMode::MISSING).unwrap();
        }
        let stop = StopEventFd::new().unwrap();
        let served = std::thread::scope(|scope| {
            let (userfault, places, ram, stop) = (&userfault, &places, &ram, &stop);
            let server = scope.spawn(move || {
                let mut served = 0;
                let mut buffer = EventBuffer::with_capacity(16);
                while let Ready::Events = userfault.wait(stop, None).unwrap() {
                    userfault.read(&mut buffer).unwrap();
                    while let Some(event) = buffer.pop() {
                        let UserfaultEvent::Fault(fault) = event else {
                            continue;
                        };
                        let (first, block) = places
                            .iter()
                            .find(|(_, block)| {
                                (block.addr.0..block.addr.0 + block.len).contains(&fault.addr.0)
                            })
                            .unwrap();
                        let offset = (fault.addr.0 - block.addr.0) / PAGE_BYTES;
                        copy_page(ram, first.saturating_add(offset), userfault, places);
                        served += 1;
                    }
                }
                served
            });
            load(&mut destination, state);
            destination.resume(true, &CancelFlag::new()).unwrap();
            eventually("a page that the guest needs", || {
                to.descriptors("userfaultfd") == 1 && userfault_count(&to) > 0
            });
            // The rest.
            for page in ram.layout().all().iter() {
                copy_page(ram, page, userfault, places);
            }
            stop.stop();
            server.join().unwrap()
        });
        assert!(served > 0);
        for (_, place) in places {
            userfault.unregister(place).unwrap();
        }
        drop(userfault);
        destination.release().unwrap();
        drop(destination);
        assert_eq!(to.descriptors("userfaultfd"), 0);
        assert_eq!(to.state(), "running");
    });
}

/// Allocated pages of the RAM file.
fn userfault_count(qemu: &Qemu) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(&qemu.ram.0).unwrap().blocks() / 8
}

#[test]
fn an_unreleased_userfaultfd_stays_once_pages_may_be_missing() {
    with_each(|program| {
        let from = source(program, "-S");
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let state = save(&mut guest);
        guest.resume().unwrap();
        // Nothing loaded yet: closed.
        let to = destination(program, "");
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.take_userfault().unwrap();
        assert_eq!(to.descriptors("userfaultfd"), 1);
        drop(destination);
        assert_eq!(to.descriptors("userfaultfd"), 0);
        // Loaded: stays open, whether dropped or abandoned.
        for abandon in [true, false] {
            let to = self::destination(program, "");
            let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
            destination.prepare().unwrap();
            destination.take_userfault().unwrap();
            destination.load_device_state(state.clone()).unwrap();
            if abandon {
                destination.abandon_userfault();
            }
            drop(destination);
            assert_eq!(to.descriptors("userfaultfd"), 1);
            let error = QemuDestination::attach(&to.qmp()).unwrap_err();
            assert!(
                Report::new(&error).to_string().contains("-incoming defer"),
                "{error}"
            );
            let error = QemuSource::attach(&to.qmp()).unwrap_err();
            assert!(
                Report::new(&error)
                    .to_string()
                    .contains("pages may be missing"),
                "{error}"
            );
        }
    });
}

/// An engine that finds the userfaultfd closed must not continue: missing pages read as
/// zeros.
#[test]
fn a_closed_userfaultfd_is_noticed() {
    with_each(|program| {
        let from = source(program, "-S");
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let state = save(&mut guest);
        guest.resume().unwrap();
        let to = destination(program, "");
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.prepare().unwrap();
        destination.take_userfault().unwrap();
        destination.load_device_state(state).unwrap();
        let reattach_info = destination.reattach_info().get();
        destination.abandon_userfault();
        drop(destination);
        let again =
            QemuDestination::reattach(&reattach_info, monitor(&reattach_info.identity), |_| None)
                .unwrap()
                .unwrap();
        again.check_userfault().unwrap();
        drop(again);
        let process = Arc::new(Process::open(to.pid()).unwrap());
        close_remote(&process, reattach_info.userfault.unwrap()).unwrap();
        let mut again =
            QemuDestination::reattach(&reattach_info, monitor(&reattach_info.identity), |_| None)
                .unwrap()
                .unwrap();
        let error = Report::new(again.check_userfault().unwrap_err()).to_string();
        assert!(error.contains("cannot be trusted"), "{error}");
        assert!(again.take_userfault().is_err());
        assert_eq!(to.descriptors("userfaultfd"), 0, "it took no other one");
    });
}

#[test]
fn a_guest_that_another_program_starts_too_early_is_paused() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
        destination.prepare().unwrap();
        // In this state `cont` means: run as soon as the guest is loaded.
        to.execute("cont", json!({}));
        let state = save(&mut guest);
        copy_memory(&guest, &destination);
        let error = destination.load_device_state(state).unwrap_err();
        assert!(
            Report::new(&error).to_string().contains("another program"),
            "{error}"
        );
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
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
        let state = save(&mut guest);
        guest.resume().unwrap();
        let mut destination = QemuDestination::attach(&to.qmp()).unwrap();
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
        assert!(
            Report::new(&error).to_string().contains("cancelled"),
            "{error}"
        );
        signal(to.pid(), rustix::process::Signal::CONT);
        destination.release().unwrap();
    });
}

#[test]
fn a_device_state_with_a_lot_of_video_memory() {
    with_each(|program| {
        let from = Qemu::usual(program, "-device VGA,vgamem_mb=64 -smp 2");
        let mut guest = QemuSource::attach(&from.qmp()).unwrap();
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
            let mut guest = QemuSource::attach(&from.qmp()).unwrap();
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

/// With `discard-data=on` QEMU discards the RAM file's content when it exits. This must not
/// happen while the file may hold the only copy of a page.
#[test]
fn a_qemu_that_exits_after_the_handover_keeps_its_ram_file() {
    with_each(|program| {
        for handed_over in [true, false] {
            let ram = RamPath::new();
            let line = format!(
                "-m 32 -object memory-backend-file,id=ram,size=32M,mem-path={},share=on,\
                 discard-data=on -machine q35,memory-backend=ram",
                ram.as_str()
            );
            let mut qemu = Qemu::start(program, ram, &options(&line));
            let discards = |qemu: &Qemu| {
                let of = json!({ "path": "/objects/ram", "property": "discard-data" });
                qemu.execute("qom-get", of)
            };
            let mut source = QemuSource::attach(&qemu.qmp()).unwrap();
            save(&mut source);
            assert_eq!(discards(&qemu), false);
            if handed_over {
                source.leave();
            } else {
                source.resume().unwrap();
                source.release().unwrap();
                assert_eq!(discards(&qemu), true, "restored");
            }
            let file = std::fs::File::open(&qemu.ram.0).unwrap();
            let held = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
            let before = held();
            assert_ne!(before, 0);
            qemu.execute("quit", json!({}));
            qemu.wait();
            assert_eq!(held(), if handed_over { before } else { 0 });
        }
    });
}

/// Another program may resume a guest that was handed over. The destination must not get
/// the pages that it writes then.
#[test]
fn a_handed_over_guest_that_runs_is_noticed() {
    with_each(|program| {
        let qemu = source(program, "");
        let mut engine = QemuSource::attach(&qemu.qmp()).unwrap();
        save(&mut engine);
        let reattach_info = engine.reattach_info();
        engine.leave();
        drop(engine);
        let taken_up = || {
            QemuSource::reattach(&reattach_info, monitor(&reattach_info.identity))
                .unwrap()
                .unwrap()
        };
        let mut again = taken_up();
        again.check_paused().unwrap();
        again.leave();
        drop(again);
        assert_eq!(qemu.state(), "paused");
        qemu.execute("cont", json!({}));
        let mut again = taken_up();
        let error = Report::new(again.check_paused().unwrap_err()).to_string();
        assert!(
            error.contains("the guest runs at the source") && error.contains("--give-up"),
            "{error}"
        );
        again.leave();
        drop(again);
        assert_eq!(qemu.state(), "running");
    });
}

/// An image, and QEMU's options for a disk with it, whose node is `disk`.
fn image() -> (RamPath, String) {
    let image = RamPath::new();
    let file = std::fs::File::create(&image.0).unwrap();
    file.set_len(1 << 20).unwrap();
    let drive = format!(
        "-blockdev raw,node-name=disk,file.driver=file,file.filename={} \
         -device virtio-blk-pci,drive=disk",
        image.as_str()
    );
    (image, drive)
}

/// QEMU releases the disks of a guest that its owner had paused when it was handed over, also by
/// another engine, and by one more that does not know that they were released.
#[test]
fn the_disks_of_a_paused_guest_are_released_after_the_handover() {
    with_each(|program| {
        for killed in [false, true] {
            let (image, drive) = image();
            let qemu = source(program, &drive);
            qemu.execute("stop", json!({}));
            let before = qemu.traces();
            let mut engine = QemuSource::attach(&qemu.qmp()).unwrap();
            save(&mut engine);
            assert!(is_locked(&image), "until the handover");
            let reattach_info = engine.reattach_info();
            let reattach = || {
                let mut engine =
                    QemuSource::reattach(&reattach_info, monitor(&reattach_info.identity))
                        .unwrap()
                        .unwrap();
                engine.check_paused().unwrap();
                engine
            };
            if killed {
                engine.leave();
                drop(engine);
                engine = reattach();
            }
            for what in ["released", "released again"] {
                engine.release().unwrap();
                drop(engine);
                assert!(!is_locked(&image), "{what}");
                assert_eq!(qemu.state(), "paused");
                assert!(qemu.is_marked());
                assert_eq!(qemu.traces(), before);
                engine = reattach();
            }
            engine.release().unwrap();
            engine.quit().unwrap();
        }
    });
}

/// Whether a QEMU holds its lock on the image: it locks bytes from 100 on for itself
/// (`RAW_LOCK_PERM_BASE`).
fn is_locked(image: &RamPath) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(&image.0).unwrap().ino();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let suffix = format!(":{inode}");
    locks
        .lines()
        .any(|line| line.split_whitespace().any(|word| word.ends_with(&suffix)))
}
