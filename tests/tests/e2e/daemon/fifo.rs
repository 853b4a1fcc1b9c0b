//! Files at which a process waits, so that it can be stopped at a known place.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_tests::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A process that opens this file waits until another one reads it.
pub(super) fn make_fifo(path: &Path) {
    let mut command = Command::new("mkfifo");
    assert!(command.arg(path).status().unwrap().success());
}

/// Waits until a thread of the process waits there.
pub(super) fn wait_blocked(process: Pid) {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    eventually("a thread that opens the journal", || {
        let mut threads = fs::read_dir(&threads).unwrap();
        let waits = threads.any(|thread| {
            let place = fs::read_to_string(thread.unwrap().path().join("wchan"));
            place.is_ok_and(|place| place == "wait_for_partner")
        });
        waits.then_some(()).ok_or_else(|| "none".to_owned())
    });
}

/// The process opens the file again, which is an ordinary one now.
pub(super) fn unblock(process: Pid, fifo: &Path) {
    fs::remove_file(fifo).unwrap();
    for signal in [Signal::STOP, Signal::CONT] {
        kill_process(process, signal).unwrap();
    }
}
