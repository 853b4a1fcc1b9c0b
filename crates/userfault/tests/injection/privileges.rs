//! Processes and tracers without privileges, and processes under seccomp.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_userfault::{Features, RemoteUserfault};

use crate::common::{Target, as_nobody, become_nobody};

use super::{create, create_and_close, has_userfault, sleeper};

#[test]
fn a_missing_privilege_is_named() {
    let target = sleeper();
    let text = as_nobody(|| {
        Report::new(RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err())
            .to_string()
    });
    assert_eq!(
        text,
        format!(
            "creating a userfaultfd: attaching to process {}: not permitted: this program does \
             not have CAP_SYS_PTRACE; run it as root or with that capability",
            target.pid
        )
    );
}

fn unprivileged() -> Target {
    let target = Target::spawn(|shared| {
        become_nobody();
        shared.set(0, 1);
        loop {
            shared.add(1, 1);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    target.shared.wait(0, 1);
    target
}

/// A QEMU that runs as an ordinary user may not call userfaultfd(2); it gets the device from us.
#[test]
fn an_unprivileged_process_creates_one_from_the_device() {
    let target = unprivileged();
    let before = target.descriptors();
    for _ in 0..20 {
        let remote = create(&target);
        let now = target.descriptors();
        assert_eq!(now.len(), before.len() + 1, "{now:?}");
        remote.close_remote().unwrap();
        assert_eq!(target.descriptors(), before);
    }
    let laps = target.shared.get(1);
    target.shared.wait(1, laps + 2);
}

#[test]
fn both_refusals_are_reported() {
    let target = unprivileged();
    let text = as_nobody(|| {
        Report::new(RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err())
            .to_string()
    });
    assert_eq!(
        text,
        format!(
            "creating a userfaultfd in process {}: userfaultfd(2) in the process failed \
             (Operation not permitted (os error 1)) and the device failed (opening \
             /dev/userfaultfd: Permission denied (os error 13)); set sysctl \
             vm.unprivileged_userfaultfd=1, or run this program as a user that may open \
             /dev/userfaultfd (Linux 6.1 and later)",
            target.pid
        )
    );
    assert!(!has_userfault(&target));
}

/// In strict mode every call except read, write and exit kills the process.
fn sandboxed(user: fn()) -> Target {
    let target = Target::spawn(|shared| {
        user();
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        loop {
            shared.add(0, 1);
        }
    });
    target.shared.wait(0, 1);
    target
}

#[test]
fn seccomp_does_not_kill_for_our_calls() {
    let target = sandboxed(|| {});
    create_and_close(&target);
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 1000);
}

#[test]
fn seccomp_without_the_right_to_suspend_it_is_refused() {
    let target = sandboxed(become_nobody);
    let text = as_nobody(|| {
        Report::new(RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err())
            .to_string()
    });
    assert!(
        text.contains("runs under seccomp") && text.contains("CAP_SYS_ADMIN"),
        "{text}"
    );
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 1000);
}
