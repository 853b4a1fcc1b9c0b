//! userfaultfd: obtaining one inside another process, reading faults, installing pages.
//!
//! # The model
//!
//! A [`Userfault`] watches ranges of **one process's** memory: the one that made it, whoever holds
//! the descriptor. In the ranges [registered](Userfault::register) for *missing* pages, a thread
//! that touches a page that is not there sleeps, and a message tells who and where
//! ([`Userfault::wait`], [`Userfault::read`]). [`Userfault::copy`] installs the page atomically and
//! wakes the thread. In the ranges registered for *write protection* with
//! [`Features::WP_ASYNC`] nobody sleeps; the kernel notes which pages were written, which is the
//! base of a dirty log.
//!
//! The guest's memory belongs to an unmodified QEMU, so the descriptor must be made **inside** it.
//! [`RemoteUserfault::create`] does: it stops one thread by ptrace, makes it do the one system call,
//! puts it back where it was and copies the descriptor to us. What keeps the process from harm is
//! told at the head of `linux/src/inject/mod.rs`. QEMU being an ordinary user's process, without the right to a
//! userfaultfd, is provided for (`dev_userfaultfd.rs`).
//!
//! A huge page that arrives in pieces is put together in a [`PageBuffer`] and installed whole
//! ([`Userfault::copy_buffer_unless`]).
//!
//! # What must be known
//!
//! * Closing the last copy makes missing pages read as **zero**, without a sign. Close only when
//!   every page is present, or the guest is stopped for good.
//! * A descriptor that is open with nobody reading makes the guest hang.
//! * A message that was read is gone; a new reader gets it again after [`Userfault::wake`].
//! * Descriptors here are never user-mode-only: KVM's faults are the kernel's.
//!
//! # What is missing
//!
//! * Other processors than x86-64: the injection knows its registers.
//! * MINOR faults, `UFFDIO_MOVE`, `UFFDIO_POISON`. (`UFFDIO_CONTINUE` only tells what is there.)
//! * One descriptor is one queue; sharding it over several for guests of very many vCPUs.

#![allow(unsafe_code)] // ptrace and ioctl: this crate is where the kernel's interface is.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "hikkoshi-userfault injects system calls by x86-64 Linux's registers; port src/inject"
);

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
pub use event::{Event, EventBuffer, Fault, ReadError, Ready};
pub use fault_waiter::FaultWaiter;
pub use features::Features;
pub use open_userfaults::{OpenUserfault, open_userfaults};
pub use page_buffer::PageBuffer;
pub use remote_userfault::{CloseRemoteError, RemoteUserfault, RemoteUserfaultError, close_remote};
pub use userfault::{ApiError, CreateError, RangeError, RegisterMode, Registered, Userfault};
