//! The destination's side of a migration.
//!
//! One thread runs [`receive()`] (`receive.rs`): it accepts a source, takes its guest's memory
//! (`incoming/`) and goes through the switchover (`switchover/`). From *ready* on it performs what
//! the handover machine decides (`handover_driver/`). Beside it run:
//!
//! * One receiver for each link (`page_receiver.rs`). Before the switchover it writes pages into
//!   guest memory (`hikkoshi_memory::RamWriter`), afterwards it installs them
//!   (`postcopy/installer/`).
//! * The fault threads (`postcopy/fault_thread/`), which request what the guest touches
//!   (`postcopy/request_sender.rs`) and record when (`request_times.rs`) and for which thread
//!   (`fault_counters.rs`).
//!
//! Huge pages are assembled from 4 KiB pages and requested a bounded number at a time; huge pages
//! of tmpfs are rebuilt at the end (`postcopy/huge/`).

pub(crate) mod context;
mod error;
pub(crate) mod handover_driver;
mod host;
pub(crate) mod incoming;
mod install_error;
mod last_message;
pub(crate) mod network_frames;
mod options;
pub(crate) mod page_receiver;
pub(crate) mod postcopy;
pub(crate) mod probe;
mod receive;
mod receive_control;
mod receive_guest;
mod resume_migration;
pub(crate) mod session;
pub(crate) mod switchover;

pub use error::{DestinationFailure, ReceiveError};
pub use handover_driver::give_up::give_up_receive;
pub use host::DestinationHost;
pub use install_error::{InstallError, TooManyPartial};
pub use options::{DestinationOptions, MAX_FAULT_THREADS};
pub use receive::{receive, receive_at, resume_receive};
pub use receive_control::ReceiveControl;
