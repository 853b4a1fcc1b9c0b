//! The log of `hikkoshi-ept`'s second-stage tables as a [`DirtyLog`](hikkoshi_dirty::DirtyLog):
//! with it hikkoshi's engine moves a guest of a hypervisor of one's own.
//!
//! * [`EptLog`]: the log, by any of the tables' methods.
//! * [`SharedLog`] gives a log several clients, each with a log of its own: a display and a
//!   migration, for example.

mod ept_log;
mod shared;

pub use ept_log::{EptLog, StartError};
pub use shared::{ClientLog, SharedLog};
