use super::*;
use std::fs::File;

use hikkoshi_wire::{DiskImage, DomainSnapshot, ImageName};
use rustix::fs::{XattrFlags, fsetxattr};

fn image(is_device: bool, shared: Option<&str>) -> ImageFile {
    ImageFile {
        open: "/no/such/file".into(),
        names: vec![ImageName {
            name: "host:1:2".into(),
            unique: true,
        }],
        locked: Some(true),
        is_device,
        file_system: shared.unwrap_or("ext4").to_owned(),
        is_shared: shared.is_some(),
    }
}

/// A disk whose file was found, on a file system of this host.
fn disk(id: &str, file: &str, read_only: bool) -> GuestDisk {
    GuestDisk {
        disk: BlockDisk {
            device: format!("/machine/peripheral/{id}"),
            node: format!("{id}-node"),
            bytes: 1 << 20,
            file: file.to_owned(),
            read_only,
            ..BlockDisk::default()
        },
        image: Some(image(false, None)),
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn selection(copied: Option<&[&str]>, shared: Option<&[&str]>) -> DiskSelection {
    DiskSelection {
        copied: copied.map(names),
        shared: shared.map(names),
        ..DiskSelection::default()
    }
}

/// The disks of each plan: copied, said to be shared, and the others.
fn planned(
    disks: &[GuestDisk],
    copied: Option<&[&str]>,
    shared: Option<&[&str]>,
) -> Result<[Vec<String>; 3], SelectError> {
    let (plans, _) = plan(disks, &selection(copied, shared))?;
    let of = |wanted: fn(DiskPlan) -> bool| {
        let found = disks.iter().zip(&plans).filter(|(_, plan)| wanted(**plan));
        found
            .map(|(found, _)| found.disk.label().to_owned())
            .collect()
    };
    Ok([
        of(DiskPlan::is_copied),
        of(|plan| plan == DiskPlan::Shared),
        of(|plan| plan == DiskPlan::Same),
    ])
}

fn with_image(found: GuestDisk, image: Option<ImageFile>) -> GuestDisk {
    GuestDisk { image, ..found }
}

#[test]
fn without_options_no_disk_is_copied_or_said_to_be_shared() {
    let disks = [disk("vda", "/a", false), disk("vdb", "/b", false)];
    let [copied, shared, same] = planned(&disks, None, None).unwrap();
    assert_eq!(
        (copied, shared, same),
        (names(&[]), names(&[]), names(&["vda", "vdb"]))
    );
    let [_, shared, same] = planned(&disks, None, Some(&["vdb"])).unwrap();
    assert_eq!((shared, same), (names(&["vdb"]), names(&["vda"])));
    let [_, shared, same] = planned(&disks, None, Some(&[])).unwrap();
    assert_eq!((shared, same), (names(&["vda", "vdb"]), names(&[])));
    let error = planned(&disks, None, Some(&["sda"])).unwrap_err();
    assert!(matches!(error, SelectError::NoSuch { .. }), "{error}");
    assert!(planned(&[], None, None).is_ok(), "no disk at all");
}

#[test]
fn by_default_files_that_can_be_written_are_copied() {
    let mut flash = disk("", "/vars.fd", false);
    flash.disk.device = "/machine/system.flash1".into();
    flash.disk.node = "#block3".into();
    let device = with_image(disk("vdd", "/dev/volume", false), Some(image(true, None)));
    let disks = [
        disk("vda", "/disk.qcow2", false),
        disk("cd0", "/cd.iso", true),
        device,
        disk("vde", "relative.raw", false),
        disk(
            "vdf",
            r#"json:{"driver":"raw","file":{"driver":"file","filename":"/f.raw"}}"#,
            false,
        ),
        flash,
        // A file that was passed to QEMU.
        disk("vdg", "/dev/fdset/3", false),
    ];
    let [copied, shared, same] = planned(&disks, Some(&[]), Some(&["vdd"])).unwrap();
    assert_eq!(copied, names(&["vda", "vde", "vdf", "vdg"]));
    assert_eq!(shared, names(&["vdd"]));
    assert_eq!(same, names(&["cd0", "/machine/system.flash1"]));
    // All that are not copied.
    let [again, shared, same] = planned(&disks, Some(&[]), Some(&[])).unwrap();
    assert_eq!((again, shared.len(), same.len()), (copied, 3, 0));
    let (_, left) = plan(&disks, &selection(Some(&[]), Some(&["vdd"]))).unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(left[0], "the disk cd0 is not copied: it is read-only");
    assert!(left[1].contains("flash memory"), "{left:?}");
}

#[test]
fn a_disk_that_may_be_another_one_at_the_destination_is_not_left_out() {
    let rbd = r#"json:{"driver":"raw","file":{"pool":"p","image":"i","driver":"rbd"}}"#;
    let unclear = || {
        vec![
            with_image(disk("vdb", "/dev/volume", false), Some(image(true, None))),
            with_image(disk("vdc", "/renamed.raw", false), None),
            with_image(disk("vdd", "/dev/fdset/4", false), None),
            with_image(
                disk("vde", "/mnt/e.raw", false),
                Some(image(false, Some("nfs4"))),
            ),
            disk("vdf", rbd, false),
            disk("vdg", "nbd://host/disk", false),
        ]
    };
    for one in unclear() {
        let label = one.disk.label().to_owned();
        let disks = [disk("vda", "/disk.qcow2", false), one.clone()];
        let error = planned(&disks, Some(&[]), None).unwrap_err().to_string();
        for part in [
            format!("destination has the same ones: {label} is "),
            format!("--copy-disks=vda,{label}, or"),
            format!("--shared-disks={label}"),
        ] {
            assert!(error.contains(&part), "{part:?} is not in: {error}");
        }
        let [copied, ..] = planned(&disks, Some(&[]), Some(&[&label])).unwrap();
        assert_eq!(copied, names(&["vda"]));
        // The destination compares it.
        let [copied, _, same] = planned(&disks, Some(&["vda"]), None).unwrap();
        assert_eq!((copied, same), (names(&["vda"]), vec![label]));
    }
    let mut all = unclear();
    all.push(disk("vda", "/disk.qcow2", false));
    let error = planned(&all, Some(&[]), None).unwrap_err().to_string();
    assert!(error.ends_with("--shared-disks=vdb,vdc,vdd,vde,vdf,vdg"));
    assert!(
        error.contains("vdb is a device of the host; vdc is"),
        "{error}"
    );
}

#[test]
fn what_other_hosts_may_use_is_said() {
    let what = |image: &ImageFile| may_be_shared(Some(image));
    assert_eq!(what(&image(false, None)), None);
    assert_eq!(
        what(&image(false, Some("nfs4"))).as_deref(),
        Some("on a file system that several hosts can use (nfs4)")
    );
    assert_eq!(
        what(&image(true, None)).as_deref(),
        Some("a device of the host")
    );
}

#[test]
fn named_disks_are_found_once_by_each_of_their_names() {
    let disks = [disk("vda", "/a", false), disk("vdb", "/dev/b", false)];
    let [copied, shared, _] = planned(&disks, Some(&["vdb-node", "vdb"]), Some(&["vda"])).unwrap();
    assert_eq!((copied, shared), (names(&["vdb"]), names(&["vda"])));
    for (copied, shared) in [(&["vda", "sda"][..], None), (&["vda"], Some(&["sda"][..]))] {
        let error = planned(&disks, Some(copied), shared)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no disk 'sda'") && error.ends_with("vda,vdb"),
            "{error}"
        );
    }
    let error = planned(&disks, Some(&["vda"]), Some(&["vda-node"])).unwrap_err();
    assert!(matches!(error, SelectError::Both { .. }), "{error}");
    let read_only = [disk("cd", "/c", true)];
    let error = planned(&read_only, Some(&["cd"]), None).unwrap_err();
    assert!(matches!(error, SelectError::ReadOnly { .. }), "{error}");
    let error = planned(&read_only, Some(&[]), None).unwrap_err();
    assert!(matches!(error, SelectError::None(_)), "{error}");
}

#[test]
fn snapshots_and_bitmaps_are_not_lost_unasked() {
    let copied = |snapshots: &[&str], bitmaps: &[&str]| CopiedDisk {
        node: "n".into(),
        label: "vda".into(),
        bytes: 1,
        images: Vec::new(),
        left_behind: LeftBehind {
            snapshots: names(snapshots),
            bitmaps: names(bitmaps),
            in_memory: Vec::new(),
        },
    };
    let check = |disk: CopiedDisk, drop_snapshots, drop_bitmaps| {
        let selection = DiskSelection {
            drop_snapshots,
            drop_bitmaps,
            ..selection(Some(&[]), None)
        };
        check_left_behind(&[disk], &selection).map_err(|error| error.to_string())
    };
    assert_eq!(check(copied(&[], &[]), false, false), Ok(Vec::new()));
    let both = || copied(&["before", "after"], &["backup"]);
    let error = check(both(), false, false).unwrap_err();
    for part in [
        "the internal snapshots 'before', 'after' of the disk vda; the dirty bitmaps 'backup' of \
         the disk vda",
        "--drop-snapshots and --drop-bitmaps",
    ] {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
    let error = check(both(), true, false).unwrap_err();
    assert!(
        error.contains("--drop-bitmaps") && !error.contains("snapshots"),
        "{error}"
    );
    let notices = check(both(), true, true).unwrap();
    assert_eq!(
        notices,
        [
            "the internal snapshots 'before', 'after' of the disk vda are not copied",
            "the dirty bitmaps 'backup' of the disk vda are not copied",
        ]
    );
}

/// Files of this host, too: the other one can have them by NFS from here, or be its clone.
#[test]
fn each_image_that_the_guest_writes_to_is_marked_until_it_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| File::create(folder.path().join(name)).unwrap();
    let files = ["same", "shared", "copied", "read-only"].map(file);
    if fsetxattr(&files[0], "user.test", b"x", XattrFlags::empty()).is_err() {
        println!("files here have no extended attributes: not tested");
        return;
    }
    let copied = DiskPlan::Copied { encrypted: false };
    let found = |name: &str| {
        let path = folder.path().join(name);
        let pid = std::process::id();
        ImageFile::of_process_file(pid, path.to_str().unwrap()).unwrap()
    };
    let disks = [
        ("same", DiskPlan::Same, Some(found("same"))),
        ("shared", DiskPlan::Shared, Some(found("shared"))),
        ("copied", copied, Some(found("copied"))),
        ("read-only", DiskPlan::Same, Some(found("read-only"))),
        // It cannot be opened.
        ("gone", DiskPlan::Same, Some(image(false, None))),
        ("network", DiskPlan::Same, None),
    ];
    let described = |(name, plan, image): &(&str, DiskPlan, Option<ImageFile>)| {
        let found = disk(name, name, *name == "read-only").disk;
        describe(&found, image.as_ref(), &[], *plan)
    };
    let chosen = ChosenDisks {
        disks: disks.iter().map(described).collect(),
        owner: Owner::of_process(std::process::id()),
        images: disks.iter().map(|(_, _, image)| image.clone()).collect(),
        ..ChosenDisks::default()
    };
    let offered = chosen.offer().unwrap();
    let number = offered.disks.mark;
    let marks: Vec<_> = offered
        .disks
        .disks
        .iter()
        .map(|disk| disk.image.mark)
        .collect();
    use ImageMark::{Absent, Of, Unknown};
    assert_eq!(marks, [Of(0), Of(1), Of(2), Unknown, Unknown, Unknown]);
    let here = |name: &str| {
        let image = found(name);
        let mark = marks::read(number, &image);
        let described = describe(
            &disk(name, name, false).disk,
            Some(&image),
            &[],
            DiskPlan::Same,
        );
        let image = DiskImage {
            mark,
            ..described.image
        };
        (mark, image)
    };
    for (source, name) in offered.disks.disks.iter().zip(["same", "shared", "copied"]) {
        assert!(source.image.is_same(&here(name).1), "{name}");
    }
    // Another file of the same names, as on a clone of the host.
    let mut clone = here("read-only");
    assert_eq!(clone.0, Absent);
    clone
        .1
        .names
        .clone_from(&offered.disks.disks[0].image.names);
    assert!(!offered.disks.disks[0].image.is_same(&clone.1));
    assert!(offered.disks.disks[0].image.may_be_same(&clone.1));
    drop(offered);
    assert_eq!(here("same").0, Absent);
}

#[test]
fn the_snapshots_of_a_domain_whose_disks_are_copied() {
    let described = || Domain {
        name: "guest".to_owned(),
        uuid: String::new(),
        xml: Vec::new(),
        persistent: Vec::new(),
        autostart: false,
        snapshots: vec![DomainSnapshot {
            xml: Vec::new(),
            current: true,
        }],
    };
    let drop = |copied: Vec<CopiedDisk>, drop_snapshots| {
        let mut chosen = ChosenDisks {
            copied,
            ..ChosenDisks::default()
        };
        let selection = DiskSelection {
            drop_snapshots,
            ..selection(Some(&[]), None)
        };
        let mut domain = described();
        let dropped = chosen.drop_snapshots(&mut domain, &selection);
        dropped.map_err(|error| error.to_string())?;
        Ok::<_, String>((domain.snapshots.len(), chosen.notices.len()))
    };
    let disk = || CopiedDisk {
        node: "n".into(),
        label: "vda".into(),
        bytes: 1,
        images: Vec::new(),
        left_behind: LeftBehind {
            snapshots: Vec::new(),
            bitmaps: Vec::new(),
            in_memory: Vec::new(),
        },
    };
    assert_eq!(drop(Vec::new(), false), Ok((1, 0)));
    assert_eq!(drop(vec![disk()], true), Ok((0, 1)));
    let error = drop(vec![disk()], false).unwrap_err();
    for part in ["the snapshots of the domain guest (1)", "--drop-snapshots"] {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}
