//! Making another process do a few system calls of our choosing.
//!
//! One thread of the process is stopped with `PTRACE_SEIZE` and `PTRACE_INTERRUPT`, is pointed at
//! the `syscall` instruction of its vDSO with our arguments in its registers, and is put back where
//! it was. The process notices as much as it would of `SIGSTOP` and `SIGCONT`: the system call the
//! thread was in restarts, or ends with `EINTR` where `signal(7)` says that it would.
//!
//! What keeps the process from harm:
//!
//! * Registers are put back on every way out, a panic included ([`remote::Remote`]).
//! * Signals are held back while the registers are ours: they stay pending in the kernel and reach
//!   the process when its own signal mask is back. `SIGSTOP`, which cannot be held back, is passed
//!   on at once.
//! * It all happens in a process made for it, which shares this one's memory and files (`tracer_process.rs`).
//!   The kernel lets go of everything a tracer held when it ends, so also of a thread that could not
//!   be stopped in time. And if an injected call takes unreasonably long, the caller gets an error
//!   while that process goes on waiting, to put the registers back whenever it ends: giving up would
//!   crash the process. For the same reason it outlives this program, however that is killed.
//!
//! What is not guarded against is that both are killed within the fraction of a millisecond in which
//! the registers are ours: with their whole control group, or for want of memory; and that this
//! program is killed just then while another thread of it holds the allocator's lock that the
//! tracing process needs.

mod error;
mod remote;
mod seize;
#[cfg(test)]
mod tests;
mod tracee;
mod tracer_process;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

pub use error::InjectError;
pub use remote::{Remote, Scratch};

use self::tracer_process::TracerProcessError;
use crate::process::Process;

/// How long the caller waits for all of it. Normal is below a millisecond; a process that is being
/// torn down, or that holds its memory layout locked, can keep an injected `close` for long.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Stops a thread of `process`, runs `work` on it, lets it go.
///
/// `undo` is given the result if it comes so late that the caller has been told otherwise.
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
    // No buffer: a result is either taken by the caller or comes back to be undone, never lost
    // in between.
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
        // Only a panic of the thread ends the channel without a result.
        Err(RecvTimeoutError::Disconnected) => Err(InjectError::Panicked { pid }.into()),
    }
}

/// A C `int` as a system call's argument.
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
        // The process has died meanwhile: nothing of it is left to use or to undo.
        (Ok(_), Err(error)) => Err(error.into()),
        (result, _) => result,
    }
}
