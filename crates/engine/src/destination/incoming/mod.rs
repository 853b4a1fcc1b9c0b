//! A guest that arrives, while it runs at the source: its offer, the comparison with the machine
//! here, and what is received in pre-copy, stale pages included, until the source's *Switch*.

mod abort;
mod comparison;
pub(crate) mod incoming_migration;
pub(crate) mod offer;
pub(crate) mod processors;
mod silence_timer;
mod stale_pages;
mod until_switch;

pub(crate) use until_switch::SwitchMessage;
