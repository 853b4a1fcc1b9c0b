//! End-to-end tests: real QEMU processes, moved by the program that ships.
//!
//! # Model
//!
//! A [`TestEnv`] is one test's turn on the machine and its laboratory. A [`Guest`] is a test guest
//! that knows where it is; [`Guest::start_migration`] starts everything that one [`MigrationPlan`] takes (a fresh
//! destination, `hikkoshi receive`, `hikkoshi migrate`, and a [`Relay`] between them if asked for)
//! and gives an [`Migration`]. What came of it is judged by the guest itself: [`Guest::complete_migration`] and
//! [`Guest::assert_stayed`] have it work and check every page, and see that nothing was left behind in
//! QEMU ([`QemuState`]).
//!
//! During every attempt a [`SplitBrainWatcher`] looks at both QEMUs: at no instant may both guests run.
//!
//! What is done to a migration at one step after the other, and what must come of it, is a
//! [`InjectedFault`]. A [`KernelFeature`] makes the kernel an older one.
//!
//! A [`PacketCapture`] sees every packet between two hosts; an [`CertificateAuthority`] vouches for them.
//!
//! Each guest that is booted has a disk with a file system, which it works with by direct I/O; when
//! its test is over, image, file system and pages are checked ([`Guest`]).
//!
//! A [`Relay`] stands between the two engines, understands what they say to one another (unless it
//! is encrypted), and at a chosen [`Breakpoint`] cuts every link, or holds its breath until the test
//! has killed somebody.
//!
//! A [`FaultDrill`] interrupts the same migration again and again at random moments, and keeps count of
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
mod eventually;
mod exits;
mod fault_drill;
mod fault_injection;
mod free_huge_pages;
mod guest;
mod json_report;
mod json_schema;
mod kernel_feature;
mod log;
mod migration;
mod migration_plan;
mod packet_capture;
mod program;
mod qemu_state;
mod refusal;
mod relay;
mod split_brain;
mod test_env;
mod thread_scheduling;
mod unique_address;

pub use certificate_authority::CertificateAuthority;
pub use eventually::eventually;
pub use exits::Exits;
pub use fault_drill::{FaultDrill, Random};
pub use fault_injection::{InjectedFault, busy_guest, inject_at_each};
pub use free_huge_pages::free_huge_pages;
pub use guest::{Guest, assert_not_running};
pub use json_report::{Bucket, Bytes, JsonReport, Latency, Pages, ThreadFaults};
pub use json_schema::JsonSchema;
pub use kernel_feature::KernelFeature;
pub use log::log;
pub use migration::{FinishedMigration, Migration, Side, address_in};
pub use migration_plan::{MigrationPlan, Transport};
pub use packet_capture::{Captured, PacketCapture};
pub use program::{Exit, Program, hikkoshi};
pub use qemu_state::QemuState;
pub use refusal::{assert_command_refused, assert_refused};
pub use relay::{Breakpoint, MessageKind, Relay, RelayAction, When};
pub use split_brain::SplitBrainWatcher;
pub use test_env::TestEnv;
pub use thread_scheduling::ThreadScheduling;
pub use unique_address::{unique_address, unique_host};

use std::time::Duration;

/// Only ends what hangs: a slow machine that does something else as well is tens of times slower.
pub const LONG: Duration = Duration::from_secs(240);
