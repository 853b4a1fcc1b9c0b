//! Selects a thread of the process and stops it.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::error::InjectError;
use super::tracee::{Halt, Tracee};
use crate::process::{CAP_SYS_PTRACE, Process, have_capability, status_field};
use crate::suspend_seccomp::suspend_seccomp_obstacle;

/// How long to wait for one thread to stop before the next one is tried. A thread usually stops
/// within microseconds, unless the machine is overloaded.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// How long to wait at the end for all threads that did not stop in time: on an overloaded machine
/// a thread may have to wait for a processor.
const LATE_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// How often to look whether a process is exiting.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum number of threads to try: a process with so many threads that do not stop is stuck.
const MAX_THREADS: usize = 32;

/// A stopped thread, and the threads that were asked to stop and did not. Those stay seized until
/// this is dropped (ptrace cannot detach from a running thread), and continue to run.
#[derive(Debug)]
pub(super) struct Stopped {
    pub(super) tracee: Tracee,
    pub(super) _late: Vec<Tracee>,
}

/// Stops the main thread, or another thread if that fails. A process that is exiting counts as one
/// that does not exist: its threads do not stop any more.
pub(super) fn stop_a_thread(process: &Process) -> Result<Stopped, InjectError> {
    let pid = process.pid();
    let gone = || InjectError::NoSuchProcess { pid };
    if process.has_lost_memory() {
        return Err(gone());
    }
    let threads = process.threads().map_err(|source| InjectError::Proc {
        pid,
        doing: "listing the threads",
        source,
    })?;
    let mut late = Vec::new();
    let mut refusal = None;
    for tid in threads.into_iter().take(MAX_THREADS) {
        match seize_and_stop(process, tid) {
            Ok(Attempt::Stopped(tracee)) if is_thread_of(process, &tracee) => {
                match suspend_seccomp(pid, &tracee) {
                    Ok(()) => {
                        return Ok(Stopped {
                            tracee,
                            _late: late,
                        });
                    }
                    Err(error) => refusal = refusal.or(Some(error)),
                }
            }
            Ok(Attempt::Stopped(_) | Attempt::Gone) => {}
            Ok(Attempt::Late(tracee)) => late.push(tracee),
            // Seccomp and the tracer are per thread; another thread may work.
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    let deadline = Instant::now() + LATE_STOP_TIMEOUT;
    while !late.is_empty() && Instant::now() < deadline {
        if process.has_lost_memory() {
            return Err(gone());
        }
        for tracee in std::mem::take(&mut late) {
            let deadline = Instant::now() + LATE_STOP_TIMEOUT / 100;
            match wait_for_stop(pid, tracee, deadline)? {
                Attempt::Stopped(tracee) if is_thread_of(process, &tracee) => {
                    suspend_seccomp(pid, &tracee)?;
                    return Ok(Stopped {
                        tracee,
                        _late: late,
                    });
                }
                Attempt::Stopped(_) | Attempt::Gone => {}
                Attempt::Late(tracee) => late.push(tracee),
            }
        }
    }
    if process.has_lost_memory() {
        return Err(gone());
    }
    // Every thread that was tried has ended: the others end, too.
    while refusal.is_none() && late.is_empty() && Instant::now() < deadline {
        if process.has_lost_memory() {
            return Err(gone());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(refusal.unwrap_or(InjectError::NoThreadStops {
        pid,
        millis: STOP_TIMEOUT.as_millis(),
    }))
}

/// Whether the thread belongs to the process. Its ID was in the process's list, but may have been
/// reused since. If the pidfd's process is still alive, a stopped thread in its list is its own.
fn is_thread_of(process: &Process, tracee: &Tracee) -> bool {
    let path = format!("/proc/{}/task/{}", process.pid(), tracee.tid());
    let listed = std::fs::exists(path);
    listed.unwrap_or(false) && process.is_alive()
}

enum Attempt {
    Stopped(Tracee),
    Late(Tracee),
    Gone,
}

fn seize_and_stop(process: &Process, tid: u32) -> Result<Attempt, InjectError> {
    let pid = process.pid();
    let status = format!("/proc/{pid}/task/{tid}/status");
    if is_sandboxed(&status)
        && let Some(reason) = suspend_seccomp_obstacle()
    {
        return Err(InjectError::Sandboxed { pid, reason });
    }
    let tracee = match Tracee::seize(tid) {
        Ok(tracee) => tracee,
        Err(Errno::SRCH) => return Ok(Attempt::Gone),
        Err(errno) => return seize_error(pid, &status, errno),
    };
    match tracee.interrupt() {
        Ok(()) => wait_for_stop(pid, tracee, Instant::now() + STOP_TIMEOUT),
        Err(Errno::SRCH) => Ok(Attempt::Gone),
        Err(source) => Err(InjectError::Ptrace {
            pid,
            doing: "interrupting",
            source,
        }),
    }
}

fn is_sandboxed(status: &str) -> bool {
    status_field(status, "Seccomp").is_some_and(|mode| mode != "0")
}

/// Suspends the filter of a stopped thread, if it has one. Not before: until then the thread
/// executes system calls of its own, which the filter is for.
fn suspend_seccomp(pid: u32, tracee: &Tracee) -> Result<(), InjectError> {
    if !is_sandboxed(&format!("/proc/{pid}/task/{}/status", tracee.tid())) {
        return Ok(());
    }
    tracee.suspend_seccomp().map_err(|errno| match errno {
        Errno::INVAL => InjectError::Sandboxed {
            pid,
            reason: "needs a kernel with CONFIG_CHECKPOINT_RESTORE",
        },
        source => match suspend_seccomp_obstacle() {
            Some(reason) => InjectError::Sandboxed { pid, reason },
            None => InjectError::Ptrace {
                pid,
                doing: "suspending the seccomp filter of",
                source,
            },
        },
    })
}

/// Waits until an interrupted thread stops.
fn wait_for_stop(pid: u32, mut tracee: Tracee, deadline: Instant) -> Result<Attempt, InjectError> {
    loop {
        let signal = match tracee.wait(Some(deadline)) {
            Some(Halt::Trap) => return Ok(Attempt::Stopped(tracee)),
            // The thread was about to receive a signal. Deliver it: the requested stop follows
            // immediately.
            Some(Halt::Signal(signal)) => signal,
            Some(Halt::Syscall | Halt::Other(_)) => 0,
            Some(Halt::Ended) => return Ok(Attempt::Gone),
            None => return Ok(Attempt::Late(tracee)),
        };
        match tracee.run(signal) {
            Ok(()) => {}
            Err(Errno::SRCH) => return Ok(Attempt::Gone),
            Err(source) => {
                return Err(InjectError::Ptrace {
                    pid,
                    doing: "continuing",
                    source,
                });
            }
        }
    }
}

/// Determines why seizing failed; the kernel returns the same error number for several causes.
fn seize_error(pid: u32, status: &str, errno: Errno) -> Result<Attempt, InjectError> {
    let state = status_field(status, "State").unwrap_or_default();
    if state.is_empty() || state.starts_with(['Z', 'X']) {
        return Ok(Attempt::Gone);
    }
    let tracer = status_field(status, "TracerPid")
        .and_then(|tracer| tracer.parse().ok())
        .unwrap_or(0);
    if tracer != 0 {
        let name = std::fs::read_to_string(format!("/proc/{tracer}/comm"))
            .map_or_else(|_| "name unknown".to_owned(), |name| name.trim().to_owned());
        return Err(InjectError::AlreadyTraced { pid, tracer, name });
    }
    if errno != Errno::PERM {
        return Err(InjectError::Ptrace {
            pid,
            doing: "seizing",
            source: errno,
        });
    }
    Err(InjectError::NotPermitted {
        pid,
        advice: permission_advice(),
    })
}

fn permission_advice() -> String {
    if have_capability(CAP_SYS_PTRACE) {
        return "this program has CAP_SYS_PTRACE, but a security module or a seccomp filter denies \
                the access, or the process is in a user namespace where that capability has no \
                effect"
            .to_owned();
    }
    let mut advice =
        "this program does not have CAP_SYS_PTRACE; run it as root or with that capability"
            .to_owned();
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if let Ok(scope) = scope
        && scope.trim() != "0"
    {
        advice.push_str(&format!(
            " (kernel.yama.ptrace_scope is {}, so the same user ID is not sufficient)",
            scope.trim()
        ));
    }
    advice
}
