//! The guest's disks.

use hikkoshi_lab::{Disk, DiskContent, DiskFormat, DiskImage, Lab, LabError, Throttle, VmConfig};

/// The disk's size, MiB.
const DISK_MIB: u64 = 128;

/// Gives the machine a disk with a limited read rate: raw, `cache=none`, `aio=native`.
///
/// # Errors
/// When the image cannot be created, or this host cannot limit the rate.
pub(super) fn attach_throttled(
    lab: &Lab,
    config: VmConfig,
    bytes_per_second: u64,
) -> Result<(VmConfig, Throttle), LabError> {
    let content = DiskContent::Blocks { mib: DISK_MIB };
    let image = DiskImage::new(lab, "disk", DiskFormat::Raw, content)?;
    let throttle = Throttle::new(lab, bytes_per_second)?;
    Ok((config.disk(Disk::new(image)).throttle(&throttle), throttle))
}

/// Gives the machine the disks of the Debian guest, qcow2 and `cache=none`, and two processors.
///
/// # Errors
/// When an image cannot be created.
pub(crate) fn attach_debian(lab: &Lab, config: VmConfig) -> Result<VmConfig, LabError> {
    let disk = |name, content| -> Result<Disk, LabError> {
        let image = DiskImage::new(lab, name, DiskFormat::Qcow2, content)?;
        Ok(Disk::new(image))
    };
    let blocks = DiskContent::Blocks { mib: 64 };
    Ok(config
        .cpus(2)
        .disk(disk("debian", DiskContent::Debian)?)
        .disk(disk("blocks", blocks)?))
}
