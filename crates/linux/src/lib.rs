//! Kernel interfaces that several crates use.
//!
//! * Other processes: [`Process`] (a pidfd and what `/proc` reports), [`inject`] (system calls made
//!   by another process), [`HostAddr`] and [`HostRange`] (addresses in it),
//!   [`Process::collapse`] (`MADV_COLLAPSE`).
//! * Threads: [`Schedule`] and [`Priority`] (scheduling policy), [`sandbox_thread`] (Landlock,
//!   seccomp and capabilities), [`Stop`] and [`Cancel`] (requests to end).
//! * Sockets: [`TcpInfo`] (`TCP_INFO`) and [`set_pace`] (`SO_MAX_PACING_RATE`).
//!
//! # What is missing
//!
//! * Processors other than x86-64: [`inject`] uses its registers.

#![allow(unsafe_code)] // ptrace, prctl and system calls that rustix does not have.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("hikkoshi-linux injects system calls by x86-64 Linux's registers; port src/inject");

mod address;
mod cancel;
mod collapse;
mod errno;
pub mod inject;
mod priority;
mod process;
mod sandbox;
mod schedule;
mod stop;
mod tcp;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod target;

pub use address::{HostAddr, HostRange};
pub use cancel::Cancel;
pub use collapse::{COLLAPSE_BYTES, CollapseError};
pub use errno::last_errno;
pub use inject::InjectError;
pub use priority::{Priority, PriorityClass};
pub use process::Process;
pub use rustix::io::Errno;
pub use sandbox::sandbox_thread;
pub use schedule::{Policy, Schedule};
pub use stop::Stop;
pub use tcp::{TcpInfo, set_pace};
