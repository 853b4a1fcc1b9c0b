//! An incoming migration up to the switchover: the offer, pre-copied pages, stale pages dropped.

mod abort;
pub(crate) mod drop_present;
pub(crate) mod incoming;
pub(crate) mod offer;
pub(crate) mod processors;
