//! The migration engine: moves a running guest's memory and device state from
//! one host to another.
//!
//! # Model
//!
//! A migration has a **source** ([`migrate`]) and a **destination** ([`receive`]). Each accesses
//! its guest through a trait ([`SourceGuest`], [`DestinationGuest`]), and the two communicate over
//! links of several kinds ([`hikkoshi_link`]): control, urgent, background, frames, which
//! carries what arrives at the guest's network cards during the switchover (`network_frames.rs`),
//! and one for each disk that is copied (`disks/`).
//! Memory is a flat space of 4 KiB pages (`hikkoshi-pages`), read and written through the RAM
//! blocks' files ([`GuestRam`](hikkoshi_memory::GuestRam)).
//!
//! There are three modes ([`Mode`]). **Pre-copy** sends rounds of dirty pages until the rest fits
//! into the downtime. **Post-copy** moves the guest first; its pages follow. **Hybrid** does one
//! round of pre-copy, then post-copy. All modes share one switchover (drawn in
//! `source/switchover/`), which guarantees two things: *two guests never run at the same time*, and
//! a failure before *commit* leaves the guest running at the source. Two state machines without I/O
//! decide who may run it ([`hikkoshi_handover`]). Their stages are recorded
//! ([`hikkoshi_handover::Journal`]), so links and engines may be lost at any time, and
//! [`resume_migrate`] and [`resume_receive`] continue from there.
//!
//! In post-copy, the thread that reads a page request sends the page. The right to send a page is
//! claimed by clearing its bit in one atomic bitmap. A page that is present in the destination's
//! memory has been received. All other pages are pushed on any number of background links, in an
//! order that reduces waiting (`source/postcopy/push_policy/`): read-ahead, hot pages, then all
//! others.
//!
//! Links may be protected by TLS 1.3 ([`hikkoshi_link::tls`]), by invitation or by an authority's
//! certificates. A peer is not trusted in either case: what it sends is bounded and checked, and
//! the threads that read from links give up all privileges that they do not need
//! ([`hikkoshi_linux::sandbox_thread`]). The main thread decodes the first messages of a
//! connection.
//!
//! # Example
//!
//! The source's side for any guest; `examples/in-memory-guest` has both sides, and a guest.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use hikkoshi_engine::report::Silent;
//! use hikkoshi_engine::{
//!     Account, CancelFlag, MigrateControl, MigrateError, Mode, SourceControl, SourceGuest,
//!     SourceOptions, migrate,
//! };
//! use hikkoshi_handover::Unrecorded;
//! use hikkoshi_link::Address;
//!
//! fn send(guest: &mut dyn SourceGuest, to: &Address) -> Result<Account, MigrateError> {
//!     let options = SourceOptions {
//!         mode: Mode::Precopy,
//!         max_downtime: Duration::from_millis(100),
//!         ..SourceOptions::default()
//!     };
//!     let control = MigrateControl {
//!         cancel: CancelFlag::new(),
//!         control: SourceControl::new(),
//!         observer: Arc::new(Silent),
//!         journal: Arc::new(Unrecorded),
//!     };
//!     migrate(guest, &to.clone().into(), &options, &control)
//! }
//! ```
//!
//! # What is missing
//!
//! - Memory and device state are moved, and disks that the adapter copies. The adapters compare the
//!   disks of both sides. The engine does not check that networks can be reached from the
//!   destination.

mod cancelled_by_peer;
mod control_link;
mod default_links;
pub mod destination;
mod disks;
mod ends_now;
mod guest;
mod guest_error;
mod network_frames;
mod obstacle;
mod panic_notifier;
pub mod report;
mod retry;
pub mod source;
mod source_ended;
mod sync;

pub use default_links::default_links;
pub use destination::{
    DestinationHost, DestinationOptions, ReceiveControl, ReceiveError, give_up_receive, receive,
    receive_at, resume_receive,
};
pub use disks::{DiskComparison, DiskConnection, DiskContent, DiskRequests, Waiting};
pub use guest::{
    DestinationDisks, DestinationGuest, DestinationProcess, Hardware, SourceDisks, SourceGuest,
    SourceProcess, ThreadName,
};
pub use guest_error::GuestError;
pub use hikkoshi_link::Compression;
pub use hikkoshi_linux::{CancelFlag, Priority, PriorityClass};
pub use network_frames::{FrameCapture, FrameDelivery, KeptFrame};
pub use obstacle::DestinationObstacle;
pub use report::{Account, Observer};
pub use retry::RetryFor;
pub use source::{
    BandwidthTooLow, Comparison, ControlRefused, Convergence, LimitChange, MAX_DOWNTIME,
    MigrateControl, MigrateError, MigrationLimits, NotConverging, ProbeOptions, ProbedLine,
    ReadAhead, SourceControl, SourceOptions, WhenStalled, compare, give_up_migrate, migrate, probe,
    resume_migrate,
};

pub use hikkoshi_wire::{Domain, GuestDisks, MAX_COPIED_DISKS, MAX_LINKS, Mode, OfferedGuest};
