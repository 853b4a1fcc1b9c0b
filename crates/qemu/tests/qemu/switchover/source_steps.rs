//! The source resumes its guest after each step, or its QEMU ends there.

use std::io::{self, Write};

use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use serde_json::json;

use crate::support::{device_state, eventually, says, with_each};

use super::{copy_memory, destination, image, load, save, signal, source};

#[test]
fn the_source_resumes_after_every_step() {
    with_each(|program| {
        let from = source(program, "");
        let before = from.traces();
        let mut guest = from.source();
        // Never paused.
        guest.resume().unwrap();
        // Paused; paused twice; saved.
        for round in 0..3 {
            guest.pause().unwrap();
            if round == 2 {
                device_state(&mut guest);
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
            says(&error, &["the link broke"]);
            guest.resume().unwrap();
        }
        drop(guest);
        assert_eq!(from.state(), "running");
        assert_eq!(from.traces(), before);
        // Dropped without a decision when paused: it cannot run elsewhere.
        let mut guest = from.source();
        guest.pause().unwrap();
        drop(guest);
        assert_eq!(from.state(), "running");
        // Dropped without a decision when saved: it may run elsewhere.
        let mut guest = from.source();
        guest.pause().unwrap();
        device_state(&mut guest);
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
        let mut guest = from.source();
        guest.pause().unwrap();
        device_state(&mut guest);
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
        let mut source = from.source();
        let mut destination = to.destination();
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
        says(&error, &["lock"]);
        drop(destination);
        // It may have locked another image: its process was ended.
        to.wait();
        assert_eq!(from.state(), "running");
    });
}

#[test]
fn qemu_dies_at_every_step_of_the_source() {
    with_each(|program| {
        for step in 0..4 {
            let mut from = source(program, "");
            let mut guest = from.source();
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
