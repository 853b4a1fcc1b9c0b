//! Guests of a real cluster: three nodes with Corosync and Pacemaker, which move, stop, fence and
//! start them by hikkoshi's resource agent.
//!
//! After each case every guest has run exactly once at any time: by QEMU's events of all machines
//! that it was in, and by the record of its runs on its own disk. And its memory is whole, or it
//! was started from its disk as often as docs/pacemaker.md says.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test's failure is the message

mod engines;
mod fenced;
mod laboratory;
mod moves;
mod page;
mod random_rounds;
mod stages;
mod stopped;
mod upgrade;
