//! The systems that move the guest.

use hikkoshi_lab::{QemuMigrationMode, QemuVersion};
use serde::{Deserialize, Serialize};

/// Connections of QEMU's multifd: its default, and the number of processors of the first host
/// measured on.
const MULTIFD_CONNECTIONS: u32 = 2;

/// A system, and its mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) enum System {
    /// Memory before the switchover.
    HikkoshiPrecopy,
    /// Memory after the switchover.
    HikkoshiPostcopy,
    /// One round of pre-copy, then post-copy.
    HikkoshiHybrid,
    /// Memory before the switchover, one connection.
    QemuPrecopy,
    /// Memory before the switchover, several connections.
    QemuMultifd,
    /// One round of pre-copy, then post-copy.
    QemuPostcopy,
    /// Post-copy before the first round is complete: most memory after the switchover.
    QemuPostcopyAtOnce,
    /// QEMU's post-copy with a separate connection for urgent pages.
    QemuPreempt,
    /// QEMU 7.2's post-copy.
    Qemu72Postcopy,
    /// QEMU 7.2's post-copy with a separate connection for urgent pages, before the thread that
    /// reads the requests sent them (8.0).
    Qemu72Preempt,
    /// libvirt's `virsh migrate --live`: QEMU's pre-copy.
    VirshPrecopy,
    /// libvirt's `virsh migrate --live --postcopy`, after one round of pre-copy.
    VirshPostcopy,
}

impl System {
    /// hikkoshi's name of the mode, if the system is hikkoshi.
    pub(crate) fn hikkoshi_mode(self) -> Option<&'static str> {
        match self {
            Self::HikkoshiPrecopy => Some("precopy"),
            Self::HikkoshiPostcopy => Some("postcopy"),
            Self::HikkoshiHybrid => Some("hybrid"),
            _ => None,
        }
    }

    /// QEMU's mode, if the system is QEMU.
    pub(crate) fn qemu_mode(self) -> Option<QemuMigrationMode> {
        match self {
            Self::QemuPrecopy => Some(QemuMigrationMode::Precopy),
            Self::QemuMultifd => Some(QemuMigrationMode::Multifd(MULTIFD_CONNECTIONS)),
            Self::QemuPostcopy | Self::QemuPostcopyAtOnce | Self::Qemu72Postcopy => {
                Some(QemuMigrationMode::Postcopy)
            }
            Self::QemuPreempt | Self::Qemu72Preempt => Some(QemuMigrationMode::PostcopyPreempt),
            _ => None,
        }
    }

    /// The version of QEMU that the guest runs in.
    pub(crate) fn qemu_version(self) -> QemuVersion {
        match self {
            Self::Qemu72Postcopy | Self::Qemu72Preempt => QemuVersion::V7_2,
            _ => QemuVersion::V10_0,
        }
    }

    /// The options of `virsh migrate`, if the system is libvirt.
    pub(crate) fn virsh_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::VirshPrecopy => Some(&[]),
            // MiB a second: the guest writes more than this limit lets pass in `--max-downtime`, so
            // pre-copy does not complete in its first round. Post-copy is not limited.
            Self::VirshPostcopy => Some(&[
                "--bandwidth",
                "32",
                "--postcopy",
                "--postcopy-after-precopy",
            ]),
            _ => None,
        }
    }

    /// Whether QEMU switches before the first round is complete.
    pub(crate) fn switches_at_once(self) -> bool {
        self == Self::QemuPostcopyAtOnce
    }

    /// Whether the guest runs at the destination before its memory is there.
    pub(crate) fn is_postcopy(self) -> bool {
        matches!(
            self,
            Self::HikkoshiPostcopy
                | Self::HikkoshiHybrid
                | Self::QemuPostcopy
                | Self::QemuPostcopyAtOnce
                | Self::QemuPreempt
                | Self::Qemu72Postcopy
                | Self::Qemu72Preempt
                | Self::VirshPostcopy
        )
    }

    /// The name in filters and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HikkoshiPrecopy => "hikkoshi-precopy",
            Self::HikkoshiPostcopy => "hikkoshi-postcopy",
            Self::HikkoshiHybrid => "hikkoshi-hybrid",
            Self::QemuPrecopy => "qemu-precopy",
            Self::QemuMultifd => "qemu-multifd",
            Self::QemuPostcopy => "qemu-postcopy",
            Self::QemuPostcopyAtOnce => "qemu-postcopy-at-once",
            Self::QemuPreempt => "qemu-preempt",
            Self::Qemu72Postcopy => "qemu-7.2-postcopy",
            Self::Qemu72Preempt => "qemu-7.2-preempt",
            Self::VirshPrecopy => "virsh-precopy",
            Self::VirshPostcopy => "virsh-postcopy",
        }
    }
}
