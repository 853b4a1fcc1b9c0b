//! Who moves the guest.

use hikkoshi_lab::QemuMigrationMode;
use serde::Serialize;

/// Connections of QEMU's multifd: its default, and the processors of the machine it was chosen on.
const MULTIFD_CONNECTIONS: u32 = 2;

/// Who moves the guest, and how.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum System {
    /// Memory first.
    HikkoshiPrecopy,
    /// The guest first.
    HikkoshiPostcopy,
    /// One round of memory, the guest, the rest.
    HikkoshiHybrid,
    /// Memory first, one connection.
    QemuPrecopy,
    /// Memory first, several connections.
    QemuMultifd,
    /// One round of memory, the guest, the rest.
    QemuPostcopy,
    /// The same, with a connection of its own for pages that the guest waits for.
    QemuPreempt,
}

impl System {
    /// hikkoshi's name for the mode.
    pub fn hikkoshi_mode(self) -> Option<&'static str> {
        match self {
            Self::HikkoshiPrecopy => Some("precopy"),
            Self::HikkoshiPostcopy => Some("postcopy"),
            Self::HikkoshiHybrid => Some("hybrid"),
            _ => None,
        }
    }

    /// QEMU's way, where it is QEMU's.
    pub fn qemu_mode(self) -> Option<QemuMigrationMode> {
        match self {
            Self::QemuPrecopy => Some(QemuMigrationMode::Precopy),
            Self::QemuMultifd => Some(QemuMigrationMode::Multifd(MULTIFD_CONNECTIONS)),
            Self::QemuPostcopy => Some(QemuMigrationMode::Postcopy),
            Self::QemuPreempt => Some(QemuMigrationMode::PostcopyPreempt),
            _ => None,
        }
    }

    /// Whether the guest runs at the destination before its memory is there.
    pub fn is_postcopy(self) -> bool {
        matches!(
            self,
            Self::HikkoshiPostcopy | Self::HikkoshiHybrid | Self::QemuPostcopy | Self::QemuPreempt
        )
    }

    /// Its name in filters and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::HikkoshiPrecopy => "hikkoshi-precopy",
            Self::HikkoshiPostcopy => "hikkoshi-postcopy",
            Self::HikkoshiHybrid => "hikkoshi-hybrid",
            Self::QemuPrecopy => "qemu-precopy",
            Self::QemuMultifd => "qemu-multifd",
            Self::QemuPostcopy => "qemu-postcopy",
            Self::QemuPreempt => "qemu-preempt",
        }
    }
}
