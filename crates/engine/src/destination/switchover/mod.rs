//! An incoming migration up to the switchover: the offer, pre-copied pages, stale pages dropped.

mod abort;
mod comparison;
pub(crate) mod incoming_migration;
mod load;
pub(crate) mod offer;
pub(crate) mod processors;
mod silence_timer;
mod stale_pages;
