//! Linux kernel interfaces that several crates use.
//!
//! # Model
//!
//! Each module wraps one kernel interface in safe Rust. The crate knows nothing about guests,
//! pages or migrations.
//!
//! * Other processes: [`Process`] (a pidfd, signals, and the data in `/proc/PID`), [`inject`]
//!   (system calls that another process executes for us), [`HostAddr`] and [`HostRange`] (addresses
//!   in another process), [`drop_pages()`], [`Process::collapse`] (`MADV_COLLAPSE`), [`Pagemap`]
//!   (which pages it has, and which were written), [`memory_available`] (how many more it can
//!   have), [`suspend_seccomp_obstacle`] (whether its seccomp filter can be suspended),
//!   [`wait_until_idle`] (until it waits), [`serving_process()`] (which one serves a socket).
//! * Threads: [`Priority`] (urgent threads before background
//!   threads), [`sandbox_thread`] (Landlock, seccomp and capabilities), [`kernel_thread_name`]
//!   (threads of the kernel).
//! * This process: [`sandbox_process()`] (the same, for a server that only reads one folder).
//! * Requests to stop: [`StopEventFd`] (an eventfd, for loops that wait in `poll`), [`CancelFlag`]
//!   (a flag, for loops that check it between pieces of work and for signal handlers).
//! * Clocks: [`monotonic_ns`].
//! * Files: [`lock_byte_shared`] (locks that processes share), [`check_rights`] (whether other
//!   users could have written one).
//! * Sockets: [`TcpInfo`] (`TCP_INFO`), [`set_pace`] (`SO_MAX_PACING_RATE`),
//!   [`connect_unix()`] (without waiting), [`bind_unix()`], [`socket_file()`] (by which a socket
//!   is reached).
//! * A service manager: [`activated_sockets`] (those that it has passed), and [`notify_ready()`].
//!
//! # Vocabulary
//!
//! * *inject*: stop one thread of a process with ptrace, execute system calls on it, restore it.
//! * *tracer process*: the process that traces. It shares memory and files with this program but
//!   survives its death (`inject/tracer_process.rs`).
//! * *sandboxed thread*: a thread that reads data from a peer and has given up all rights that it
//!   does not need.
//!
//! # What is missing
//!
//! * Processors other than x86-64: [`inject`] uses x86-64 registers.

#![allow(unsafe_code)] // ptrace, clone, and system calls that rustix does not wrap.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("hikkoshi-linux injects system calls with x86-64 Linux registers; port src/inject");

mod activation;
mod address;
mod available_memory;
mod bind_unix;
mod cancel_flag;
mod cgroups;
mod collapse;
mod connect_unix;
mod drop_pages;
mod errno;
mod file_rights;
mod idle_process;
pub mod inject;
mod kernel_thread;
mod monotonic;
mod notify_ready;
mod ofd_lock;
mod oom_kills;
mod own_session;
mod pagemap;
mod priority;
mod process;
mod remote_file;
mod sandbox;
mod sandbox_process;
mod schedule;
mod serving_process;
mod socket_file;
mod stop_eventfd;
mod stop_process;
mod suspend_seccomp;
mod tcp;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod target;

pub use activation::activated_sockets;
pub use address::{HostAddr, HostRange};
pub use available_memory::{
    AvailableMemory, CgroupLimit, host_memory_available, huge_pages_available, memory_available,
};
pub use bind_unix::bind_unix;
pub use cancel_flag::CancelFlag;
pub use collapse::{COLLAPSE_BYTES, CollapseError};
pub use connect_unix::{connect_unix, is_accepted, is_served};
pub use drop_pages::{DropPagesError, drop_pages};
pub use errno::last_errno;
pub use file_rights::{Others, UnsafeRights, check_rights};
pub use idle_process::wait_until_idle;
pub use inject::InjectError;
pub use kernel_thread::{is_kernel_worker, kernel_thread_name};
pub use monotonic::monotonic_ns;
pub use notify_ready::notify_ready;
pub use ofd_lock::{has_locked_byte, lock_byte_shared, unlock_byte};
pub use oom_kills::{OomKill, OomKillCount, OomKills};
pub use own_session::in_own_session;
pub use pagemap::{PageCategories, PageQuery, Pagemap};
pub use priority::{Priority, PriorityClass};
pub use process::{CAP_SYS_PTRACE, Process};
pub use remote_file::{ReopenError, close_in, reopen_for_writing};
pub use rustix::io::Errno;
pub use sandbox::sandbox_thread;
pub use sandbox_process::{SandboxError, sandbox_process};
pub use schedule::Policy;
pub use serving_process::serving_process;
pub use socket_file::socket_file;
pub use stop_eventfd::StopEventFd;
pub use suspend_seccomp::{is_in_initial_user_namespace, suspend_seccomp_obstacle};
pub use tcp::{TcpInfo, set_pace};
