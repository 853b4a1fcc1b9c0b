//! What is moved, over what, and by what.

use std::fmt;

use hikkoshi_lab::{HugePageSize, QemuMigration, QemuMigrationMode, Ram, RamBackend, Workload};
use serde::Serialize;

use crate::plan::NetworkKind;

/// What holds the guest's memory on both hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(super) enum Memory {
    /// A file on tmpfs that QEMU maps shared.
    Shared,
    /// QEMU's default: private anonymous memory.
    Private,
    /// A shared file on hugetlbfs, pages of 2 MiB.
    Huge,
}

impl Memory {
    /// The name in filters and tables.
    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
            Self::Huge => "hugetlbfs",
        }
    }

    /// The memory of a machine.
    pub(super) fn ram(self, mib: u64) -> Ram {
        match self {
            Self::Shared => Ram::shared(mib),
            Self::Private => Ram::new(RamBackend::Anonymous, mib),
            Self::Huge => Ram::new(
                RamBackend::Hugetlbfs {
                    size: HugePageSize::Mib2,
                    share: true,
                },
                mib,
            ),
        }
    }
}

/// What the guest's memory holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(super) enum Content {
    /// Random bytes, which no method makes smaller.
    Random,
    /// Pages that compress about three times.
    Compressible,
}

impl Content {
    /// The name in filters and tables.
    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Compressible => "compressible",
        }
    }

    /// A workload that fills so much memory, and checks it on command.
    pub(super) fn workload(self, mib: u64) -> Workload {
        let workload = Workload::scan(mib);
        match self {
            Self::Random => workload,
            Self::Compressible => workload.option("repeat", 1),
        }
    }
}

/// What moves the guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(super) enum System {
    /// QEMU's pre-copy, with one connection.
    QemuPrecopy,
    /// QEMU's multifd, with this many connections for pages.
    QemuMultifd(u32),
    /// The same, compressed.
    QemuMultifdZstd(u32),
    /// QEMU's post-copy with preemption, from the first page on.
    QemuPreempt,
    /// hikkoshi.
    Hikkoshi {
        /// `precopy` or `postcopy`.
        mode: &'static str,
        /// Background links.
        links: u32,
        /// Whether the links are encrypted.
        tls: bool,
        /// How pages are compressed: an argument of `--compress`.
        compress: &'static str,
    },
}

impl System {
    /// QEMU's own migration, if that is it.
    pub(super) fn qemu(self) -> Option<QemuMigration> {
        let mode = match self {
            Self::QemuPrecopy => QemuMigrationMode::Precopy,
            Self::QemuMultifd(channels) | Self::QemuMultifdZstd(channels) => {
                QemuMigrationMode::Multifd(channels)
            }
            Self::QemuPreempt => QemuMigrationMode::PostcopyPreempt,
            Self::Hikkoshi { .. } => return None,
        };
        let mut migration = QemuMigration::new(mode);
        migration.switch_at_once = self == Self::QemuPreempt;
        if matches!(self, Self::QemuMultifdZstd(_)) {
            migration.multifd_compression = "zstd";
        }
        Some(migration)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QemuPrecopy => f.write_str("qemu-precopy"),
            Self::QemuMultifd(channels) => write!(f, "qemu-multifd-{channels}"),
            Self::QemuMultifdZstd(channels) => write!(f, "qemu-multifd-{channels}-zstd"),
            Self::QemuPreempt => f.write_str("qemu-preempt"),
            Self::Hikkoshi {
                mode,
                links,
                tls,
                compress,
            } => {
                write!(f, "hikkoshi-{mode}-{links}")?;
                f.write_str(if tls { "-tls" } else { "" })?;
                match compress {
                    "off" => Ok(()),
                    method => write!(f, "-{method}"),
                }
            }
        }
    }
}

/// One case.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Case {
    /// The network.
    pub(super) line: NetworkKind,
    /// The guest's memory.
    pub(super) memory: Memory,
    /// What is in it.
    pub(super) content: Content,
    /// Whether the destination's memory was touched before, so that nothing is allocated while
    /// pages arrive.
    pub(super) touched: bool,
    /// What moves it.
    pub(super) system: System,
}

impl Case {
    /// Everything but the system: what is compared.
    pub(super) fn setting(&self) -> String {
        let touched = if self.touched { "touched" } else { "fresh" };
        let (memory, content) = (self.memory.name(), self.content.name());
        format!("{}/{memory}/{content}/{touched}", self.line)
    }
}

impl fmt::Display for Case {
    /// As in filters: LINE/MEMORY/CONTENT/TOUCHED/SYSTEM.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.setting(), self.system)
    }
}

/// hikkoshi without compression.
fn plain(mode: &'static str, links: u32, tls: bool) -> System {
    System::Hikkoshi {
        mode,
        links,
        tls,
        compress: "off",
    }
}

/// hikkoshi by one link, compressed.
fn compressed(mode: &'static str, compress: &'static str) -> System {
    System::Hikkoshi {
        mode,
        links: 1,
        tls: false,
        compress,
    }
}

/// All cases, those that are compared next to each other.
pub(super) fn all() -> Vec<Case> {
    let mut cases = fast_lines();
    cases.extend(limited_lines());
    cases.extend(compressible());
    cases
}

/// What each kind of memory, connection and link costs where processors limit.
fn fast_lines() -> Vec<Case> {
    let systems = [
        System::QemuPrecopy,
        System::QemuMultifd(1),
        System::QemuMultifd(2),
        System::QemuMultifd(4),
        System::QemuPreempt,
        plain("precopy", 1, false),
        plain("precopy", 2, false),
        plain("precopy", 4, false),
        plain("postcopy", 1, false),
        plain("postcopy", 2, false),
        plain("precopy", 1, true),
        plain("precopy", 2, true),
        compressed("precopy", "auto"),
    ];
    let memories = [
        (Memory::Shared, false),
        (Memory::Shared, true),
        (Memory::Private, false),
        (Memory::Private, true),
        (Memory::Huge, false),
        (Memory::Huge, true),
    ];
    let case = |(memory, touched)| {
        systems.map(|system| Case {
            line: NetworkKind::Veth,
            memory,
            content: Content::Random,
            touched,
            system,
        })
    };
    memories.into_iter().flat_map(case).collect()
}

/// Random content over lines that limit.
fn limited_lines() -> Vec<Case> {
    let systems = [
        System::QemuPrecopy,
        System::QemuMultifd(2),
        System::QemuMultifdZstd(2),
        System::QemuPreempt,
        plain("precopy", 1, false),
        plain("postcopy", 1, false),
        plain("precopy", 1, true),
        compressed("precopy", "auto"),
    ];
    let lines = [NetworkKind::Gbit(10), NetworkKind::Gbit(1)];
    of_private_memory(&lines, Content::Random, &systems)
}

/// Content that can be compressed, over lines that limit and one that does not.
fn compressible() -> Vec<Case> {
    let systems = [
        System::QemuMultifd(2),
        System::QemuMultifdZstd(2),
        plain("precopy", 1, false),
        compressed("precopy", "auto"),
        compressed("precopy", "lz4"),
        compressed("precopy", "zstd"),
        compressed("postcopy", "auto"),
    ];
    let lines = [
        NetworkKind::Veth,
        NetworkKind::Gbit(10),
        NetworkKind::Gbit(1),
        NetworkKind::Mbit(200),
    ];
    of_private_memory(&lines, Content::Compressible, &systems)
}

fn of_private_memory(lines: &[NetworkKind], content: Content, systems: &[System]) -> Vec<Case> {
    let case = |&line: &NetworkKind| {
        systems.iter().map(move |&system| Case {
            line,
            memory: Memory::Private,
            content,
            touched: false,
            system,
        })
    };
    lines.iter().flat_map(case).collect()
}
