//! States of an injection that tests from outside cannot reach reliably.

use std::io::{PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::target::{Target, eventually};

/// A process that counts, and detects changes of its registers and its stack.
fn counter() -> (Target, Arc<Process>) {
    let target = Target::spawn(|shared| {
        let canary = std::hint::black_box([0x5a5a_5a5a_5a5a_5a5au64; 64]);
        while shared.get(1) == 0 {
            shared.add(0, 1);
            std::thread::sleep(Duration::from_millis(1));
            if canary.iter().any(|word| *word != 0x5a5a_5a5a_5a5a_5a5a) {
                return 1;
            }
        }
        0
    });
    target.shared.wait(0, 1);
    let process = Arc::new(Process::open(target.pid).unwrap());
    (target, process)
}

fn runs_on(target: &Target) {
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 3);
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0);
}

fn getppid(remote: &mut Remote) -> Result<u64, InjectError> {
    let result = remote.syscall("asking for its parent", libc::SYS_getppid, [0; 6])?;
    Ok(result.unwrap())
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn several_calls_in_one_stop() {
    let (target, process) = counter();
    let answers = inject(
        &process,
        |remote| {
            let parents = [getppid(remote)?, getppid(remote)?];
            let bad = remote.syscall(
                "closing nothing",
                libc::SYS_close,
                [int_arg(-1), 0, 0, 0, 0, 0],
            );
            Ok::<_, InjectError>((parents, bad?))
        },
        drop,
    );
    let us = u64::from(std::process::id());
    assert_eq!(answers.unwrap(), ([us, us], Err(rustix::io::Errno::BADF)));
    runs_on(&target);
}

#[test]
fn death_before_the_call() {
    let (_target, process) = counter();
    let pid = process.pid();
    let result = inject(
        &process,
        move |remote| {
            kill(pid);
            getppid(remote)
        },
        drop,
    );
    assert!(
        matches!(result, Err(InjectError::Died { step, .. }) if step == "asking for its parent"),
        "{result:?}"
    );
}

#[test]
fn death_after_the_call() {
    let (_target, process) = counter();
    let pid = process.pid();
    let result = inject(
        &process,
        move |remote| {
            let parent = getppid(remote);
            kill(pid);
            parent
        },
        drop,
    );
    assert_eq!(
        result.unwrap_err().to_string(),
        format!("process {pid} exited while restoring its registers")
    );
}

#[test]
fn death_while_its_memory_is_used() {
    let (_target, process) = counter();
    let pid = process.pid();
    let result = inject(
        &process,
        move |remote| {
            let scratch = remote.scratch(64)?;
            kill(pid);
            // The memory disappears some time after the kill; the thread leaves its stop before
            // that.
            let process = Process::open(pid).unwrap();
            while process.is_alive() {
                std::thread::yield_now();
            }
            remote.write(scratch.at, &[1; 64])
        },
        drop,
    );
    assert!(
        matches!(result, Err(InjectError::Died { .. })),
        "{result:?}"
    );
}

/// The first process of a PID namespace does not end before all others in it have been waited for:
/// it has neither memory nor files then, as every process has for a short time at its end.
#[test]
fn a_process_that_is_exiting_counts_as_gone() {
    let mut namespace = Command::new("unshare")
        .args(["--pid", "--fork", "sleep", "1000"])
        .spawn()
        .unwrap();
    let first = child_of(namespace.id());
    let mut other = Command::new("nsenter")
        .args(["--target", &first.to_string(), "--pid", "sleep", "1000"])
        .spawn()
        .unwrap();
    child_of(other.id());
    let waits = rustix::process::Pid::from_child(&other);
    rustix::process::kill_process(waits, rustix::process::Signal::STOP).unwrap();
    // Before it has stopped, it would wait for its child, and the first process could end.
    eventually("the other process to stop", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", other.id()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    });
    let process = Arc::new(Process::open(first).unwrap());
    assert!(!process.has_lost_memory());
    kill(first);
    eventually("the process to exit", || process.has_lost_memory());
    assert!(process.is_alive());
    let result = inject(&process, getppid, drop);
    let exiting = process.is_alive();
    rustix::process::kill_process(waits, rustix::process::Signal::CONT).unwrap();
    other.wait().unwrap();
    namespace.wait().unwrap();
    assert!(exiting, "it was to be waited for");
    assert!(
        matches!(result, Err(InjectError::NoSuchProcess { pid }) if pid == first),
        "{result:?}"
    );
}

/// The first child of a process that will have one.
fn child_of(pid: u32) -> u32 {
    let mut found = None;
    eventually("its child", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        found = children
            .ok()
            .and_then(|all| all.split_whitespace().next()?.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn the_scratch_memory_is_restored() {
    let (target, process) = counter();
    let (before, after) = inject(
        &process,
        |remote| {
            let scratch = remote.scratch(512)?;
            let (mut before, mut after) = ([0; 512], [0; 512]);
            remote.read(scratch.at, &mut before)?;
            remote.write(scratch.at, &[0xa5; 512])?;
            getppid(remote)?;
            remote.restore_scratch(&scratch)?;
            remote.read(scratch.at, &mut after)?;
            assert_eq!(scratch.at % 16, 0);
            Ok::<_, InjectError>((before, after))
        },
        drop,
    )
    .unwrap();
    assert_eq!(before, after);
    runs_on(&target);
}

/// A panic of this program must not crash the guest.
#[test]
fn a_panic_leaves_the_process_unchanged() {
    let (target, process) = counter();
    let result: Result<(), _> = inject(
        &process,
        |remote| {
            getppid(remote)?;
            panic!("meant to: the thread that injects panics")
        },
        drop,
    );
    assert!(
        matches!(result, Err(InjectError::Panicked { .. })),
        "{result:?}"
    );
    runs_on(&target);
}

/// A process that counts, like `counter`, and has the read end of the pipe open: an injected read
/// returns when the test writes.
fn reader() -> (Target, Arc<Process>, u64, PipeWriter) {
    let (end, writer) = pipe().unwrap();
    // The number is the same there: the process is a fork of this one.
    let number = u64::from(end.as_raw_fd().unsigned_abs());
    let (target, process) = counter();
    (target, process, number, writer)
}

/// Reads a byte from the pipe `from`, in the process.
fn read_byte(remote: &mut Remote, from: u64) -> Result<Result<u64, Errno>, InjectError> {
    let scratch = remote.scratch(16)?;
    let arguments = [from, scratch.at, 1, 0, 0, 0];
    let read = remote.syscall("reading", libc::SYS_read, arguments)?;
    remote.restore_scratch(&scratch)?;
    Ok(read)
}

/// A call that takes too long is not abandoned: the caller gets an error, and the process is
/// restored when the call returns.
#[test]
fn a_late_call_is_completed_and_undone() {
    let (target, process, number, mut writer) = reader();
    loop {
        let (begin, begun) = channel();
        let (sender, undone) = channel();
        let result = inject_within(
            Duration::from_millis(20),
            &process,
            move |remote| {
                begin.send(()).unwrap();
                read_byte(remote, number)
            },
            move |late| sender.send(late).unwrap(),
        );
        let begun = begun.recv().is_ok();
        match result {
            Err(InjectError::Overdue { millis: 20, .. }) if begun => {}
            // On a busy machine a thread may not stop within the time limit: retry.
            Err(InjectError::Overdue { .. } | InjectError::NoThreadStops { .. }) if !begun => {
                continue;
            }
            other => panic!("{other:?}"),
        }
        writer.write_all(b"!").unwrap();
        assert_eq!(undone.recv().unwrap(), Ok(1));
        break;
    }
    runs_on(&target);
}

/// The injecting process is killed while the registers are changed: the traced process is not
/// affected.
#[test]
fn the_injecting_process_is_killed() {
    let (target, process, number, mut writer) = reader();
    let injector = Target::spawn({
        let process = Arc::clone(&process);
        move |_| {
            loop {
                let result = inject(&process, move |remote| read_byte(remote, number), drop);
                // As above.
                if !matches!(result, Err(InjectError::NoThreadStops { .. })) {
                    return i32::from(result.is_err());
                }
            }
        }
    });
    target.wait_in_syscall(target.pid, libc::SYS_read);
    kill(injector.pid);
    assert_eq!(injector.join(), -libc::SIGKILL);
    writer.write_all(b"!").unwrap();
    let laps = target.shared.get(0);
    target.shared.wait(0, laps + 3);
    runs_on(&target);
}

/// The filter stays until the thread has stopped: until then it executes calls of its own.
#[test]
fn a_seized_thread_keeps_its_filter_until_it_stops() {
    if crate::suspend_seccomp_obstacle().is_some() {
        eprintln!("SKIPPED: suspending a seccomp filter needs root");
        return;
    }
    let target = Target::spawn(|shared| {
        // Other calls are allowed. SAFETY: the call has no argument that is a pointer.
        let forbidden = || unsafe { libc::syscall(libc::SYS_getppid) };
        forbid(libc::SYS_getppid);
        while shared.get(1) == 0 {
            if forbidden() >= 0 {
                shared.add(2, 1);
            }
            shared.add(0, 1);
        }
        0
    });
    target.shared.wait(0, 1);
    let mut tracee = tracee::Tracee::seize(target.pid).unwrap();
    let calls = target.shared.get(0);
    target.shared.wait(0, calls + 1000);
    assert_eq!(
        target.shared.get(2),
        0,
        "its filter was suspended while it ran"
    );
    tracee.interrupt().unwrap();
    assert_eq!(tracee.wait(None), Some(tracee::Halt::Trap));
    tracee.suspend_seccomp().unwrap();
    tracee.detach().unwrap();
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0);
}

/// Lets this call fail with `EPERM` in this thread.
fn forbid(call: i64) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let rules = [(call, Vec::new())].into();
    let (allow, error) = (SeccompAction::Allow, SeccompAction::Errno(1));
    let filter = SeccompFilter::new(
        rules,
        allow,
        error,
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}
