//! A lab with real guests: starts QEMU with the test guest, reads its console, limits networks.
//!
//! **Model.** A [`Lab`] is a folder of sockets and logs. A [`VmConfig`] describes a machine, and
//! [`VmConfig::start`] starts it as a [`Vm`]: a real QEMU of either version that boots the test
//! guest with a [`Workload`]. The guest's output arrives at a [`Console`] as typed [`GuestReport`]s
//! with arrival times; source and destination share one console, because there is one guest. A
//! [`HostPair`] is two network namespaces joined by a veth pair with a rate limit. A [`SharedLine`]
//! is a host that reaches several others over one such line. A
//! [`GuestNetwork`] is a switch with two hosts and a client, for a guest that serves during its
//! migration.
//!
//! [`libvirt`] has hosts with libvirt daemons, and domains that move between them.
//!
//! [`cluster`] has nodes with Corosync and Pacemaker, and guests that move between them.
//!
//! A [`RunningProgram`] is a program whose output is read while it runs. A [`Relay`](relay::Relay)
//! passes on the connections of a migration, and can hold, change, delay and cut them.
//!
//! A [`RamBlock`] is read and written from outside, for memory that the guest does not check.
//! [`FastKhugepaged`] makes the kernel rebuild huge pages at once.
//!
//! A [`Browser`](browser::Browser) shows a page of the program; a
//! [`Prometheus`](prometheus::Prometheus) scrapes its metrics.
//!
//! A [`Disk`] has a [`DiskImage`] of numbered pages; a [`Throttle`] limits its read rate.
//!
//! Everything is undone on drop, also when a test panics: processes are killed, RAM files, mounts
//! and namespaces removed, huge pages returned. The next [`Lab`] removes what a killed test left
//! behind.
//!
//! ```no_run
//! use hikkoshi_lab::{Lab, Ram, VmConfig, Workload};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), hikkoshi_lab::LabError> {
//! let lab = Lab::new()?;
//! let config = VmConfig::new()
//!     .ram(Ram::shared(512))
//!     .workload(Workload::verify(64));
//! let source = config.start(&lab, "source")?;
//! let destination = config
//!     .clone()
//!     .console(source.console().clone())
//!     .incoming()
//!     .start(&lab, "destination")?;
//! source.wait_ready()?;
//! // … move the guest from source.qmp_path() to destination.qmp_path() …
//! assert!(destination.sweep(Duration::from_secs(30))?.ok);
//! # Ok(())
//! # }
//! ```
//!
//! **What is missing.** Under KVM ([`VmConfig::kvm`]) only the nano guest is tried
//! ([`VmConfig::nano`]): without a disk, and with at most one network card. The lab needs root for
//! namespaces, taps, mounts and huge pages; a single machine on tmpfs does not.
// `pre_exec`: a child enters a namespace and dies with its parent; the time-stamp counter is read;
// QEMU's memory is paged out.
#![allow(unsafe_code)]

mod artifacts;
pub mod browser;
mod certificate_authority;
mod cgroup;
pub mod cluster;
mod config;
mod console;
mod device;
mod disk;
mod disk_image;
mod disk_throttle;
mod error;
mod firmware;
mod http;
mod huge_pages;
mod khugepaged;
mod lab;
pub mod libvirt;
mod memory_limit;
mod mount;
pub mod net;
mod never_retried;
mod passt;
mod program;
pub mod prometheus;
mod qemu_migration;
mod qmp;
mod ram;
pub mod relay;
mod report;
mod spawn;
#[cfg(test)]
mod test_server;
mod tpm;
mod tsc;
mod unknown_qemu;
mod vm;
mod workload;
mod zram_swap;

pub use artifacts::{
    QemuVersion, devices_initramfs, devices_kernel, initramfs, kernel, nano_kernel, qemu_img,
    web_initramfs,
};
pub use certificate_authority::CertificateAuthority;
pub use config::{DEFAULT_MACHINE, Nic, VmConfig};
pub use console::{Console, ConsoleLine};
pub use device::Device;
pub use disk::{Aio, Cache, Disk, DiskBus};
pub use disk_image::{DiskContent, DiskFormat, DiskImage, DiskState};
pub use disk_throttle::Throttle;
pub use error::LabError;
pub use firmware::Firmware;
pub use http::http_get;
pub use huge_pages::{HugePageSize, HugePages};
pub use khugepaged::{FastKhugepaged, has_transparent_huge_pages};
pub use lab::Lab;
pub use memory_limit::MemoryLimit;
pub use mount::Mount;
pub use net::{
    DatagramClient, Datagrams, FileClients, Files, GuestNetwork, HostPair, Namespace, Pace,
    RateLimit, SharedLine,
};
pub use never_retried::never_retried;
pub use passt::PasstMode;
pub use program::{Output, RunningProgram, StandardError};
pub use qemu_migration::{QemuMigration, QemuMigrationMode, QemuMigrationReport};
pub use qmp::{Event, Qmp};
pub use ram::{Ram, RamBackend};
pub use report::{
    Clocks, Devices, Dirty, DiskWork, Fault, Faults, FineHistogram, GuestReport, Histogram, Idle,
    Latency, Processors, Ready, Runs, Scan, Scanned, Serve, Slow, Task, Totals, Used, Verdict,
    Verify,
};
pub use tpm::TpmEmulator;
pub use tsc::TscReading;
pub use unknown_qemu::unknown_qemu;
pub use vm::{ExpectedVm, RamBlock, Vm, template};
pub use workload::{Pattern, Workload};
pub use zram_swap::ZramSwap;
