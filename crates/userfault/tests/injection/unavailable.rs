//! Processes that end, do not exist, or are traced already.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::InjectError;
use hikkoshi_userfault::{Features, RemoteUserfault, RemoteUserfaultError};

use crate::common::Target;

use super::{create_and_close, sleeper};

/// The process is killed at any time: the result is an error that says so or an early success,
/// never a hang.
#[test]
fn a_process_that_is_killed_during_injection_is_reported() {
    let mut died = 0;
    // On a busy machine the kill may be late repeatedly: then run more rounds.
    for round in 0.. {
        if round >= 150 && (died > 0 || round == 3000) {
            break;
        }
        let delay = round % 150;
        let target = sleeper();
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(delay * 5));
                target.kill(libc::SIGKILL);
            });
            let remote = RemoteUserfault::create(target.pid, Features::FOR_MISSING);
            // Closing succeeds for a process that is exiting, at any time.
            remote.map(|remote| remote.close_remote().unwrap())
        });
        match result {
            Ok(()) => {}
            Err(RemoteUserfaultError::Inject(
                InjectError::Died { .. } | InjectError::NoSuchProcess { .. },
            )) => died += 1,
            Err(error) => panic!("after {delay}: {error}"),
        }
        assert_eq!(target.join(), -libc::SIGKILL);
    }
    assert!(died > 0, "no kill came in time to be noticed");
}

#[test]
fn no_such_process() {
    let target = sleeper();
    target.kill(libc::SIGKILL);
    target.join();
    let error = RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap_err();
    assert_eq!(
        Report::new(&error).to_string(),
        format!(
            "creating a userfaultfd: attaching to process {}: the process does not exist",
            target.pid
        )
    );
}

#[test]
fn another_tracer_is_named() {
    let target = sleeper();
    let victim = target.raw();
    let tracer = Target::spawn(|shared| {
        let none = std::ptr::null_mut::<libc::c_void>();
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, victim, none, none) };
        shared.set(0, u64::from(result == 0));
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    tracer.shared.wait(0, 1);
    match RemoteUserfault::create(target.pid, Features::FOR_MISSING) {
        Err(RemoteUserfaultError::Inject(InjectError::AlreadyTraced {
            pid, tracer: by, ..
        })) => {
            assert_eq!((pid, by), (target.pid, tracer.pid));
        }
        other => panic!("{other:?}"),
    }
    drop(tracer);
    create_and_close(&target);
}

#[test]
fn a_process_cannot_inject_into_itself() {
    let error = RemoteUserfault::create(std::process::id(), Features::FOR_MISSING).unwrap_err();
    assert!(
        Report::new(&error)
            .to_string()
            .contains("a process cannot trace itself"),
        "{error}"
    );
}
