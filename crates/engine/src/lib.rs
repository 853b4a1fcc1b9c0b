//! The migration engine: moves a running guest's memory and device state from
//! one host to another.
//!
//! # Model
//!
//! A migration has a **source** ([`migrate`]) and a **destination**
//! ([`receive`]). Each holds its guest through a trait ([`SourceGuest`],
//! [`DestinationGuest`]) and talks to the other over three kinds of links
//! ([`link`]): control, urgent, background. Memory is a flat space of 4 KiB
//! pages (`hikkoshi-pages`), read and written through the RAM blocks' files
//! ([`RamFiles`](hikkoshi_memory::RamFiles)).
//!
//! There are three modes ([`Mode`]): **pre-copy** sends rounds of dirty pages
//! until the rest fits into the downtime; **post-copy** moves the guest first
//! and lets its pages follow; **hybrid** does one round of pre-copy, then
//! post-copy. All of them go through one switchover (drawn in
//! `source/switchover/`), which keeps one promise: *at no instant can two
//! guests run*, and what fails before *commit* leaves the guest running at the
//! source. Who may run it is decided by two machines without any I/O
//! ([`hikkoshi_handover`]); their stages are recorded ([`hikkoshi_handover::Journal`]), so that links
//! and engines may be lost at any moment, and [`resume_migrate`] and
//! [`resume_receive`] go on from there.
//!
//! In post-copy, whoever reads a page request sends the page; who may send a
//! page is decided by claiming its bit in one atomic bitmap, and presence in
//! the RAM file is the truth about what has been received. The rest is pushed
//! on any number of background links, in an order that pays (`source/postcopy/push_policy/`):
//! read-ahead, hot pages, then outwards from where the guest was last.
//!
//! Links may be protected by TLS 1.3 ([`link::secure`]), by invitation or by an
//! authority's certificates. A peer is not believed in either case: what it
//! sends is bounded and checked, and the threads that read it all the time keep
//! no privilege that they do not need (`confine.rs`); the first words of a
//! connection are decoded by the main thread.
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
//!     Account, Cancel, MigrateError, Mode, SourceGuest, SourceOptions, Watch, migrate,
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
//!     let watch = Watch {
//!         cancel: Cancel::new(),
//!         observer: Arc::new(Silent),
//!         journal: Arc::new(Unrecorded),
//!     };
//!     migrate(guest, &to.clone().into(), &options, &watch)
//! }
//! ```
//!
//! # What is missing
//!
//! - Only memory and device state are moved. That disks and networks can be
//!   reached at the destination as they were is not looked at.

mod control_link;
pub mod destination;
mod guest;
mod panic_notifier;
pub mod report;
mod retry;
mod retry_budget;
pub mod source;
mod sync;

pub use destination::{
    DestinationOptions, ReceiveError, ReceiveWatch, give_up_receive, receive, resume_receive,
};
pub use guest::{DestinationGuest, GuestError, SourceGuest, ThreadName};
pub use hikkoshi_linux::{Cancel, Priority, Rank};
pub use report::{Account, Observer};
pub use retry::RetryFor;
pub use source::{
    MigrateError, ReadAhead, SourceOptions, Watch, WhenStalled, give_up_migrate, migrate,
    resume_migrate,
};

pub use hikkoshi_wire::{MAX_LINKS, Mode};
