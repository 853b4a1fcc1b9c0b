//! Post-copy at the destination: faults are handled as long as pages are missing.

mod active_postcopy;
mod drop_prefilled;
pub(crate) mod fault_counters;
pub(crate) mod fault_thread;
pub(crate) mod huge;
pub(crate) mod installer;
pub(crate) mod memory_pressure;
pub(crate) mod missing_pages;
pub(crate) mod open_requests;
pub(crate) mod page_copier;
mod postcopy_start;
pub(crate) mod request_sender;
pub(crate) mod request_times;

pub(crate) use active_postcopy::{ActivePostcopy, PreparedPostcopy};
pub(crate) use postcopy_start::PostcopyStart;
