//! Why no system call could be made inside another process.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// Making another process do a system call failed. It is as it was before, unless it has ended.
#[derive(Debug, Error)]
pub enum InjectError {
    /// It was not there in the first place.
    #[error("attaching to process {pid}: the process does not exist")]
    NoSuchProcess {
        /// Process ID.
        pid: u32,
    },
    /// It ended while we were at it.
    #[error("process {pid} exited while {step}")]
    Died {
        /// Process ID.
        pid: u32,
        /// The operation that failed.
        step: &'static str,
    },
    /// A debugger or the like has it.
    #[error(
        "attaching to process {pid}: process {tracer} ({name}) is already tracing it, and Linux \
         allows only one tracer; detach that one and retry"
    )]
    AlreadyTraced {
        /// Process ID.
        pid: u32,
        /// Process ID of the tracer.
        tracer: u32,
        /// The tracer's command name.
        name: String,
    },
    /// The kernel does not let us.
    #[error("attaching to process {pid}: not permitted: {advice}")]
    NotPermitted {
        /// Process ID.
        pid: u32,
        /// What is missing, and what to do.
        advice: String,
    },
    /// It runs under seccomp, which could kill it for our call.
    #[error(
        "attaching to process {pid}: it runs under seccomp (QEMU's -sandbox); the filter could kill the \
         process for an injected system call and must be suspended first, which {reason}"
    )]
    Sandboxed {
        /// Process ID.
        pid: u32,
        /// What that needs.
        reason: &'static str,
    },
    /// No thread came to a stop.
    #[error(
        "attaching to process {pid}: none of the {threads} threads tried stopped within {millis} ms \
         each plus one second in total (blocked in the kernel by storage, NFS or a page fault); retry \
         when the process makes progress"
    )]
    NoThreadStops {
        /// Process ID.
        pid: u32,
        /// Number of threads tried.
        threads: usize,
        /// Time limit per thread, in milliseconds.
        millis: u128,
    },
    /// A 32-bit process, or not x86-64 code at all.
    #[error(
        "attaching to process {pid}: it does not run 64-bit x86 code; only x86-64 is supported"
    )]
    NotAmd64 {
        /// Process ID.
        pid: u32,
    },
    /// Nowhere to make the call from.
    #[error(
        "attaching to process {pid}: it has no vDSO with a system call instruction (was the kernel \
         booted with vdso=0?)"
    )]
    NoVdso {
        /// Process ID.
        pid: u32,
    },
    /// The injected call is still running.
    #[error(
        "the system call injected into process {pid} has not returned within {millis} ms; the process \
         is restored when it returns, so leave this program running until then"
    )]
    Overdue {
        /// Process ID.
        pid: u32,
        /// Waiting time, in milliseconds.
        millis: u128,
    },
    /// Whoever traces was killed, and perhaps the process with it.
    #[error("attaching to process {pid}: the tracing process was killed; process {pid} may crash")]
    TracerKilled {
        /// Process ID.
        pid: u32,
    },
    /// No thread, or no process, could be started to trace from.
    #[error("attaching to process {pid}: starting the tracing thread or process: {source}")]
    NoThread {
        /// Process ID.
        pid: u32,
        /// The error from the system.
        source: io::Error,
    },
    /// A bug of ours.
    #[error("attaching to process {pid}: the tracing thread panicked (this is a bug)")]
    Panicked {
        /// Process ID.
        pid: u32,
    },
    /// Reading what `/proc` says, or its memory.
    #[error("{doing} of process {pid}: {source}")]
    Proc {
        /// Process ID.
        pid: u32,
        /// The operation that failed.
        doing: &'static str,
        /// The error from the system.
        source: io::Error,
    },
    /// Any other failure of ptrace.
    #[error("{doing} process {pid} by ptrace: {source}")]
    Ptrace {
        /// Process ID.
        pid: u32,
        /// The operation that failed.
        doing: &'static str,
        /// The error from the kernel.
        source: Errno,
    },
    /// The thread stopped where it should not.
    #[error("process {pid}: thread {tid} stopped unexpectedly (status {status:#x}) while {step}")]
    UnexpectedStop {
        /// Process ID.
        pid: u32,
        /// Thread ID.
        tid: u32,
        /// Status that `waitid` returned.
        status: i32,
        /// The operation that failed.
        step: &'static str,
    },
}
