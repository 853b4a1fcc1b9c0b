//! The guests that are moved, and the lines.

use std::fmt;

use hikkoshi_lab::{
    Disk, DiskContent, DiskFormat, DiskImage, Lab, Pattern, Ram, VmConfig, Workload,
};
use serde::Serialize;

use super::SLOW;
use crate::error::BenchError;
use crate::plan::NetworkKind;
use crate::testbed::{Testbed, attach_debian};

/// The guest's memory, MiB.
const RAM_MIB: u64 = 512;
/// The memory that its workload fills and writes to, MiB.
const WRITTEN_MIB: u64 = 200;
/// What the workload of a guest fills and writes to that writes about as much as the line carries,
/// MiB.
const MUCH_MIB: u64 = 350;
/// What the workload of the Debian guest fills and writes to, MiB; redis writes, too.
const DEBIAN_MIB: u64 = 64;
/// The disk that is copied, and the file on it that the guest writes to, MiB. The rest are zeros.
const DISK_MIB: u64 = 512;
const FILE_MIB: u64 = 192;
/// Time between two reports of the guest, ms.
const REPORT_MS: u64 = 100;

/// What the guest does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Writer {
    /// Almost nothing.
    Idle,
    /// Writes pages at random.
    Random,
    /// Writes one page after the other.
    Sequential,
    /// Nine of ten writes are to a tenth of the pages.
    Hotspot,
    /// Writes for half a second, and pauses for half a second.
    Bursts,
    /// A whole Debian whose redis answers a client.
    Redis,
    /// Writes nearly as many different pages as 1 Gbit/s carries.
    Near,
    /// Writes more than that.
    Above,
    /// Two virtual processors write pages at random.
    Two,
    /// Writes pages at random, and 1 MiB a second to its disk, which is copied.
    Disk,
}

impl Writer {
    pub(super) const ALL: [Self; 10] = [
        Self::Idle,
        Self::Random,
        Self::Sequential,
        Self::Hotspot,
        Self::Bursts,
        Self::Redis,
        Self::Near,
        Self::Above,
        Self::Two,
        Self::Disk,
    ];

    /// Whether its disks are copied. What that takes is not predicted.
    pub(super) fn copies_disks(self) -> bool {
        self == Self::Disk
    }

    /// Whether it is moved over this line: the last three over 1 Gbit/s only, which is what the
    /// guest's rate is compared with, and some over the slowest line.
    pub(super) fn is_moved_over(self, line: NetworkKind) -> bool {
        match (self, line) {
            (Self::Near | Self::Above | Self::Two, _) => line == NetworkKind::Gbit(1),
            (Self::Sequential | Self::Hotspot | Self::Disk, SLOW) => false,
            _ => true,
        }
    }

    fn workload(self) -> Workload {
        let dirty = Workload::dirty(WRITTEN_MIB);
        let workload = match self {
            Self::Idle => dirty.rate(1),
            Self::Random => dirty.rate(6000),
            Self::Sequential => dirty.pattern(Pattern::Sequential).rate(8000),
            Self::Hotspot => dirty.pattern(Pattern::Hotspot).rate(40_000),
            Self::Bursts => dirty.rate(12_000).option("burst_ms", 500),
            Self::Redis => Workload::dirty(DEBIAN_MIB).rate(1000).in_debian(40),
            Self::Near => Workload::dirty(MUCH_MIB).rate(24_000),
            Self::Above => Workload::dirty(MUCH_MIB).rate(60_000),
            Self::Two => dirty.rate(6000).threads(2),
            Self::Disk => dirty
                .rate(6000)
                .option("mount", "/dev/vda")
                .option("disk", "/disk/blocks")
                .option("disk_chunk_kib", 64)
                .option("disk_mib", 4)
                .option("disk_write", 100)
                .option("disk_rate", 16),
        };
        workload.option("every_ms", REPORT_MS)
    }

    /// Boots it as the source of a migration, and waits until its workload runs.
    pub(super) fn boot(self, line: NetworkKind) -> Result<Testbed, BenchError> {
        let lab = Lab::new()?;
        let config = VmConfig::new()
            .ram(Ram::shared(RAM_MIB))
            .workload(self.workload());
        let config = match self {
            Self::Redis => attach_debian(&lab, config)?,
            Self::Two => config.cpus(2),
            Self::Disk => {
                let configs = disks(&lab)?.map(|disk| config.clone().disk(disk));
                return Testbed::start_each(lab, configs, (line, None), false);
            }
            _ => config,
        };
        Testbed::start(lab, config, (line, None), self == Self::Redis)
    }
}

/// The disk of the source, and the blank one of the destination.
fn disks(lab: &Lab) -> Result<[Disk; 2], BenchError> {
    let content = DiskContent::FileSystem {
        mib: DISK_MIB,
        blocks_mib: FILE_MIB,
    };
    let format = DiskFormat::Qcow2;
    Ok([
        Disk::new(DiskImage::new(lab, "from", format, content)?),
        Disk::new(DiskImage::blank(lab, None, "to", format, content)?),
    ])
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Random => "random",
            Self::Sequential => "sequential",
            Self::Hotspot => "hotspot",
            Self::Bursts => "bursts",
            Self::Redis => "redis",
            Self::Near => "near",
            Self::Above => "above",
            Self::Two => "two",
            Self::Disk => "disk",
        })
    }
}

/// The line of a case, as it is called.
pub(super) fn line_name(line: NetworkKind) -> String {
    match line {
        NetworkKind::Loopback => "unshaped".to_owned(),
        other => other.to_string(),
    }
}
