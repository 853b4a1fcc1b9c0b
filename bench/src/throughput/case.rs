//! What is moved, over what, and by what.

use std::fmt;

use hikkoshi_lab::{HugePageSize, QemuMigration, QemuMigrationMode, Ram, RamBackend};
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
            Self::Hikkoshi { mode, links, tls } => {
                write!(f, "hikkoshi-{mode}-{links}")?;
                f.write_str(if tls { "-tls" } else { "" })
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
        format!("{}/{}/{touched}", self.line, self.memory.name())
    }
}

impl fmt::Display for Case {
    /// As in filters: LINE/MEMORY/TOUCHED/SYSTEM.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.setting(), self.system)
    }
}

/// All cases, those that are compared next to each other.
pub(super) fn all() -> Vec<Case> {
    let hikkoshi = |mode, links, tls| System::Hikkoshi { mode, links, tls };
    let mut cases = Vec::new();
    for (memory, touched) in [
        (Memory::Shared, false),
        (Memory::Shared, true),
        (Memory::Private, false),
        (Memory::Private, true),
        (Memory::Huge, false),
    ] {
        for system in [
            System::QemuPrecopy,
            System::QemuMultifd(1),
            System::QemuMultifd(2),
            System::QemuMultifd(4),
            System::QemuPreempt,
            hikkoshi("precopy", 1, false),
            hikkoshi("precopy", 2, false),
            hikkoshi("precopy", 4, false),
            hikkoshi("postcopy", 1, false),
            hikkoshi("postcopy", 2, false),
            hikkoshi("precopy", 1, true),
            hikkoshi("precopy", 2, true),
        ] {
            cases.push(Case {
                line: NetworkKind::Veth,
                memory,
                touched,
                system,
            });
        }
    }
    for line in [NetworkKind::Gbit(10), NetworkKind::Gbit(1)] {
        for system in [
            System::QemuPrecopy,
            System::QemuMultifd(2),
            System::QemuMultifdZstd(2),
            System::QemuPreempt,
            hikkoshi("precopy", 1, false),
            hikkoshi("postcopy", 1, false),
            hikkoshi("precopy", 1, true),
        ] {
            cases.push(Case {
                line,
                memory: Memory::Private,
                touched: false,
                system,
            });
        }
    }
    cases
}
