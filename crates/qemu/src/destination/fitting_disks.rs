//! Which disk here is which of the source's.
//!
//! A disk is the one that the guest sees at the same place: the PCI slot, the SCSI address, the IDE
//! unit. The guest is compared with the machine here by these, too, and its device state is loaded
//! by them. Ids and names of drives are only names, and QEMU gives anonymous devices names by their
//! order on the command line. But if a name says otherwise, one of both command lines is likely
//! wrong, and a copy would overwrite another disk: it is refused.

use hikkoshi_wire::Disk;

use crate::disks::device_id;

/// Why a disk of the source has no counterpart here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCounterpart<'a> {
    /// There is none with a medium.
    Missing,
    /// The disk of its name is at another place.
    Elsewhere(&'a Disk),
}

/// What the owner of a disk calls it.
pub(super) fn label(disk: &Disk) -> &str {
    match device_id(&disk.device) {
        Some(id) => id,
        None if !disk.drive.is_empty() => &disk.drive,
        None => &disk.device,
    }
}

/// The number of the disk here that is this one of the source. If it is copied, its name must not
/// be that of another disk here.
pub(super) fn counterpart<'a>(theirs: &Disk, ours: &'a [Disk]) -> Result<usize, NoCounterpart<'a>> {
    let (id, drive, place) = (device_id(&theirs.device), &*theirs.drive, &*theirs.place);
    let find = |is_it: &dyn Fn(&Disk) -> bool| ours.iter().position(is_it);
    let by_id = id.and_then(|id| find(&|our| device_id(&our.device) == Some(id)));
    let by_drive = || {
        let is_it = |our: &Disk| !drive.is_empty() && *our.drive == *drive;
        find(&is_it).filter(|_| ours.iter().filter(|our| is_it(our)).count() == 1)
    };
    let by_path = || find(&|our| our.device == theirs.device);
    let at_place = find(&|our| !place.is_empty() && *our.place == *place);
    let named = by_id.or_else(by_drive);
    match (at_place, named) {
        (Some(found), Some(other)) if found != other && theirs.plan.is_copied() => {
            Err(NoCounterpart::Elsewhere(&ours[other]))
        }
        (Some(found), _) => Ok(found),
        (None, named) => {
            let named = named.or_else(by_path).ok_or(NoCounterpart::Missing)?;
            match place.is_empty() || ours[named].place.is_empty() {
                true => Ok(named),
                false => Err(NoCounterpart::Elsewhere(&ours[named])),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_wire::{Backing, DiskImage, DiskKind, DiskPlan};

    /// Where QEMU has the devices with an id.
    const NAMED_DEVICES: &str = "/machine/peripheral/";

    /// A disk that the guest sees at this place, and that is copied.
    fn at(device: &str, drive: &str, place: &str) -> Disk {
        Disk {
            device: device.into(),
            drive: drive.into(),
            place: place.into(),
            bytes: Some(1),
            read_only: false,
            kind: DiskKind::Fixed,
            plan: DiskPlan::Copied { encrypted: false },
            image: DiskImage::default(),
            backing: Backing::Known(Vec::new()),
        }
    }

    fn disk(device: &str, drive: &str) -> Disk {
        at(device, drive, "")
    }

    fn found<'a>(theirs: &[Disk], ours: &'a [Disk]) -> Vec<Result<usize, NoCounterpart<'a>>> {
        theirs
            .iter()
            .map(|theirs| counterpart(theirs, ours))
            .collect()
    }

    #[test]
    fn disks_are_found_by_their_devices_or_drives() {
        let of = |id| format!("{NAMED_DEVICES}{id}");
        let here = [disk(&of("a"), "d0"), disk(&of("b"), "d1")];
        let wanted = [
            disk(&of("b"), ""),
            disk(&of("other"), "d0"),
            disk(&of("c"), ""),
        ];
        assert_eq!(
            found(&wanted, &here),
            [Ok(1), Ok(0), Err(NoCounterpart::Missing)]
        );
    }

    /// Their paths have the order of the command line.
    #[test]
    fn devices_without_an_id_are_found_by_their_drives_first() {
        let path = |number| format!("/machine/peripheral-anon/device[{number}]");
        let here = [disk(&path(0), "right"), disk(&path(1), "left")];
        let wanted = [disk(&path(0), "left"), disk(&path(1), "right")];
        assert_eq!(found(&wanted, &here), [Ok(1), Ok(0)]);
        // Without names, the order is all that is known.
        let here = [disk(&path(0), ""), disk(&path(1), "other")];
        assert_eq!(found(&wanted, &here), [Ok(0), Ok(1)]);
        // One with an id keeps it, whatever its drive is called.
        let named = |id| format!("{NAMED_DEVICES}{id}/virtio-backend");
        let here = [disk(&named("vda"), "b"), disk(&named("vdb"), "a")];
        let wanted = [disk(&named("vda"), "a"), disk(&named("vdb"), "b")];
        assert_eq!(found(&wanted, &here), [Ok(0), Ok(1)]);
    }

    /// QEMU names SCSI and IDE devices with an id by that alone, and their drives may be named in
    /// another order.
    #[test]
    fn scsi_and_ide_disks_are_found_by_their_ids_whatever_their_drives_are_called() {
        for [one, other] in [["sda", "sdb"], ["hda", "hdb"]] {
            let here = [disk(one, "d1"), disk(other, "d0")];
            let wanted = [disk(one, "d0"), disk(other, "d1")];
            assert_eq!(found(&wanted, &here), [Ok(0), Ok(1)]);
            let places = ["pci.0/05.0/0:0:0", "pci.0/05.0/0:0:1"];
            let here = [at(other, "d0", places[1]), at(one, "d1", places[0])];
            let wanted = [at(one, "d0", places[0]), at(other, "d1", places[1])];
            assert_eq!(found(&wanted, &here), [Ok(1), Ok(0)]);
        }
    }

    /// Without ids, and with automatic slots, in another order of the command line.
    #[test]
    fn anonymous_devices_are_found_where_the_guest_sees_them() {
        let path = |number| format!("/machine/peripheral-anon/device[{number}]/virtio-backend");
        let here = [
            at(&path(0), "", "pci.0/05.0"),
            at(&path(1), "", "pci.0/04.0"),
        ];
        let wanted = [
            at(&path(0), "", "pci.0/04.0"),
            at(&path(1), "", "pci.0/05.0"),
        ];
        assert_eq!(found(&wanted, &here), [Ok(1), Ok(0)]);
        // The automatic slots follow the order: the names of the drives say that it was changed.
        let here = [
            at(&path(0), "b", "pci.0/04.0"),
            at(&path(1), "a", "pci.0/05.0"),
        ];
        let wanted = [
            at(&path(0), "a", "pci.0/04.0"),
            at(&path(1), "b", "pci.0/05.0"),
        ];
        let elsewhere = [&here[1], &here[0]].map(|disk| Err(NoCounterpart::Elsewhere(disk)));
        assert_eq!(found(&wanted, &here), elsewhere);
    }

    #[test]
    fn a_copied_disk_whose_id_is_at_another_place_has_no_counterpart() {
        let here = [at("sda", "", "s/0:0:1"), at("sdb", "", "s/0:0:0")];
        let wanted = [at("sda", "", "s/0:0:0"), at("sdb", "", "s/0:0:1")];
        let elsewhere = [&here[0], &here[1]].map(|disk| Err(NoCounterpart::Elsewhere(disk)));
        assert_eq!(found(&wanted, &here), elsewhere);
        // Whether it is the same disk is compared by its image.
        let same = wanted.map(|disk| Disk {
            plan: DiskPlan::Same,
            ..disk
        });
        assert_eq!(found(&same, &here), [Ok(1), Ok(0)]);
        let other = at("sda", "", "s/0:0:5");
        assert_eq!(
            counterpart(&other, &here),
            Err(NoCounterpart::Elsewhere(&here[0]))
        );
        let none = at("sdc", "", "s/0:0:5");
        assert_eq!(counterpart(&none, &here), Err(NoCounterpart::Missing));
    }
}
