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
//! A [`Relay`] stands between the two engines, understands what they say to one another, and at a
//! chosen [`Moment`] cuts every link, or holds its breath until the test has killed somebody.
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
//! Guests under KVM; links that fall silent instead of breaking.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test's failure is the message

mod account;
mod guest;
mod harm;
mod kernel;
mod program;
mod rank;
mod refusal;
mod relay;
mod scene;
mod traces;
mod trip;
mod watcher;

pub use account::{Account, Bucket, Bytes, Latency, Pages, ThreadFaults};
pub use guest::{Guest, assert_not_running};
pub use harm::{Harm, busy, goes_on_as_advised, harmed_at_each};
pub use kernel::Lack;
pub use program::{Ended, Program, hikkoshi};
pub use rank::Rank;
pub use refusal::{refused, refused_command};
pub use relay::{Kind, Moment, Relay, Then, When};
pub use scene::{Scene, tell};
pub use traces::{Traces, eventually};
pub use trip::{Arrived, Attempt, Ends, Trip, Via};
pub use watcher::Watcher;

use std::time::Duration;

/// Only ends what hangs: a slow machine that does something else as well is tens of times slower.
pub const LONG: Duration = Duration::from_secs(240);
