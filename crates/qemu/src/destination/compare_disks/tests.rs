use super::*;
use hikkoshi_wire::{ImageName, MAX_BACKING};

const MIB: u64 = 1 << 20;
const COPIED: DiskPlan = DiskPlan::Copied { encrypted: false };

fn unique(name: &str) -> ImageName {
    ImageName {
        name: name.into(),
        unique: true,
    }
}

/// A raw image of 1 MiB that this host has.
fn disk(id: &str, file: &str, name: &str) -> Disk {
    Disk {
        device: format!("/machine/peripheral/{id}/virtio-backend").into(),
        drive: "".into(),
        place: "".into(),
        bytes: Some(MIB),
        read_only: false,
        kind: DiskKind::Fixed,
        plan: DiskPlan::Same,
        image: DiskImage {
            file: file.into(),
            format: "raw".into(),
            storage: "ext4".into(),
            names: vec![unique(name)],
            ..DiskImage::default()
        },
        backing: Backing::Known(Vec::new()),
    }
}

/// With these files below: their file, name and checksum.
fn over(disk: Disk, below: &[(&str, &str, u32)]) -> Disk {
    let image = |&(file, name, checksum): &(&str, &str, u32)| DiskImage {
        file: file.into(),
        storage: "xfs".into(),
        names: vec![unique(name)],
        checksum: Some(checksum),
        ..DiskImage::default()
    };
    with(disk, |disk| {
        disk.backing = Backing::Known(below.iter().map(image).collect());
    })
}

fn with(disk: Disk, change: impl FnOnce(&mut Disk)) -> Disk {
    let mut disk = disk;
    change(&mut disk);
    disk
}

/// What is found of one disk of the source and one here.
fn one(theirs: &Disk, ours: &Disk) -> (String, String) {
    let found = compare(
        std::slice::from_ref(theirs),
        std::slice::from_ref(ours),
        true,
    );
    (found.refused.join(" | "), found.warnings.join(" | "))
}

/// A disk of the source, the one here, what is refused, and what is warned of.
type Case<'a> = (Disk, Disk, &'a str, &'a str);

fn assert_all(cases: &[Case<'_>]) {
    for (theirs, ours, refused, warned) in cases {
        let expected = ((*refused).to_owned(), (*warned).to_owned());
        assert_eq!(one(theirs, ours), expected, "{theirs:?}\n{ours:?}");
    }
}

#[test]
fn a_disk_that_the_guest_writes_to_must_be_known_to_be_the_same() {
    let here = || disk("vda", "/there/a.raw", "k:1");
    let there = || disk("vda", "/a.raw", "h:1");
    let same = || disk("vda", "/a.raw", "k:1");
    let shared = |disk| with(disk, |disk| disk.plan = DiskPlan::Shared);
    let bytes = |disk, bytes| with(disk, |disk| disk.bytes = Some(bytes));
    let not_known = "the guest writes to disks of which it is not known whether the destination has \
                     the same: vda (/a.raw on ext4 at the source, /there/a.raw on ext4 at the \
                     destination); copy them (--copy-disks=vda), or, if both hosts use the same, \
                     say so (--shared-disks=vda)";
    let sizes = "the disk vda has 150 MiB at the source, and 100 MiB at the destination: give the \
                 destination's QEMU the same disk";
    let read_only = "the disk vda is read-only at the destination, and the guest can write to it at \
                     the source";
    let mark = |disk, mark| with(disk, |disk| disk.image.mark = mark);
    let nfs = |disk| with(disk, |disk| disk.image.storage = "nfs4".into());
    let formats = "the image /there/a.raw of the disk vda is opened as raw at the source, and as \
                   qcow2 at the destination: give the destination's QEMU the same format";
    let two = "both hosts are said to use the disk vda (--shared-disks), and they have different \
               files: /a.raw on ext4 at the source, /there/a.raw on ext4 at the destination. If the \
               one at the destination is not a copy, the guest's data is lost";
    let no_size = "the size of the disk vda (1 MiB) is not known at the destination \
                   (/there/a.raw), and is not compared with that at the source";
    assert_all(&[
        (same(), here(), "", ""),
        (there(), here(), not_known, ""),
        // It is said, and seems not to be true.
        (shared(there()), here(), "", two),
        (
            shared(mark(same(), ImageMark::Of(3))),
            mark(here(), ImageMark::Absent),
            "",
            two,
        ),
        (shared(same()), here(), "", ""),
        (shared(nfs(there())), here(), "", ""),
        (shared(there()), nfs(here()), "", ""),
        (
            shared(with(there(), |disk| disk.image.names[0].unique = false)),
            with(here(), |disk| {
                disk.image.names = vec![ImageName {
                    name: "h:1".into(),
                    unique: false,
                }];
            }),
            "",
            "",
        ),
        // Whatever is said.
        (
            shared(nfs(there())),
            with(here(), |disk| disk.image.format = "qcow2".into()),
            formats,
            "",
        ),
        (
            bytes(there(), 150 * MIB),
            bytes(here(), 100 * MIB),
            sizes,
            "",
        ),
        (
            shared(bytes(there(), 150 * MIB)),
            bytes(here(), 100 * MIB),
            sizes,
            "",
        ),
        (
            bytes(same(), MIB + 1),
            here(),
            "the disk vda has 1048577 bytes at the source, and 1 MiB at the destination: give the \
             destination's QEMU the same disk, in a new QEMU",
            "",
        ),
        (
            same(),
            with(here(), |disk| disk.read_only = true),
            read_only,
            "",
        ),
        (
            same(),
            with(here(), |disk| disk.image.format = "qcow2".into()),
            formats,
            "",
        ),
        // A file of another file system with the source's mark, or without it.
        (
            mark(there(), ImageMark::Of(3)),
            mark(here(), ImageMark::Of(3)),
            "",
            "",
        ),
        (
            mark(there(), ImageMark::Of(3)),
            mark(here(), ImageMark::Of(4)),
            not_known,
            "",
        ),
        (
            mark(same(), ImageMark::Of(3)),
            mark(here(), ImageMark::Absent),
            not_known,
            "",
        ),
        (mark(same(), ImageMark::Of(3)), here(), "", ""),
        // A name that clones have, too.
        (
            with(same(), |disk| disk.image.names[0].unique = false),
            with(here(), |disk| disk.image.names[0].unique = false),
            not_known,
            "",
        ),
        // Sizes that are not known say nothing.
        (
            with(there(), |disk| disk.bytes = None),
            here(),
            not_known,
            "",
        ),
        (
            shared(nfs(there())),
            with(here(), |disk| disk.bytes = None),
            "",
            no_size,
        ),
        (same(), with(here(), |disk| disk.bytes = None), "", ""),
        (
            there(),
            disk("vdb", "/b", "h:1"),
            "QEMU at the destination has no disk with a medium for the source's vda (1 MiB): give \
             it the same disk",
            "",
        ),
        // A medium that can be written to, such as a floppy disk.
        (
            with(there(), |disk| disk.kind = DiskKind::Removable),
            here(),
            not_known,
            "",
        ),
    ]);
}

#[test]
fn all_disks_that_are_not_known_are_named_once() {
    let theirs = [
        with(disk("vda", "/a", "h:1"), |disk| disk.plan = COPIED),
        disk("vdb", "/b", "h:2"),
        disk("vdc", "/c", "h:3"),
        disk("vdd", "nbd://store/d", "nbd://store/d"),
    ];
    let ours = [
        disk("vda", "/a", "k:1"),
        disk("vdb", "/b", "k:2"),
        with(disk("vdc", "/c", "k:3"), |disk| {
            disk.image.storage = "".into()
        }),
        disk("vdd", "nbd://store/d", "nbd://store/d"),
    ];
    let found = compare(&theirs, &ours, true);
    assert_eq!(
        found.refused,
        [
            "the guest writes to disks of which it is not known whether the destination has the \
             same: vdb (/b on ext4 at the source, /b on ext4 at the destination); vdc (/c on ext4 \
             at the source, /c at the destination); copy them (--copy-disks=vda,vdb,vdc), or, if \
             both hosts use the same, say so (--shared-disks=vdb,vdc)"
        ]
    );
    assert_eq!(found.targets, [0]);
    // A domain's disks are not copied.
    let found = compare(&theirs[1..2], &ours, false);
    assert!(
        found.refused[0].ends_with("; if both hosts use the same, say so (--shared-disks=vdb)"),
        "{found:?}"
    );
}

/// A reason is cut when it is sent, and what to do is at its end.
#[test]
fn of_many_unknown_disks_the_first_are_shown() {
    let disks = |host: &str| -> Vec<_> {
        let name = |number| format!("{host}:{number}");
        let disk = |number| disk(&format!("vd{number}"), &"/long".repeat(40), &name(number));
        (0..20).map(disk).collect()
    };
    let refused = compare(&disks("h"), &disks("k"), true).refused;
    let [reason] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert!(
        reason.contains("; and 12 more; copy them (--copy-disks=vd0,"),
        "{reason}"
    );
    assert!(reason.ends_with("vd18,vd19)"), "{reason}");
    assert!(reason.len() < hikkoshi_wire::MAX_TEXT, "{}", reason.len());
}

#[test]
fn what_the_guest_only_reads_is_a_warning() {
    let medium = |file: &str, name: &str, checksum| {
        with(disk("cd", file, name), |disk| {
            disk.kind = DiskKind::Removable;
            disk.read_only = true;
            disk.image.checksum = checksum;
        })
    };
    let base = |file: &str, name: &str| with(disk("vdb", file, name), |disk| disk.read_only = true);
    let here = || medium("/iso/b.iso", "k:1", Some(1));
    let another = |what: &str| {
        format!(
            "the medium of cd (/a.iso) is another one at the destination: /iso/b.iso has {what}"
        )
    };
    let bytes = |disk| with(disk, |disk| disk.bytes = Some(2 * MIB));
    let sizes = "the disk vdb has 2 MiB at the source, and 1 MiB at the destination: give the \
                 destination's QEMU the same disk";
    assert_all(&[
        (medium("/a.iso", "k:1", Some(2)), here(), "", ""),
        // A copy of it.
        (medium("/a.iso", "h:1", Some(1)), here(), "", ""),
        (
            medium("/a.iso", "h:1", Some(2)),
            here(),
            "",
            &another("another content"),
        ),
        (
            medium("/a.iso", "h:1", None),
            here(),
            "",
            &another("another name"),
        ),
        (medium("/b.iso", "h:1", None), here(), "", ""),
        (
            with(medium("/a.iso", "h:1", None), |disk| disk.bytes = Some(5)),
            here(),
            "",
            &another("another size"),
        ),
        (
            with(medium("/a.iso", "h:1", Some(2)), |disk| {
                disk.plan = DiskPlan::Shared
            }),
            here(),
            "",
            "",
        ),
        (
            medium("/a.iso", "h:1", Some(1)),
            disk("vda", "/b", "k:1"),
            "",
            "the medium of cd (/a.iso) is missing at the destination: the guest finds none there",
        ),
        (
            base("/base.raw", "h:1"),
            base("/other.raw", "k:1"),
            "",
            "the read-only disk of vdb (/base.raw) is another one at the destination: /other.raw \
             has another name",
        ),
        // Of a medium it is said, and of a disk that stays in its device it is refused.
        (
            with(medium("/a.iso", "k:1", None), |disk| {
                disk.bytes = Some(5);
                disk.plan = DiskPlan::Shared;
            }),
            here(),
            "",
            &another("another size"),
        ),
        (
            bytes(base("/base.raw", "h:1")),
            base("/base.raw", "k:1"),
            sizes,
            "",
        ),
        (
            with(bytes(base("/base.raw", "h:1")), |disk| {
                disk.plan = DiskPlan::Shared
            }),
            base("/base.raw", "k:1"),
            sizes,
            "",
        ),
        (
            bytes(base("/base.raw", "k:1")),
            base("/base.raw", "k:1"),
            &format!("{sizes}, in a new QEMU"),
            "",
        ),
        (
            base("/base.raw", "h:1"),
            with(base("/base.raw", "k:1"), |disk| disk.bytes = None),
            "",
            "the size of the disk vdb (1 MiB) is not known at the destination (/base.raw), and is \
             not compared with that at the source",
        ),
    ]);
}

/// An image names its backing file, and each host has its own of that name.
#[test]
fn the_images_below_a_disk_must_be_the_same() {
    let top = || disk("vda", "/nfs/web.qcow2", "nfs:1");
    let there = |below: &[(&str, &str, u32)]| over(top(), below);
    let shared = |disk| with(disk, |disk| disk.plan = DiskPlan::Shared);
    let base = ("/base.raw", "h:1", 1);
    let here = ("/base.raw", "k:1", 1);
    let refused = |what: &str| {
        format!(
            "the guest writes to disks of which it is not known whether the destination has the \
             same: vda (backing {what}); copy them (--copy-disks=vda), or, if both hosts use the \
             same, say so (--shared-disks=vda)"
        )
    };
    let one = "file: /base.raw on xfs at the source, /base.raw on xfs at the destination";
    let less = "files: /mid on xfs, /base.raw on xfs at the source, /base.raw on xfs at the \
                destination";
    let none = "files: /base.raw on xfs at the source, none at the destination";
    let unknown = |disk| with(disk, |disk: &mut Disk| disk.backing = Backing::Unknown);
    let not_known = |side: &str| {
        format!(
            "the backing files of the disk vda are not known at the {side}, and are not compared"
        )
    };
    let middle = ("/mid", "nfs:2", 2);
    let warned = format!(
        "both hosts are said to use the disk vda (--shared-disks), and it is not known whether \
         they have the same backing {one}. If not, the guest's data is lost"
    );
    assert_all(&[
        (there(&[base]), there(&[base]), "", ""),
        (there(&[base]), there(&[here]), &refused(one), ""),
        (
            there(&[middle, base]),
            there(&[middle, here]),
            &refused(one),
            "",
        ),
        (there(&[middle, base]), there(&[base]), &refused(less), ""),
        (there(&[base]), there(&[]), &refused(none), ""),
        (shared(there(&[base])), there(&[here]), "", &warned),
        (shared(there(&[base])), there(&[base]), "", ""),
        (
            there(&[base]),
            unknown(top()),
            &refused("files: not known at the destination"),
            "",
        ),
        (
            unknown(top()),
            there(&[base]),
            &refused("files: not known at the source"),
            "",
        ),
        (
            shared(there(&[base])),
            unknown(top()),
            "",
            &not_known("destination"),
        ),
        (
            shared(unknown(top())),
            there(&[base]),
            "",
            &not_known("source"),
        ),
        // Its image has the name of a backing file, or none.
        (there(&[]), unknown(top()), "", ""),
    ]);
    let many = [base; MAX_BACKING];
    assert_all(&[(there(&many), there(&many), "", "")]);
}

#[test]
fn what_is_below_a_disk_that_the_guest_only_reads_is_a_warning() {
    let disk = |below: &[(&str, &str, u32)]| {
        let disk = with(disk("vdb", "/nfs/a", "nfs:1"), |disk| disk.read_only = true);
        over(disk, below)
    };
    let warned = "the read-only disk of vdb (/nfs/a) has another one at the destination below it, \
                  backing file: /base on xfs at the source, /base on xfs at the destination";
    assert_all(&[
        (
            disk(&[("/base", "h:1", 1)]),
            disk(&[("/base", "h:1", 2)]),
            "",
            "",
        ),
        // A copy of it.
        (
            disk(&[("/base", "h:1", 1)]),
            disk(&[("/b", "k:1", 1)]),
            "",
            "",
        ),
        (
            disk(&[("/base", "h:1", 1)]),
            disk(&[("/base", "k:1", 2)]),
            "",
            warned,
        ),
    ]);
}

#[test]
fn a_disk_is_not_copied_to_a_backing_file_of_the_source() {
    let copied = |disk| with(disk, |disk: &mut Disk| disk.plan = COPIED);
    let base = ("/base", "nfs:1", 1);
    let own = over(copied(disk("vda", "/a", "h:1")), &[base]);
    let other = over(disk("vdb", "/b", "h:2"), &[base]);
    let target = disk("vda", "/nfs/base", "nfs:1");
    let of = |theirs: &[Disk]| compare(theirs, &[target.clone(), other.clone()], true).refused;
    for (theirs, whose) in [
        (vec![own], "vda"),
        (vec![copied(disk("vda", "/a", "h:1")), other.clone()], "vdb"),
    ] {
        let expected = format!(
            "the disk vda has a backing file of the source's disk {whose} at the destination \
             (/nfs/base): the copy would destroy it. Give it an image of its own"
        );
        assert_eq!(of(&theirs), [expected]);
    }
    // What the destination's image had below does not matter.
    let theirs = copied(disk("vda", "/a", "h:1"));
    assert_all(&[(theirs, over(disk("vda", "/k", "k:1"), &[base]), "", "")]);
}

#[test]
fn flash_memory_must_have_the_same_size() {
    let flash = |file: &str, name: &str, bytes| {
        with(disk("", file, name), |disk| {
            disk.device = "/machine/system.flash1".into();
            disk.kind = DiskKind::Flash;
            disk.bytes = Some(bytes);
        })
    };
    assert_all(&[
        (
            flash("/a.fd", "h:1", MIB),
            flash("/b.fd", "k:1", MIB),
            "",
            "",
        ),
        (flash("/a.fd", "h:1", MIB), disk("vda", "/b", "k:1"), "", ""),
        (
            flash("/a.fd", "h:1", MIB),
            flash("/b.fd", "k:1", MIB / 2),
            "the disk /machine/system.flash1 has 1 MiB at the source, and 524288 bytes at the \
             destination: give the destination flash memory of the same size",
            "",
        ),
    ]);
}

#[test]
fn an_image_that_a_disk_is_copied_to_must_be_one_of_its_own_and_fit() {
    let copied = |disk| with(disk, |disk| disk.plan = COPIED);
    let theirs = |file: &str, name: &str| copied(disk("vda", file, name));
    let here = || disk("vda", "/b.raw", "k:1");
    let same = "the disk vda has the same image at both sides (/b.raw): move the guest without \
                --copy-disks, or name the other disks: --copy-disks=DISK,…";
    assert_all(&[
        (theirs("/a", "h:1"), here(), "", ""),
        (theirs("/a", "k:1"), here(), same, ""),
        // Also if it is only possible that it is the same.
        (
            with(theirs("/a", "k:1"), |disk| {
                disk.image.names[0].unique = false
            }),
            with(here(), |disk| disk.image.names[0].unique = false),
            same,
            "",
        ),
        (
            theirs("/a", "h:1"),
            with(here(), |disk| disk.bytes = Some(2 * MIB)),
            "the disk vda has 1 MiB at the source, and 2 MiB at the destination: give the \
             destination an image of the same size",
            "",
        ),
        (
            theirs("/a", "h:1"),
            with(here(), |disk| disk.read_only = true),
            "the disk vda is read-only at the destination, and the guest can write to it at the \
             source",
            "",
        ),
        (
            theirs("/a", "h:1"),
            disk("vdb", "/b", "k:1"),
            "QEMU at the destination has no disk with a medium for the source's vda (1 MiB): give \
             it an image of that size",
            "",
        ),
        (
            with(theirs("/a", "h:1"), |disk| {
                disk.plan = DiskPlan::Copied { encrypted: true }
            }),
            here(),
            "the disk vda is encrypted at the source, and its image at the destination is not \
             (/b.raw): give it an encrypted one, or name the disks to copy: --copy-disks=vda,…",
            "",
        ),
        (
            with(theirs("/a", "h:1"), |disk| {
                disk.plan = DiskPlan::Copied { encrypted: true }
            }),
            with(here(), |disk| disk.image.encrypted = true),
            "",
            "",
        ),
    ]);
}

/// Each image is compared with all of the source's, and with the others here.
#[test]
fn an_image_of_another_disk_is_not_overwritten() {
    let copied = |disk| with(disk, |disk| disk.plan = COPIED);
    let theirs = [
        copied(disk("vda", "/a", "h:1")),
        copied(disk("vdb", "/b", "h:2")),
        disk("vdc", "/c", "h:3"),
    ];
    let ours = |one: &str, other: &str| {
        [
            disk("vda", "/k1", one),
            disk("vdb", "/k2", other),
            disk("vdc", "/c", "h:3"),
        ]
    };
    let fits = compare(&theirs, &ours("k:1", "k:2"), true);
    assert_eq!((fits.targets, fits.refused), (vec![0, 1], Vec::new()));
    let of_another = "has the image of another disk of the source";
    // Swapped.
    let swapped = compare(&theirs, &ours("h:2", "h:1"), true).refused;
    assert!(
        swapped.len() == 2 && swapped.iter().all(|it| it.contains(of_another)),
        "{swapped:?}"
    );
    // That of a disk that is not copied, which is refused at its own place, too.
    for (id, one, other) in [("vda", "h:3", "k:2"), ("vdb", "k:1", "h:3")] {
        let found = compare(&theirs, &ours(one, other), true).refused;
        assert_eq!(found.len(), 1, "{found:?}");
        let begin = format!("the disk {id} {of_another}");
        assert!(found[0].starts_with(&begin), "{found:?}");
    }
    let twice = compare(&theirs, &ours("k:1", "k:1"), true).refused;
    let expected = "the disks vda and vdb have the same image at the destination (/k2)";
    assert!(
        twice.len() == 1 && twice[0].starts_with(expected),
        "{twice:?}"
    );
}

#[test]
fn two_disks_are_not_copied_to_one() {
    let anonymous = |number, drive: &str, name: &str| {
        with(disk("", "/a", name), |disk| {
            disk.device = format!("/machine/peripheral-anon/device[{number}]").into();
            disk.drive = drive.into();
            disk.plan = COPIED;
        })
    };
    let theirs = [anonymous(0, "left", "h:1"), anonymous(1, "right", "h:2")];
    let ours = [anonymous(0, "right", "k:1"), anonymous(5, "", "k:2")];
    let found = compare(&theirs, &ours, true).refused;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("two disks of the source would be"),
        "{found:?}"
    );
}

#[test]
fn a_copied_disk_whose_name_is_at_another_place_is_refused() {
    let at = |id: &str, place: &str, name: &str| {
        with(disk(id, "/a", name), |disk| {
            disk.place = place.into();
            disk.plan = COPIED;
        })
    };
    let theirs = at("a", "pci.0/04.0", "h:1");
    let ours = [at("b", "pci.0/04.0", "k:1"), at("a", "pci.0/05.0", "k:2")];
    let found = compare(std::slice::from_ref(&theirs), &ours, true).refused;
    let expected = "the source's disk a is at pci.0/04.0, and the disk of that name at the \
                    destination, a, is at pci.0/05.0: give each";
    assert!(
        found.len() == 1 && found[0].starts_with(expected),
        "{found:?}"
    );
}

/// One that libvirt's user has added, at a machine whose monitor is not available.
#[test]
fn a_disk_without_an_id_may_be_the_missing_one() {
    let anonymous = with(disk("", "/a.raw", "h:1"), |disk| disk.device = "".into());
    let ours = [disk("vdb", "/b.raw", "k:1"), anonymous];
    let of = |plan, read_only| {
        let theirs = with(disk("vda", "/a.raw", "h:1"), |disk| {
            disk.plan = plan;
            disk.read_only = read_only;
        });
        let [alone, both] = [&ours[..1], &ours].map(|ours| {
            let Compared {
                refused, warnings, ..
            } = compare(std::slice::from_ref(&theirs), ours, false);
            [refused, warnings].concat().join("")
        });
        assert!(!alone.contains("has no id"), "{alone}");
        both
    };
    for plan in [DiskPlan::Same, DiskPlan::Shared] {
        for read_only in [false, true] {
            let said = of(plan, read_only);
            assert!(said.contains("a disk there has no id"), "{said}");
        }
    }
}
