//! Errors of system call injection.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// Injecting a system call failed. The process is unchanged, unless it has exited.
#[derive(Debug, Error)]
pub enum InjectError {
    /// The process does not exist, or is exiting.
    #[error("attaching to process {pid}: the process does not exist")]
    NoSuchProcess {
        /// Process ID.
        pid: u32,
    },
    /// The process exited during the injection.
    #[error("process {pid} exited while {step}")]
    Died {
        /// Process ID.
        pid: u32,
        /// The operation that failed.
        step: &'static str,
    },
    /// Another tracer, such as a debugger, is attached.
    #[error(
        "attaching to process {pid}: process {tracer} ({name}) is already tracing it, and Linux \
         allows only one tracer; detach that one and retry"
    )]
    AlreadyTraced {
        /// Process ID.
        pid: u32,
        /// Process ID of the tracer.
        tracer: u32,
        /// Command name of the tracer.
        name: String,
    },
    /// The kernel denies ptrace.
    #[error("attaching to process {pid}: not permitted: {advice}")]
    NotPermitted {
        /// Process ID.
        pid: u32,
        /// What is missing, and how to resolve it.
        advice: String,
    },
    /// The process runs under seccomp, which could kill it for an injected call.
    #[error(
        "attaching to process {pid}: it runs under seccomp (QEMU's -sandbox); the filter could \
         kill the process for an injected system call and must be suspended first, which {reason}"
    )]
    Sandboxed {
        /// Process ID.
        pid: u32,
        /// What suspending seccomp requires.
        reason: &'static str,
    },
    /// No thread stopped in time.
    #[error(
        "attaching to process {pid}: none of its threads stopped within {millis} ms each plus one \
         second in total (blocked in the kernel by storage, NFS or a page fault); retry when the \
         process makes progress"
    )]
    NoThreadStops {
        /// Process ID.
        pid: u32,
        /// Time limit per thread, in milliseconds.
        millis: u128,
    },
    /// A 32-bit process, or not x86-64 code.
    #[error(
        "attaching to process {pid}: it does not run 64-bit x86 code; only x86-64 is supported"
    )]
    NotAmd64 {
        /// Process ID.
        pid: u32,
    },
    /// The process has no `syscall` instruction that can be used.
    #[error(
        "attaching to process {pid}: it has no vDSO with a system call instruction (was the kernel \
         booted with vdso=0?)"
    )]
    NoVdso {
        /// Process ID.
        pid: u32,
    },
    /// The injected call has not returned in time.
    #[error(
        "the system call injected into process {pid} has not returned within {millis} ms; the \
         process is restored when it returns, so leave this program running until then"
    )]
    Overdue {
        /// Process ID.
        pid: u32,
        /// Waiting time, in milliseconds.
        millis: u128,
    },
    /// The tracer process was killed, which may crash the traced process.
    #[error("attaching to process {pid}: the tracing process was killed; process {pid} may crash")]
    TracerKilled {
        /// Process ID.
        pid: u32,
    },
    /// The tracing thread or process could not be started.
    #[error("attaching to process {pid}: starting the tracing thread or process")]
    NoThread {
        /// Process ID.
        pid: u32,
        /// The error from the system.
        source: io::Error,
    },
    /// A bug in this program.
    #[error("attaching to process {pid}: the tracing thread panicked (this is a bug)")]
    Panicked {
        /// Process ID.
        pid: u32,
    },
    /// Reading `/proc` or the memory of the process failed.
    #[error("{doing} of process {pid}")]
    Proc {
        /// Process ID.
        pid: u32,
        /// The operation that failed.
        doing: &'static str,
        /// The error from the system.
        source: io::Error,
    },
    /// Any other ptrace error.
    #[error("{doing} process {pid} by ptrace")]
    Ptrace {
        /// Process ID.
        pid: u32,
        /// The operation that failed.
        doing: &'static str,
        /// The error from the kernel.
        source: Errno,
    },
    /// The thread stopped at an unexpected place.
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
