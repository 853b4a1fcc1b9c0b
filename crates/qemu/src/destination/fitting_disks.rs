//! Which disks here the source's are copied to.
//!
//! A disk is the one that the guest sees at the same place: the PCI slot, the SCSI address, the IDE
//! unit. The guest is compared with the machine here by these, too, and its device state is loaded
//! by them. Ids and names of drives are only names, and QEMU gives anonymous devices names by their
//! order on the command line. But if a name says otherwise, one of both command lines is likely
//! wrong, and the copy would overwrite another disk: it is refused.

use hikkoshi_wire::Disk;

use crate::disks::sent_image::{must_be_encrypted, own_names, place};
use crate::disks::{BlockDisk, device_id, same_image};

/// A disk here, and the names of its image.
type Here = (BlockDisk, String);

/// The disk here for a disk of the source; or why there is none.
fn counterpart<'a>(theirs: &Disk, ours: &'a [Here]) -> Result<&'a Here, String> {
    let (id, drive, place) = (
        device_id(&theirs.device),
        &*theirs.drive,
        place(&theirs.image),
    );
    let by_id = id.and_then(|id| ours.iter().find(|(our, _)| our.id() == Some(id)));
    let by_drive = || {
        let mut named = ours
            .iter()
            .filter(|(our, _)| !drive.is_empty() && *our.drive == *drive);
        named.next().filter(|_| named.next().is_none())
    };
    let by_path = || ours.iter().find(|(our, _)| *our.device == *theirs.device);
    let at_place = ours
        .iter()
        .find(|(our, _)| !place.is_empty() && *our.place == *place);
    let Some(found) = at_place else {
        let named = by_id.or_else(by_drive).or_else(by_path);
        let Some(named) = named else {
            return Err(missing(theirs, place));
        };
        return match place.is_empty() || named.0.place.is_empty() {
            true => Ok(named),
            false => Err(elsewhere(theirs, place, &named.0)),
        };
    };
    let other = match by_id {
        Some(named) => Some(named),
        None => by_drive(),
    };
    match other {
        Some(other) if other != found => Err(elsewhere(theirs, place, &other.0)),
        _ => Ok(found),
    }
}

/// What the source's owner calls this disk.
fn their_label(theirs: &Disk) -> &str {
    match device_id(&theirs.device) {
        Some(id) => id,
        None if !theirs.drive.is_empty() => &theirs.drive,
        None => &theirs.device,
    }
}

fn missing(theirs: &Disk, place: &str) -> String {
    let at = match place {
        "" => String::new(),
        place => format!(" at {place}"),
    };
    format!(
        "QEMU here has no disk with a medium for the source's {}{at} ({} bytes): give it an image \
         of that size",
        their_label(theirs),
        theirs.bytes
    )
}

fn elsewhere(theirs: &Disk, place: &str, named: &BlockDisk) -> String {
    format!(
        "the source's disk {} is at {place}, and the disk of that name here, {}, is at {}: give \
         each disk's device the same address (addr=, lun=, unit=) and the same id at both sides",
        their_label(theirs),
        named.label(),
        match &*named.place {
            "" => "no address",
            place => place,
        }
    )
}

/// The disks here, of which the names of the images are known, for those of the source; or
/// everything that prevents a copy.
pub(super) fn fitting<'a>(
    theirs: &[Disk],
    ours: &'a [Here],
) -> Result<Vec<&'a BlockDisk>, Vec<String>> {
    let (mut found, mut problems) = (Vec::<&Here>::new(), Vec::new());
    for disk in theirs {
        let matched = match counterpart(disk, ours) {
            Ok(matched) => matched,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let (our, image) = matched;
        let label = our.label();
        let twice = found.iter().find(|(_, other)| same_image(other, image));
        if found.contains(&matched) {
            problems.push(format!(
                "two disks of the source would be copied to the disk {label}: give each disk's \
                 device the same id at both sides"
            ));
        } else if let Some((other, _)) = twice {
            problems.push(format!(
                "the disks {} and {label} have the same image here ({}): give each disk one of its \
                 own",
                other.label(),
                our.file
            ));
        }
        if same_image(image, own_names(&disk.image)) {
            problems.push(format!(
                "the disk {label} has the same image at both sides ({}): move the guest without \
                 --copy-disks, or name the other disks: --copy-disks=DISK,…",
                our.file
            ));
        } else if theirs.iter().any(|other| same_image(image, &other.image)) {
            problems.push(format!(
                "the disk {label} has the image of another disk of the source here ({}): the copy \
                 would destroy it. Give it an image of its own",
                our.file
            ));
        } else if our.read_only {
            problems.push(format!(
                "the disk {label} is read-only here, and the guest can write to it at the source"
            ));
        } else if must_be_encrypted(&disk.image) && !our.encrypted {
            problems.push(format!(
                "the disk {label} is encrypted at the source, and its image here is not ({}): give \
                 it an encrypted one, or name the disks to copy: --copy-disks={label},…",
                our.file
            ));
        } else if our.bytes != disk.bytes {
            problems.push(format!(
                "the disk {label} has {} bytes at the source, and {} here: give it an image of the \
                 same size",
                disk.bytes, our.bytes
            ));
        }
        found.push(matched);
    }
    if problems.is_empty() {
        Ok(found.into_iter().map(|(our, _)| our).collect())
    } else {
        Err(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where QEMU has the devices with an id.
    const NAMED_DEVICES: &str = "/machine/peripheral/";

    fn theirs(device: &str, drive: &str, bytes: u64) -> Disk {
        Disk {
            device: device.into(),
            drive: drive.into(),
            bytes,
            image: "".into(),
        }
    }

    fn ours(device: &str, drive: &str, bytes: u64) -> Here {
        let disk = BlockDisk {
            device: device.into(),
            drive: drive.into(),
            bytes,
            ..BlockDisk::default()
        };
        (disk, String::new())
    }

    /// Each image is compared with all of the source's, and with the others here.
    #[test]
    fn an_image_of_another_disk_is_not_overwritten() {
        let at = |id| format!("{NAMED_DEVICES}{id}");
        let here = |id, image: &str| (ours(&at(id), "", 1).0, image.to_owned());
        let there = |id, image: &str| Disk {
            image: image.into(),
            ..theirs(&at(id), "", 1)
        };
        let wanted = [there("vda", "h:1 wwn:a"), there("vdb", "h:2 others: h:3")];
        let fits = [here("vda", "k:1"), here("vdb", "k:2")];
        assert_eq!(fitting(&wanted, &fits).unwrap(), [&fits[0].0, &fits[1].0]);
        let problems = |here: &[_]| fitting(&wanted, here).unwrap_err();
        let of_another = "has the image of another disk of the source";
        // Swapped, and that of a disk that is not copied.
        let swapped = problems(&[here("vda", "h:2"), here("vdb", "k:7 wwn:a")]);
        assert!(
            swapped.len() == 2 && swapped.iter().all(|it| it.contains(of_another)),
            "{swapped:?}"
        );
        for id in ["vda", "vdb"] {
            let (one, other) = if id == "vda" {
                ("h:3", "k:2")
            } else {
                ("k:1", "h:3")
            };
            let found = problems(&[here("vda", one), here("vdb", other)]);
            assert_eq!(found.len(), 1, "{found:?}");
            let begin = format!("the disk {id} {of_another}");
            assert!(found[0].starts_with(&begin), "{found:?}");
        }
        let same = problems(&[here("vda", "h:1"), here("vdb", "k:2")]);
        assert!(same[0].contains("the same image at both sides"), "{same:?}");
        let twice = problems(&[here("vda", "k:1"), here("vdb", "k:1")]);
        let expected = "the disks vda and vdb have the same image here";
        assert!(
            twice.len() == 1 && twice[0].starts_with(expected),
            "{twice:?}"
        );
        // Nothing is known of these.
        assert!(fitting(&wanted, &[here("vda", ""), here("vdb", "")]).is_ok());
    }

    #[test]
    fn disks_are_found_by_their_devices_or_drives() {
        let at = |id| format!("{NAMED_DEVICES}{id}");
        let here = [ours(&at("a"), "d0", 1), ours(&at("b"), "d1", 2)];
        let wanted = [theirs(&at("b"), "", 2), theirs(&at("other"), "d0", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[1].0, &here[0].0]);
    }

    /// Their paths have the order of the command line.
    #[test]
    fn devices_without_an_id_are_found_by_their_drives_first() {
        let path = |number| format!("/machine/peripheral-anon/device[{number}]");
        let here = [ours(&path(0), "right", 1), ours(&path(1), "left", 1)];
        let wanted = [theirs(&path(0), "left", 1), theirs(&path(1), "right", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[1].0, &here[0].0]);
        // Without names, the order is all that is known.
        let here = [ours(&path(0), "", 1), ours(&path(1), "other", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[0].0, &here[1].0]);
        // Never two to one.
        let here = [ours(&path(0), "right", 1), ours(&path(5), "", 1)];
        let wanted = [theirs(&path(0), "left", 1), theirs(&path(1), "right", 1)];
        let problems = fitting(&wanted, &here).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("two disks of the source"));
        // One with an id keeps it, whatever its drive is called.
        let named = |id| format!("{NAMED_DEVICES}{id}/virtio-backend");
        let here = [ours(&named("vda"), "b", 1), ours(&named("vdb"), "a", 1)];
        let wanted = [theirs(&named("vda"), "a", 1), theirs(&named("vdb"), "b", 1)];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[0].0, &here[1].0]);
    }

    #[test]
    fn everything_that_does_not_fit_is_named() {
        let mut read_only = ours("/machine/peripheral/vdc", "", 3);
        read_only.0.read_only = true;
        let here = [ours("/machine/peripheral/vda", "", 1), read_only];
        let wanted = [
            theirs("/machine/peripheral/vda", "", 2),
            theirs("/machine/peripheral/vdb", "", 2),
            theirs("/machine/peripheral/vdc", "", 3),
        ];
        let problems = fitting(&wanted, &here).unwrap_err();
        let expected = [
            "the disk vda has 2 bytes at the source, and 1 here",
            "QEMU here has no disk with a medium for the source's vdb (2 bytes)",
            "the disk vdc is read-only here",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    }

    /// A disk that the guest sees at this place.
    fn theirs_at(device: &str, drive: &str, place: &str) -> Disk {
        Disk {
            image: format!("place:{place} h:1").into(),
            ..theirs(device, drive, 1)
        }
    }

    fn ours_at(device: &str, drive: &str, place: &str) -> Here {
        let mut here = ours(device, drive, 1);
        here.0.place = place.into();
        here
    }

    /// QEMU names SCSI and IDE devices with an id by that alone, and their drives may be named in
    /// another order.
    #[test]
    fn scsi_and_ide_disks_are_found_by_their_ids_whatever_their_drives_are_called() {
        for [one, other] in [["sda", "sdb"], ["hda", "hdb"]] {
            let here = [ours(one, "d1", 1), ours(other, "d0", 1)];
            let wanted = [theirs(one, "d0", 1), theirs(other, "d1", 1)];
            let found = fitting(&wanted, &here).unwrap();
            assert_eq!(found, [&here[0].0, &here[1].0]);
            let places = ["pci.0/05.0/0:0:0", "pci.0/05.0/0:0:1"];
            let here = [
                ours_at(other, "d0", places[1]),
                ours_at(one, "d1", places[0]),
            ];
            let wanted = [
                theirs_at(one, "d0", places[0]),
                theirs_at(other, "d1", places[1]),
            ];
            let found = fitting(&wanted, &here).unwrap();
            assert_eq!(found, [&here[1].0, &here[0].0]);
        }
    }

    /// Without ids, and with automatic slots, in another order of the command line.
    #[test]
    fn anonymous_devices_are_found_where_the_guest_sees_them() {
        let path = |number| format!("/machine/peripheral-anon/device[{number}]/virtio-backend");
        let here = [
            ours_at(&path(0), "", "pci.0/05.0"),
            ours_at(&path(1), "", "pci.0/04.0"),
        ];
        let wanted = [
            theirs_at(&path(0), "", "pci.0/04.0"),
            theirs_at(&path(1), "", "pci.0/05.0"),
        ];
        let found = fitting(&wanted, &here).unwrap();
        assert_eq!(found, [&here[1].0, &here[0].0]);
        // The automatic slots follow the order: the names of the drives say that it was changed.
        let here = [
            ours_at(&path(0), "b", "pci.0/04.0"),
            ours_at(&path(1), "a", "pci.0/05.0"),
        ];
        let wanted = [
            theirs_at(&path(0), "a", "pci.0/04.0"),
            theirs_at(&path(1), "b", "pci.0/05.0"),
        ];
        let problems = fitting(&wanted, &here).unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        let expected = "the source's disk a is at pci.0/04.0, and the disk of that name here, a, \
                        is at pci.0/05.0: give each";
        assert!(problems[0].starts_with(expected), "{problems:?}");
    }

    #[test]
    fn a_disk_whose_id_is_at_another_place_is_refused() {
        let here = [ours_at("sda", "", "s/0:0:1"), ours_at("sdb", "", "s/0:0:0")];
        let wanted = [
            theirs_at("sda", "", "s/0:0:0"),
            theirs_at("sdb", "", "s/0:0:1"),
        ];
        let problems = fitting(&wanted, &here).unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        let problems = fitting(&[theirs_at("sda", "", "s/0:0:5")], &here).unwrap_err();
        assert!(
            problems[0].contains("is at s/0:0:5, and the disk"),
            "{problems:?}"
        );
        let problems = fitting(&[theirs_at("sdc", "", "s/0:0:5")], &here).unwrap_err();
        let expected = "QEMU here has no disk with a medium for the source's sdc at s/0:0:5 (1 b";
        assert!(problems[0].starts_with(expected), "{problems:?}");
        // Other names at the same place are as good, if nothing else is called so.
        let found = fitting(&[theirs_at("vda", "x", "s/0:0:1")], &here).unwrap();
        assert_eq!(found, [&here[0].0]);
    }

    #[test]
    fn an_encrypted_disk_is_not_stored_unencrypted_by_default() {
        let wanted = |word: &str| {
            [Disk {
                image: format!("{word}h:1").into(),
                ..theirs("sda", "", 1)
            }]
        };
        let mut here = [ours("sda", "", 1)];
        assert!(fitting(&wanted(""), &here).is_ok());
        let problems = fitting(&wanted("encrypted: "), &here).unwrap_err();
        assert!(
            problems[0].starts_with("the disk sda is encrypted at the source"),
            "{problems:?}"
        );
        here[0].0.encrypted = true;
        assert!(fitting(&wanted("encrypted: "), &here).is_ok());
    }
}
