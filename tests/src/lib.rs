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

mod certificate_authority;
mod disk;
mod domain_move;
mod eventually;
mod executable;
mod exits;
mod fault_drill;
mod fault_injection;
mod free_huge_pages;
mod guest;
mod guest_clock;
mod interruption;
mod json_report;
mod json_schema;
mod kernel_feature;
mod kvm;
mod libvirt_host;
mod log;
pub mod matrix;
mod migration;
mod migration_plan;
mod packet_capture;
mod program;
mod qemu_state;
pub mod recordings;
mod redis;
mod refusal;
mod relay;
mod remote_shell;
mod shown_page;
mod split_brain;
mod sshd;
mod switchover_steps;
mod terminal;
mod test_env;
mod thread_scheduling;
mod transmitted_frames;
mod unique_address;

pub use certificate_authority::CertificateAuthority;
pub use domain_move::{DomainMove, DomainPlan, virsh_migrate};
pub use eventually::eventually;
pub use executable::{copy_hikkoshi, write_script};
pub use exits::Exits;
pub use fault_drill::{FaultDrill, RAM_MIB, Random};
pub use fault_injection::{InjectedFault, busy_guest, inject_at_each};
pub use free_huge_pages::free_huge_pages;
pub use guest::{Guest, assert_not_running};
pub use guest_clock::{
    ClockPause, ClockRates, ClockReading, PausedCounter, assert_clocks_run_on, ran_on,
};
pub use interruption::Victim;
pub use json_report::{Bucket, Bytes, Frames, JsonReport, Latency, Pages, ThreadFaults};
pub use json_schema::JsonSchema;
pub use kernel_feature::{KernelFeature, run_under_seccomp};
pub use kvm::kvm_present;
pub use libvirt_host::on_libvirt_host;
pub use log::log;
pub use migration::{FinishedMigration, Migration, Side, address_in, left_in};
pub use migration_plan::{MigrationPlan, Transport};
pub use packet_capture::{Captured, PacketCapture};
pub use program::{Exit, Program, hikkoshi};
pub use qemu_state::QemuState;
pub use redis::RedisLoad;
pub use refusal::{assert_command_refused, assert_refused};
pub use relay::{Breakpoint, MessageKind, Relay, RelayAction, SentPages, When};
pub use remote_shell::RemoteShell;
pub use shown_page::{ShownPage, count, legend_of};
pub use split_brain::SplitBrainWatcher;
pub use sshd::Sshd;
pub use switchover_steps::SwitchoverStep;
pub use terminal::Terminal;
pub use test_env::TestEnv;
pub use thread_scheduling::ThreadScheduling;
pub use transmitted_frames::TransmittedFrames;
pub use unique_address::{unique_address, unique_host};

use std::time::Duration;

/// Time limit that only ends a test that hangs: a slow and busy machine is tens of times slower.
pub const LONG: Duration = Duration::from_secs(240);
