//! Injects system calls into another process.
//!
//! One thread of the process is stopped with `PTRACE_SEIZE` and `PTRACE_INTERRUPT`. Its instruction
//! pointer is set to the `syscall` instruction of its vDSO, with our arguments in its registers,
//! and afterwards it is restored. For the process this has the same effects as `SIGSTOP` and
//! `SIGCONT`: an interrupted system call restarts, or returns `EINTR` where `signal(7)` says so.
//!
//! How the process is protected:
//!
//! * Registers are restored on every path, also after a panic ([`syscall::Remote`]).
//! * Signals are blocked while the registers are changed: they stay pending in the kernel and are
//!   delivered when the signal mask of the process is restored. `SIGSTOP`, which cannot be blocked,
//!   is passed on immediately.
//! * Tracing happens in a separate process, which shares memory and files with this one
//!   (`tracer_process.rs`). When a tracer exits, the kernel detaches all its threads, also a thread
//!   that could not be stopped in time. If an injected call takes too long, the caller gets an
//!   error while that process continues to wait, to restore the registers when the call returns: to
//!   abandon it would crash the other process. For the same reason the tracer process survives the
//!   death of this program.
//!
//! Two cases are not covered. Both processes are killed within the fraction of a millisecond in
//! which the registers are changed (with their control group, or by the OOM killer). Or this
//! program is killed in that time while another of its threads holds the allocator lock that the
//! tracer process needs.

mod error;
mod seize;
mod syscall;
#[cfg(test)]
mod tests;
mod tracee;
mod tracer_process;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

pub use error::InjectError;
pub use syscall::{Remote, Scratch};

use self::tracer_process::TracerProcessError;
use crate::process::Process;

/// Time limit for the whole injection. Usually it takes less than a millisecond; an injected
/// `close` can take long in a process that is exiting or that holds the lock of its memory layout.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Stops a thread of `process`, runs `work` on it, and releases it.
///
/// If the result comes after the caller has received a timeout error, it is passed to `undo`.
pub fn inject<T, E>(
    process: &Arc<Process>,
    work: impl FnOnce(&mut Remote) -> Result<T, E> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<InjectError> + Send + 'static,
{
    inject_within(TIME_LIMIT, process, work, undo)
}

fn inject_within<T, E>(
    limit: Duration,
    process: &Arc<Process>,
    work: impl FnOnce(&mut Remote) -> Result<T, E> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<InjectError> + Send + 'static,
{
    let pid = process.pid();
    if pid == std::process::id() {
        return Err(InjectError::NotPermitted {
            pid,
            advice: "it is this program itself, and a process cannot trace itself".to_owned(),
        }
        .into());
    }
    let process = Arc::clone(process);
    // No buffer: a result is either received by the caller or returned to the sender, which undoes
    // it. It is never lost in between.
    let (sender, receiver) = sync_channel::<Result<T, E>>(0);
    std::thread::Builder::new()
        .name("hk-inject".to_owned())
        .spawn(move || {
            let result = match tracer_process::run(|| run_on_this_thread(&process, work)) {
                Ok(result) => result,
                Err(TracerProcessError::Start(source)) => {
                    Err(InjectError::NoThread { pid, source }.into())
                }
                Err(TracerProcessError::Killed) => Err(InjectError::TracerKilled { pid }.into()),
                Err(TracerProcessError::Panicked(panic)) => std::panic::resume_unwind(panic),
            };
            if let Err(returned) = sender.send(result)
                && let Ok(late) = returned.0
            {
                undo(late);
            }
        })
        .map_err(|source| InjectError::NoThread { pid, source })?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(InjectError::Overdue {
            pid,
            millis: limit.as_millis(),
        }
        .into()),
        // The channel ends without a result only if the thread panics.
        Err(RecvTimeoutError::Disconnected) => Err(InjectError::Panicked { pid }.into()),
    }
}

/// Converts a C `int` to a system call argument.
#[must_use]
pub fn int_arg(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

fn run_on_this_thread<T, E>(
    process: &Process,
    work: impl FnOnce(&mut Remote) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<InjectError>,
{
    let stopped = seize::stop_a_thread(process)?;
    let mut remote = Remote::new(process, stopped)?;
    let result = work(&mut remote);
    let released = remote.release();
    match (result, released) {
        // The process has exited meanwhile: the result is useless and needs no undo.
        (Ok(_), Err(error)) => Err(error.into()),
        (result, _) => result,
    }
}
