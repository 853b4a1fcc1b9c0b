//! Dirty logs: the [`DirtyLog`] trait, which reports the written pages of a guest, and the trackers
//! that implement it.
//!
//! # Model
//!
//! A page is *clean* or *dirty*. [`DirtyLog::take`] reports the dirty pages of a range and makes
//! them clean again in one operation: each write is reported by this take or by a later one. So a
//! caller that **copies a page after taking it** has everything that was written before, and a
//! later take reports everything that is written afterwards. Take each range right before it is
//! sent, not the whole guest at once, so that the log is never stale.
//!
//! [`DirtyLog::peek`] reports them and leaves them dirty: for a paused guest, where making pages
//! clean again would only take time.
//!
//! A log may report too much, but never too little: where the kernel maps 2 MiB at once, one write
//! makes all 512 pages dirty.
//!
//! # Trackers
//!
//! * [`PagemapLog`]: the memory of another process, tracked from outside. The process does not have
//!   to cooperate.
//! * [`KvmLog`]: KVM's own log of a VM that this process runs, in three ways ([`kvm`]).
//!
//! A hypervisor with page tables of its own implements the trait itself: `hikkoshi-ept-dirty-log`
//! does it for the tables of `hikkoshi-ept`.
//!
//! # What is reported, and what is not
//!
//! No log reports that the data of a direct disk read has landed; it only reports that the pages
//! were pinned earlier. Such guests must be drained between take and copy: see [`DirtyLog`].
//!
//! `PagemapLog` reports writes through the page tables of the tracked process: by its vCPUs, with
//! TCG or KVM, by its other threads, and by the kernel on its behalf, such as vhost. It does not
//! report writes by other processes that map the same file (vhost-user), writes to the file itself,
//! or writes by devices with direct memory access (VFIO). Guests with those must be refused.
//!
//! **Memory that is dropped** (a guest returns it by a balloon, and it becomes zero without a
//! write): a dirty page stays dirty. The guest may have cleared it before and rely on the zeros.
//! Whether the kernel reports what is left of such pages is found out when the log is started;
//! where it does not, `PagemapLog` looks for them itself. A *clean* page that is dropped need not
//! be reported: the guest returned what it had not written, and cannot rely on either content.
//!
//! # Layers
//!
//! A module uses only those in lines below its own:
//!
//! ```text
//! kernel_check
//! kvm  pagemap
//! log  runs
//! capability_error  unsupported_kernel
//! ```
//!
//! # What is missing
//!
//! * 1 GiB hugetlb pages, and all hugetlb pages on older kernels, are not supported: the kernel
//!   cannot track them safely.

// The test of write tracking maps memory of its own; KVM's logs need system calls.
#![allow(unsafe_code)]

mod capability_error;
#[doc(hidden)]
pub mod contract_tests;
mod kernel_check;
pub mod kvm;
mod log;
mod pagemap;
mod runs;
mod unsupported_kernel;

pub use kernel_check::support;
pub use kvm::KvmLog;
pub use log::{DirtyError, DirtyLog};
pub use pagemap::{PagemapLog, ProtectError, Scan, StartError};
pub use runs::{RunCoalescer, take_pending};
pub use unsupported_kernel::{UnsupportedKernel, hugetlb_support};
