//! End-to-end tests: real QEMU processes, moved by the program that ships.
//!
//! # Model
//!
//! A [`Scene`] is one test's turn on the machine and its laboratory. A [`Guest`] is a test guest
//! that knows where it is; [`Guest::set_out`] starts everything that one [`Trip`] takes (a fresh
//! destination, `hikkoshi receive`, `hikkoshi migrate`, and a [`Relay`] between them if asked for)
//! and gives an [`Attempt`]. What came of it is judged by the guest itself: [`Guest::arrive`] and
//! [`Guest::stay`] have it work and check every page, and see that nothing was left behind in
//! QEMU ([`Traces`]).
//!
//! During every attempt a [`Watcher`] looks at both QEMUs: at no instant may both guests run.
//!
//! What is done to a migration at one step after the other, and what must come of it, is a
//! [`Harm`]. A [`Lack`] makes the kernel an older one.
//!
//! A [`Wiretap`] sees every packet between two hosts; an [`Authority`] vouches for them.
//!
//! Each guest that is booted has a disk with a file system, which it works with by direct I/O; when
//! its test is over, image, file system and pages are checked ([`Guest`]).
//!
//! A [`Relay`] stands between the two engines, understands what they say to one another (unless it
//! is encrypted), and at a chosen [`Moment`] cuts every link, or holds its breath until the test
//! has killed somebody.
//!
//! A [`Drill`] interrupts the same migration again and again at random moments, and keeps count of
//! how long the guest waited.
//!
//! # Rules
//!
//! - Nothing is asserted about how long something takes; time-outs only end what hangs.
//! - The destination of one trip is the source of the next, and a guest that stayed is tried
//!   again: booting costs more than moving.
//! - Each attempt is told in a line on standard output, captured by nobody.
//!
//! # What is missing
//!
//! Guests under KVM.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test's failure is the message

mod certificate_authority;
mod disk;
mod fault_drill;
mod fault_injection;
mod free_huge_pages;
mod guest;
mod json_report;
mod json_schema;
mod kernel_feature;
mod migration;
mod packet_capture;
mod program;
mod qemu_state;
mod refusal;
mod relay;
mod split_brain;
mod test_env;
mod thread_scheduling;
mod unique_address;

pub use certificate_authority::Authority;
pub use fault_drill::{Drill, Random};
pub use fault_injection::{Harm, busy, harmed_at_each};
pub use free_huge_pages::free_huge_pages;
pub use guest::{Guest, assert_not_running};
pub use json_report::{Account, Bucket, Bytes, Latency, Pages, ThreadFaults};
pub use json_schema::Schema;
pub use kernel_feature::Lack;
pub use migration::{Arrived, Attempt, Ends, Side, Trip, Via, address_in};
pub use packet_capture::{Heard, Wiretap};
pub use program::{Ended, Program, hikkoshi};
pub use qemu_state::{Traces, eventually};
pub use refusal::{refused, refused_command};
pub use relay::{Kind, Moment, Relay, Then, When};
pub use split_brain::Watcher;
pub use test_env::{Scene, tell};
pub use thread_scheduling::Rank;
pub use unique_address::{own_address, own_host};

use std::time::Duration;

/// Only ends what hangs: a slow machine that does something else as well is tens of times slower.
pub const LONG: Duration = Duration::from_secs(240);
