//! userfaultfd: creating one inside another process, reading page faults, installing pages.
//!
//! # Model
//!
//! A [`Userfault`] handles page faults in the memory of **one process**: the process that created
//! the descriptor, whichever process holds it. Ranges are [registered](Userfault::register) in one
//! of two modes:
//!
//! * *missing*: a thread that accesses a page that is not present is blocked. The descriptor
//!   delivers an event with the address and the thread ([`Userfault::wait`], [`Userfault::read`]).
//!   [`Userfault::copy`] installs the page atomically and wakes the thread. Post-copy uses this.
//! * *write-protect* with [`Features::WP_ASYNC`]: no thread is blocked. The kernel records which
//!   pages were written. The dirty log (crate `hikkoshi-dirty`) uses this.
//!
//! The guest's memory belongs to an unmodified QEMU, so the descriptor must be created **inside**
//! QEMU. [`RemoteUserfault::create`] does this with one system call injected by ptrace
//! ([`hikkoshi_linux::inject`] explains how the process is protected) and copies the descriptor
//! into this process. If QEMU may not call `userfaultfd(2)`, it receives an open
//! `/dev/userfaultfd` from this process (`dev_userfaultfd.rs`).
//!
//! A huge page that arrives in pieces is assembled in a [`PageBuffer`] and installed as a whole
//! ([`Userfault::copy_buffer_unless`]).
//!
//! # Vocabulary
//!
//! * *remote*: the copy of the descriptor inside the other process, and its number there.
//! * *adopt*: use the remote descriptor of an earlier hikkoshi process.
//!   [`open_userfaults`](open_userfaults()) finds it.
//! * *present*: the kernel has the page. Threads can access it without a fault.
//! * *wake*: let blocked threads retry their access.
//!
//! # Rules
//!
//! * When the last copy of the descriptor is closed, missing pages read as **zero**, without an
//!   error. Close it only when every page is present, or when the guest never runs again.
//! * While a descriptor is open and no thread reads it, threads of the guest that fault stay
//!   blocked.
//! * An event can be read only once. A new reader gets the event again after [`Userfault::wake`].
//! * Descriptors are never created with `UFFD_USER_MODE_ONLY`: page faults of KVM are kernel-mode
//!   faults.
//!
//! # What is missing
//!
//! * Processors other than x86-64: the injection uses x86-64 registers.
//! * MINOR faults, `UFFDIO_MOVE`, `UFFDIO_POISON`. (`UFFDIO_CONTINUE` is used only to check whether
//!   a page is present.)
//! * Each descriptor has one event queue. Guests with very many vCPUs could use several
//!   descriptors.

#![allow(unsafe_code)] // ioctl, read, kcmp, and memory shared with the kernel.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("hikkoshi-userfault supports only x86-64 Linux, like inject in hikkoshi-linux");

mod abi;
mod copy;
mod dev_userfaultfd;
mod event;
mod fault_waiter;
mod features;
mod open_userfaults;
mod page_buffer;
mod presence;
mod remote_userfault;
mod userfault;

pub use copy::{Copied, CopyError};
pub use dev_userfaultfd::DeviceError;
pub use event::{EventBuffer, Fault, ReadError, Ready, UserfaultEvent};
pub use fault_waiter::FaultWaiter;
pub use features::Features;
pub use open_userfaults::{OpenUserfault, open_userfaults};
pub use page_buffer::PageBuffer;
pub use remote_userfault::{CloseRemoteError, RemoteUserfault, RemoteUserfaultError, close_remote};
pub use userfault::{ApiError, CreateError, RangeError, RegisterMode, Registered, Userfault};
