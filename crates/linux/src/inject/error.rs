//! Why no system call could be made inside another process.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// Making another process do a system call failed. It is as it was before, unless it has ended.
#[derive(Debug, Error)]
pub enum InjectError {
    /// It was not there in the first place.
    #[error("attaching to process {pid}: there is no such process (any more)")]
    NoSuchProcess {
        /// Its number.
        pid: u32,
    },
    /// It ended while we were at it.
    #[error("process {pid} ended while {step}")]
    Died {
        /// Its number.
        pid: u32,
        /// What was being done.
        step: &'static str,
    },
    /// A debugger or the like has it.
    #[error(
        "attaching to process {pid}: it is being traced by process {tracer} ({name}); only one \
         tracer is possible, detach that one and try again"
    )]
    AlreadyTraced {
        /// Its number.
        pid: u32,
        /// The tracer's number.
        tracer: u32,
        /// The tracer's command name.
        name: String,
    },
    /// The kernel does not let us.
    #[error("attaching to process {pid}: not permitted: {advice}")]
    NotPermitted {
        /// Its number.
        pid: u32,
        /// What is missing, and what to do.
        advice: String,
    },
    /// It runs under seccomp, which could kill it for our call.
    #[error(
        "attaching to process {pid}: it runs under seccomp (QEMU's -sandbox), whose filter must be \
         suspended for the injected calls, or it could kill the process for them; that {reason}"
    )]
    Sandboxed {
        /// Its number.
        pid: u32,
        /// What that needs.
        reason: &'static str,
    },
    /// No thread came to a stop.
    #[error(
        "attaching to process {pid}: none of the {threads} threads tried came to a stop within \
         {millis} ms each and a second more (waiting for storage, NFS, or in a kernel-mode page fault); try again when \
         the process makes progress"
    )]
    NoThreadStops {
        /// Its number.
        pid: u32,
        /// How many were tried.
        threads: usize,
        /// Patience per thread, milliseconds.
        millis: u128,
    },
    /// A 32-bit process, or not x86-64 code at all.
    #[error(
        "attaching to process {pid}: it is not running 64-bit x86 code, which is all we can inject"
    )]
    NotAmd64 {
        /// Its number.
        pid: u32,
    },
    /// Nowhere to make the call from.
    #[error(
        "attaching to process {pid}: it has no vDSO with a system call instruction (kernel booted \
         with vdso=0?)"
    )]
    NoVdso {
        /// Its number.
        pid: u32,
    },
    /// The injected call is still running.
    #[error(
        "the system call injected into process {pid} has not ended for {millis} ms; it will be \
         cleaned up when it does, until then leave this program running"
    )]
    Overdue {
        /// Its number.
        pid: u32,
        /// How long was waited, milliseconds.
        millis: u128,
    },
    /// Whoever traces was killed, and perhaps the process with it.
    #[error(
        "attaching to process {pid}: the tracing process was killed on its way; process {pid} may \
         end"
    )]
    TracerKilled {
        /// Its number.
        pid: u32,
    },
    /// No thread, or no process, could be started to trace from.
    #[error("attaching to process {pid}: starting a thread for it: {source}")]
    NoThread {
        /// Its number.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
    /// A bug of ours.
    #[error("attaching to process {pid}: the tracing thread panicked, this is a bug")]
    Panicked {
        /// Its number.
        pid: u32,
    },
    /// Reading what `/proc` says, or its memory.
    #[error("{doing} of process {pid}: {source}")]
    Proc {
        /// Its number.
        pid: u32,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Any other failure of ptrace.
    #[error("{doing} process {pid} by ptrace: {source}")]
    Ptrace {
        /// Its number.
        pid: u32,
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: Errno,
    },
    /// The thread stopped where it should not.
    #[error("process {pid}: thread {tid} stopped unexpectedly (status {status:#x}) while {step}")]
    UnexpectedStop {
        /// Its number.
        pid: u32,
        /// The thread.
        tid: u32,
        /// What `waitid` reported.
        status: i32,
        /// What was being done.
        step: &'static str,
    },
}
