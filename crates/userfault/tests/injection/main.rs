//! Creates a userfaultfd in real processes during various operations, and closes it again. The
//! processes must not be disturbed.

// The unsafe blocks are system calls with visible arguments; a wrong one fails a test.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]

#[path = "../../../linux/tests/common/mod.rs"]
mod common;
mod privileges;
mod signals;
mod system_calls;
mod threads;
mod unavailable;

use std::sync::Arc;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_userfault::{
    Features, RemoteUserfault, RemoteUserfaultError, close_remote, open_userfaults,
};

use common::Target;

fn create(target: &Target) -> RemoteUserfault {
    RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap()
}

fn create_and_close(target: &Target) {
    create(target).close_remote().unwrap();
}

/// Whether the process has a userfaultfd open.
fn has_userfault(target: &Target) -> bool {
    let process = Process::open(target.pid).unwrap();
    !open_userfaults(&process).unwrap().is_empty()
}

fn sleeper() -> Target {
    let target = Target::spawn(|_| {
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    target.wait_in_syscall(target.pid, libc::SYS_clock_nanosleep);
    target
}

#[test]
fn missing_features_leave_the_process_untouched() {
    let target = sleeper();
    let error = RemoteUserfault::create(target.pid, Features(1 << 40)).unwrap_err();
    assert!(
        Report::new(&error)
            .to_string()
            .contains("does not support feature bit 40"),
        "{error}"
    );
    assert!(!has_userfault(&target));
}

#[test]
fn open_userfaults_are_found_adopted_and_closed() {
    let target = sleeper();
    let process = Arc::new(Process::open(target.pid).unwrap());
    assert_eq!(open_userfaults(&process).unwrap(), []);

    let first = create(&target);
    first.leave_open_on_drop();
    let number = first.remote();
    drop(first);
    let [found] = open_userfaults(&process).unwrap()[..] else {
        panic!("one leftover expected");
    };
    assert_eq!(found.number, number);
    assert_eq!(found.features, Features::FOR_MISSING);
    assert_eq!((found.unread, found.waiting), (0, 0));

    let adopted = RemoteUserfault::adopt(&process, number).unwrap();
    adopted.close_remote().unwrap();
    adopted.close_remote().unwrap();
    assert_eq!(open_userfaults(&process).unwrap(), []);
    close_remote(&process, number).unwrap();

    let error = RemoteUserfault::adopt(&process, 0).unwrap_err();
    assert!(matches!(
        error,
        RemoteUserfaultError::NotUserfault { number: 0, .. }
    ));
    let error = close_remote(&process, 0).unwrap_err();
    assert!(
        Report::new(&error)
            .to_string()
            .contains("now refers to a different file"),
        "{error}"
    );
}
