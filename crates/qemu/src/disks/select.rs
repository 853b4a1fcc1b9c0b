//! Which disks are copied.

use hikkoshi_wire::{Disk, MAX_DISKS};
use serde_json::Value;

use super::image::ImageFile;
use super::list::{BlockDisk, is_file, list};
use super::select_error::SelectError;
use super::sent_image::{describe, others_marked};
use crate::command_line::image_file;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// Which disks are copied to the destination. A disk is named by its device's id, the name of the
/// `-drive`, or the block node's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskSelection {
    /// These. Empty: each disk that the guest can write to; it must be a file of this host only.
    pub named: Vec<String>,
    /// These are not copied: both hosts use them.
    pub shared: Vec<String>,
}

/// A disk that is copied.
#[derive(Debug, Clone)]
pub(crate) struct CopiedDisk {
    /// As the other side is told.
    pub(crate) disk: Disk,
    /// Its block node.
    pub(crate) node: String,
    /// What it is called in messages.
    pub(crate) label: String,
    /// The files of its image and of the backing images below.
    pub(crate) images: Vec<String>,
}

/// Why a disk is not copied, for people; or that there is none.
pub(crate) type NotCopied = String;

/// A disk of the guest, and the file of its image, if that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GuestDisk {
    disk: BlockDisk,
    image: Option<ImageFile>,
}

/// The disks to copy; and for people, why others are not, and what to mind.
pub(crate) fn choose(
    client: &mut Client,
    selection: &DiskSelection,
) -> Result<(Vec<CopiedDisk>, Vec<NotCopied>), SelectError> {
    let mut disks = Vec::new();
    for disk in list(client)? {
        let image = ImageFile::of_disk(client, &disk.file)?;
        disks.push(GuestDisk { disk, image });
    }
    let by_name = !selection.named.is_empty();
    let (chosen, others, mut left) = if by_name {
        let (chosen, others) = named(disks, selection)?;
        (chosen, others, Vec::new())
    } else {
        writable(disks, &selection.shared)?
    };
    if chosen.is_empty() {
        return Err(SelectError::None(left));
    }
    if chosen.len() > MAX_DISKS {
        return Err(SelectError::TooMany {
            found: chosen.len(),
        });
    }
    let mut copied = Vec::with_capacity(chosen.len());
    for found in &chosen {
        let GuestDisk { disk, image } = found;
        if let Some(how) = passes_commands_on(client, disk)? {
            let name = disk.label().to_owned();
            return Err(SelectError::Passthrough { name, how });
        }
        let shared_rw = qom::property(client, &disk.path(), "share-rw")?;
        let how = match image {
            _ if shared_rw == Some(Value::Bool(true)) => Some("its device has share-rw=on"),
            // Who names it knows it.
            Some(image) if image.locked == Some(false) && !by_name => {
                Some("QEMU has not locked its image, as with locking=off")
            }
            _ => None,
        };
        if let Some(how) = how {
            let others = chosen.iter().filter(|other| *other != found);
            return Err(SelectError::Shared {
                name: disk.label().to_owned(),
                how,
                others: others.map(|other| other.disk.label().to_owned()).collect(),
            });
        }
        if let Some(what) = may_be_shared(image.as_ref()) {
            left.push(format!(
                "the disk {} is {what}: the copy destroys the guest's disk if the destination has \
                 the same image, and that is not always noticed",
                disk.label()
            ));
        }
        if disk.encrypted && by_name {
            left.push(format!(
                "the disk {} is encrypted, and its content is copied: it is stored unencrypted \
                 unless the destination's image is encrypted, too",
                disk.label()
            ));
        }
        // Who names it decides that.
        let must_be_encrypted = disk.encrypted && !by_name;
        copied.push(CopiedDisk {
            disk: Disk {
                device: disk.device.as_str().into(),
                drive: disk.drive.as_str().into(),
                bytes: disk.bytes,
                image: describe(&disk.place, must_be_encrypted, identity(image.as_ref())).into(),
            },
            node: disk.node.clone(),
            label: disk.label().to_owned(),
            images: disk.images.iter().map(|image| image_file(image)).collect(),
        });
    }
    left.extend(name_others(&mut copied, &others));
    Ok((copied, left))
}

fn identity(image: Option<&ImageFile>) -> &str {
    image.map_or("", |image| &image.identity)
}

/// Has the destination compare its images also with those of disks that are not copied: their names
/// follow those of a copied disk. Returns those that there is no room for.
fn name_others(copied: &mut [CopiedDisk], others: &[GuestDisk]) -> Vec<NotCopied> {
    let mut left = Vec::new();
    for GuestDisk { disk, image } in others {
        let names = identity(image.as_ref());
        let with_names = |copied: &mut CopiedDisk| {
            let image = others_marked(&copied.disk.image, names)?;
            copied.disk.image = image.into();
            Some(())
        };
        if !names.is_empty() && copied.iter_mut().find_map(with_names).is_none() {
            left.push(format!(
                "the image of the disk {}, which is not copied, is not compared with those of the \
                 destination: there are too many",
                disk.label()
            ));
        }
    }
    left
}

/// Why the guest's commands to this disk do not all go through QEMU's block layer, which copies.
fn passes_commands_on(
    client: &mut Client,
    disk: &BlockDisk,
) -> Result<Option<&'static str>, QmpError> {
    let path = disk.path();
    let kind = qom::property(client, &path, "type")?;
    Ok(match kind.as_ref().and_then(Value::as_str) {
        Some("scsi-block") => Some("its device is a scsi-block"),
        Some("scsi-generic") => Some("its device is a scsi-generic"),
        // Before QEMU 9.1.
        Some(kind) if kind.starts_with("virtio-blk") => {
            let scsi = qom::property(client, &path, "scsi")?;
            (scsi == Some(Value::Bool(true))).then_some("its device has scsi=on")
        }
        _ => None,
    })
}

/// The disks to copy; the others; and why these are not copied.
type Chosen = (Vec<GuestDisk>, Vec<GuestDisk>, Vec<NotCopied>);

/// Each disk that can be written to and is not shared; the others; and why these are not copied. An
/// error if it is not clear of one whether the destination has the same.
fn writable(disks: Vec<GuestDisk>, shared: &[String]) -> Result<Chosen, SelectError> {
    check_names(&disks, shared)?;
    let (mut left, mut reasons, mut unclear) = (Vec::new(), Vec::new(), Vec::new());
    let mut can_be_copied = Vec::new();
    let is_copied = |found: &GuestDisk| {
        let GuestDisk { disk, image } = found;
        let label = disk.label();
        let why = if found.is_among(shared) {
            return false;
        } else if disk.read_only {
            "it is read-only"
        } else if disk.is_flash() {
            "QEMU writes the content of flash memory when the guest resumes"
        } else {
            let what = match is_file(&image_file(&disk.file)) {
                true => may_be_shared(image.as_ref()),
                false => Some("not a file of this host".to_owned()),
            };
            if let Some(what) = what {
                reasons.push(format!("{label} is {what}"));
                unclear.push(label.to_owned());
            }
            can_be_copied.push(label.to_owned());
            return true;
        };
        left.push(format!("the disk {label} is not copied: {why}"));
        false
    };
    let (copied, others) = disks.into_iter().partition(is_copied);
    if !unclear.is_empty() {
        return Err(SelectError::Unclear {
            reasons,
            copied: can_be_copied,
            shared: unclear,
        });
    }
    Ok((copied, others, left))
}

impl GuestDisk {
    fn is_among(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.disk.is_called(name))
    }
}

/// Fails if one of the names is that of no disk.
fn check_names(disks: &[GuestDisk], names: &[String]) -> Result<(), SelectError> {
    let is_unknown = |name: &&String| !disks.iter().any(|found| found.disk.is_called(name));
    let Some(name) = names.iter().find(is_unknown) else {
        return Ok(());
    };
    let labels = disks.iter().map(|found| found.disk.label().to_owned());
    Err(SelectError::NoSuch {
        name: name.clone(),
        known: labels.collect(),
    })
}

/// What the image is, if the other host may use it as well.
fn may_be_shared(image: Option<&ImageFile>) -> Option<String> {
    let on = |kind: &String| format!("on a file system that several hosts can use ({kind})");
    match image {
        // It was renamed while it was open, for instance.
        None => Some("an image that is not found among QEMU's open files".to_owned()),
        Some(image) if image.is_device => Some("a device of the host".to_owned()),
        Some(image) => image.shared.as_ref().map(on),
    }
}

/// The disks that are named, and the others.
fn named(
    disks: Vec<GuestDisk>,
    selection: &DiskSelection,
) -> Result<(Vec<GuestDisk>, Vec<GuestDisk>), SelectError> {
    let DiskSelection { named, shared } = selection;
    check_names(&disks, named)?;
    check_names(&disks, shared)?;
    let (chosen, others): (Vec<_>, _) = disks.into_iter().partition(|disk| disk.is_among(named));
    let name = |found: &GuestDisk| found.disk.label().to_owned();
    if let Some(both) = chosen.iter().find(|disk| disk.is_among(shared)) {
        return Err(SelectError::Both { name: name(both) });
    }
    if let Some(found) = chosen.iter().find(|found| found.disk.read_only) {
        return Err(SelectError::ReadOnly { name: name(found) });
    }
    Ok((chosen, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(is_device: bool, shared: Option<&str>) -> ImageFile {
        ImageFile {
            identity: "host:1:2".to_owned(),
            locked: Some(true),
            is_device,
            shared: shared.map(str::to_owned),
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

    fn labels(disks: &[GuestDisk]) -> Vec<&str> {
        disks.iter().map(|found| found.disk.label()).collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn with_image(found: GuestDisk, image: Option<ImageFile>) -> GuestDisk {
        GuestDisk { image, ..found }
    }

    #[test]
    fn by_default_files_that_can_be_written_are_copied() {
        let mut flash = disk("", "/vars.fd", false);
        flash.disk.device = "/machine/system.flash1".into();
        let shared = with_image(disk("vdd", "/dev/volume", false), Some(image(true, None)));
        let disks = vec![
            disk("vda", "/disk.qcow2", false),
            disk("cd0", "/cd.iso", true),
            shared,
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
        let (copied, others, left) = writable(disks, &names(&["vdd"])).unwrap();
        assert_eq!(labels(&copied), ["vda", "vde", "vdf", "vdg"]);
        assert_eq!(others.len(), 3);
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
            let disks = || vec![disk("vda", "/disk.qcow2", false), one.clone()];
            let error = writable(disks(), &[]).unwrap_err().to_string();
            for part in [
                format!("destination has the same ones: {label} is "),
                format!("--copy-disks=vda,{label}, or"),
                format!("--shared-disks={label}"),
            ] {
                assert!(error.contains(&part), "{part:?} is not in: {error}");
            }
            let (copied, ..) = writable(disks(), &names(&[&label])).unwrap();
            assert_eq!(labels(&copied), ["vda"]);
            let by_name = DiskSelection {
                named: names(&["vda"]),
                shared: Vec::new(),
            };
            assert!(named(disks(), &by_name).is_ok(), "who names disks knows");
        }
        let mut all = unclear();
        all.push(disk("vda", "/disk.qcow2", false));
        let error = writable(all, &[]).unwrap_err().to_string();
        assert!(error.ends_with("--shared-disks=vdb,vdc,vdd,vde,vdf,vdg"));
        assert!(
            error.contains("vdb is a device of the host; vdc is"),
            "{error}"
        );
        let error = writable(unclear(), &names(&["vdx"])).unwrap_err();
        assert!(matches!(error, SelectError::NoSuch { .. }), "{error}");
    }

    #[test]
    fn the_destination_is_told_the_images_of_disks_that_are_not_copied() {
        let copied = |image: &str| CopiedDisk {
            disk: Disk {
                device: "vda".into(),
                drive: "".into(),
                bytes: 1,
                image: image.into(),
            },
            node: String::new(),
            label: "vda".into(),
            images: Vec::new(),
        };
        let other = |names: &str| GuestDisk {
            image: Some(ImageFile {
                identity: names.to_owned(),
                ..image(false, None)
            }),
            ..disk("vdb", "/b", false)
        };
        let unknown = GuestDisk {
            image: None,
            ..other("")
        };
        let mut sent = [copied("a1 a2"), copied("c")];
        let others = [other("b1 b2"), unknown, other("d")];
        assert!(name_others(&mut sent, &others).is_empty());
        let images = [&*sent[0].disk.image, &*sent[1].disk.image];
        assert_eq!(images, ["a1 a2 others: b1 b2 d", "c"]);
        // One that has no more room, then none.
        let long = "n".repeat(1 << 11);
        let mut sent = [copied("a"), copied("")];
        let others = [other(&long), other(&long), other(&long)];
        let left = name_others(&mut sent, &others);
        assert_eq!(left.len(), 1, "{left:?}");
        let images = [&*sent[0].disk.image, &*sent[1].disk.image];
        assert_eq!(
            images,
            [format!("a others: {long}"), format!("others: {long}")]
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
        let disks = || vec![disk("vda", "/a", false), disk("vdb", "/dev/b", false)];
        let selection = |copied: &[&str], shared: &[&str]| DiskSelection {
            named: names(copied),
            shared: names(shared),
        };
        let wanted = selection(&["vdb-node", "vdb"], &["vda"]);
        let (found, others) = named(disks(), &wanted).unwrap();
        assert_eq!(
            (labels(&found), labels(&others)),
            (vec!["vdb"], vec!["vda"])
        );
        for wanted in [
            selection(&["vda", "sda"], &[]),
            selection(&["vda"], &["sda"]),
        ] {
            let error = named(disks(), &wanted).unwrap_err().to_string();
            assert!(
                error.contains("no disk 'sda'") && error.ends_with("vda,vdb"),
                "{error}"
            );
        }
        let error = named(disks(), &selection(&["vda"], &["vda-node"])).unwrap_err();
        assert!(matches!(error, SelectError::Both { .. }), "{error}");
        let read_only = vec![disk("cd", "/c", true)];
        let error = named(read_only, &selection(&["cd"], &[])).unwrap_err();
        assert!(matches!(error, SelectError::ReadOnly { .. }), "{error}");
    }
}
