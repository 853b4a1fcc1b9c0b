//! Which pages of a guest were written: the [`DirtyLog`] trait, and trackers that implement it.
//!
//! # The model
//!
//! Between two looks at the log a page is *clean* or *dirty*. [`DirtyLog::take`] reports the dirty
//! pages of a range and makes them clean again, in one step: a write is seen by this take or by a
//! later one, never by none. So whoever **copies a page after taking it** has everything that was
//! written before, and hears of everything that is written after. Take a range right before it is
//! sent, not the whole guest at once: then the log is never stale.
//!
//! A log may say too much, never too little: where the kernel maps 2 MiB at once, one write makes all
//! 512 pages dirty.
//!
//! # The trackers
//!
//! * [`PagemapLog`]: another process's memory, from outside. The process need not know.
//!
//! # What it sees, and what it does not
//!
//! No log sees the data of a direct disk read land: only that its pages were pinned, earlier. Such
//! guests have to be drained between take and copy, see [`DirtyLog`].
//!
//! `PagemapLog` sees writes through the page tables of the tracked process: its vCPUs, under TCG or
//! KVM, its own threads, and kernel work on its behalf such as vhost. It does not see other processes
//! that map the same file (vhost-user), writes to the file itself, nor devices that write to memory
//! by themselves (VFIO). Guests with those have to be refused.
//!
//! It does not see memory being *discarded* either (a balloon's hole punch): the content changes to
//! zero without a write. A guest does not rely on what it has discarded.
//!
//! # What is missing
//!
//! * KVM's own logs (bitmap, manual protect, ring), for VMMs that use the engine as a library.
//! * 1 GiB hugetlb pages, and hugetlb at all on older kernels: the kernel cannot track them safely.

#![allow(unsafe_code)] // One ioctl that the kernel has and no crate wraps.

#[doc(hidden)]
pub mod contract_tests;
mod log;
mod pagemap;
mod pagemap_scan;
mod runs;
mod support;

pub use log::{DirtyError, DirtyLog};
pub use pagemap::{PagemapLog, StartError};
pub use support::{UnsupportedKernel, hugetlb_support, support};
