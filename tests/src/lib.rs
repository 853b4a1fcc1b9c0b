//! End-to-end tests: real QEMU processes, migrated by the release build of the program.
//!
//! # Model
//!
//! A [`TestEnv`] is one test's slot on the host and its lab folder. A [`Guest`] is a test guest
//! that tracks the machine it runs on. [`Guest::start_migration`] starts everything that a
//! [`MigrationPlan`] needs (a fresh destination, `hikkoshi receive`, `hikkoshi migrate`, and
//! optionally a [`Relay`] between them) and returns a [`Migration`]. The guest itself verifies the
//! result: [`Guest::complete_migration`] and [`Guest::assert_stayed`] make it work and check every
//! page. They also check that nothing was left behind in QEMU ([`QemuState`]).
//!
//! During every migration a [`SplitBrainWatcher`] checks that the guest never runs in both QEMUs at
//! once.
//!
//! An [`InjectedFault`] is a fault at a chosen step of a migration, with its expected outcome. A
//! [`KernelFeature`] can be disabled to simulate an older kernel.
//!
//! A [`PacketCapture`] sees every packet between two hosts. A [`CertificateAuthority`] issues their
//! certificates. [`TransmittedFrames`] records the frames that a host transmits on some of its
//! devices.
//!
//! Each guest that is booted has a disk with a file system, which it uses by direct I/O. At the end
//! of its test, image, file system and pages are checked ([`Guest`]).
//!
//! A [`Relay`] connects the two engines and parses their messages (unless the links are encrypted).
//! At a chosen [`Breakpoint`] it cuts every link, or holds the messages until the test has injected
//! a fault.
//!
//! A [`Terminal`] shows what a person sees of an engine's output.
//!
//! A [`DomainMove`] moves a domain of libvirt from one host with a daemon to another
//! ([`hikkoshi_lab::libvirt`]).
//!
//! A [`FaultDrill`] interrupts the same migration repeatedly at random times, and records how long
//! the guest waited.
//!
//! # Rules
//!
//! - Tests assert nothing about durations; time-outs only end a test that hangs.
//! - The destination of one migration is the source of the next, and a guest that stayed is
//!   migrated again, because booting costs more than migrating.
//! - Each migration is logged in a line on standard output, which the test runner does not capture.
//!
//! # What is missing
//!
//! Linux guests and devices under KVM: there is the nano guest only.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test's failure is the message

mod environment;
mod guests;
pub mod matrix;
mod moves;
mod network;
mod output;
mod programs;

pub use hikkoshi_lab::CertificateAuthority;

pub use environment::eventually::eventually;
pub use environment::executable::{copy_hikkoshi, hikkoshi, release_before, write_script};
pub use environment::free_huge_pages::free_huge_pages;
pub use environment::kernel_feature::{KernelFeature, run_under_seccomp};
pub use environment::kvm::kvm_present;
pub use environment::log::log;
pub use environment::test_env::TestEnv;
pub use environment::unique_address::{unique_address, unique_host};
pub use guests::guest::{Guest, assert_not_running};
pub use guests::guest_clock::{
    ClockPause, ClockRates, ClockReading, PausedCounter, assert_clocks_run_on, ran_on,
};
pub use guests::redis::RedisLoad;
pub use moves::domain_move::{DomainMove, DomainPlan, virsh_migrate};
pub use moves::fault_drill::{FaultDrill, RAM_MIB, Random};
pub use moves::fault_injection::{InjectedFault, busy_guest, inject_at_each};
pub use moves::interruption::Victim;
pub use moves::migration::{FinishedMigration, Migration, address_in, left_in};
pub use moves::migration_plan::{MigrationPlan, Transport};
pub use moves::qemu_state::QemuState;
pub use moves::relay::{Breakpoint, MessageKind, Relay, RelayAction, SentPages, When};
pub use moves::split_brain::SplitBrainWatcher;
pub use network::packet_capture::{Captured, PacketCapture};
pub use network::transmitted_frames::TransmittedFrames;
pub use output::json_report::{JsonReport, assert_rebuilt};
pub use output::json_schema::JsonSchema;
pub use output::recordings;
pub use output::shown_page::{ShownPage, count, legend_of};
pub use programs::exits::Exits;
pub use programs::libvirt_host::on_libvirt_host;
pub use programs::program::{Exit, Program};
pub use programs::refusal::{assert_command_refused, assert_refused};
pub use programs::remote_shell::RemoteShell;
pub use programs::sshd::Sshd;
pub use programs::terminal::Terminal;
pub use programs::thread_scheduling::ThreadScheduling;

use std::time::Duration;

/// Time limit that only ends a test that hangs: a slow and busy machine is tens of times slower.
pub const LONG: Duration = Duration::from_secs(240);
