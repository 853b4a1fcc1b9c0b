//! Which disks are copied.

use hikkoshi_wire::{Disk, MAX_DISKS};
use serde_json::Value;
use thiserror::Error;

use super::image::{ImageFile, others_marked};
use super::list::{BlockDisk, list};
use crate::command_line::image_file;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// Which disks are copied to the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSelection {
    /// Each disk that the guest can write to, and that is a file of this host only.
    All,
    /// These, by the device's id, the name of the `-drive`, or the block node's.
    Named(Vec<String>),
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
}

/// Why a disk is not copied, for people; or that there is none.
pub(crate) type NotCopied = String;

/// Disks cannot be chosen, or not be copied.
#[derive(Debug, Error)]
pub enum SelectError {
    /// A QMP command failed.
    #[error("choosing the disks to copy")]
    Qmp(#[from] QmpError),
    /// There is no such disk.
    #[error(
        "choosing the disks to copy: the guest has no disk '{name}' with a medium; its disks are: \
         {}",
        or_none(known)
    )]
    NoSuch {
        /// The name that was given.
        name: String,
        /// The names of its disks.
        known: Vec<String>,
    },
    /// It cannot be written to.
    #[error(
        "choosing the disks to copy: the disk {name} is read-only: give the destination a copy of \
         its image, and leave it out of --copy-disks"
    )]
    ReadOnly {
        /// The disk.
        name: String,
    },
    /// Several machines may use it.
    #[error(
        "choosing the disks to copy: the disk {name} is shared ({how}): what other machines write \
         to it would be lost. Name the other disks: --copy-disks={}",
        or_none(others)
    )]
    Shared {
        /// The disk.
        name: String,
        /// How that is known.
        how: &'static str,
        /// The others.
        others: Vec<String>,
    },
    /// There are too many.
    #[error(
        "choosing the disks to copy: the guest has {found}, and at most {MAX_DISKS} are copied"
    )]
    TooMany {
        /// How many.
        found: usize,
    },
    /// There is none.
    #[error(
        "choosing the disks to copy: the guest has no disk that it can write to and that is a file \
         of this host; move it without --copy-disks, or name a disk{}", because(.0)
    )]
    None(Vec<String>),
    /// The monitor belongs to another program.
    #[error(
        "copying the disks of a libvirt domain: libvirt cannot serve the destination's disks while \
         it creates the domain, and does not know of block jobs of other programs. Use 'virsh \
         migrate --live --copy-storage-all', or copy the disks to storage that both hosts reach \
         ('virsh blockcopy DOMAIN DISK --dest FILE --pivot --wait') and move the domain then"
    )]
    Domain,
}

fn or_none(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(","),
    }
}

fn because(reasons: &[String]) -> String {
    match reasons {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    }
}

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
    let (chosen, others, mut left) = match selection {
        DiskSelection::All => writable(disks),
        DiskSelection::Named(names) => {
            let (chosen, others) = named(disks, names)?;
            (chosen, others, Vec::new())
        }
    };
    if chosen.is_empty() {
        return Err(SelectError::None(left));
    }
    if chosen.len() > MAX_DISKS {
        return Err(SelectError::TooMany {
            found: chosen.len(),
        });
    }
    let by_name = matches!(selection, DiskSelection::Named(_));
    let mut copied = Vec::with_capacity(chosen.len());
    for found in &chosen {
        let GuestDisk { disk, image } = found;
        let shared_rw = qom::property(client, &disk.device, "share-rw")?;
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
        copied.push(CopiedDisk {
            disk: Disk {
                device: disk.device.as_str().into(),
                drive: disk.drive.as_str().into(),
                bytes: disk.bytes,
                image: identity(image.as_ref()).into(),
            },
            node: disk.node.clone(),
            label: disk.label().to_owned(),
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

/// Each disk that is a file of this host only, and can be written to; the others; and why they are.
fn writable(disks: Vec<GuestDisk>) -> (Vec<GuestDisk>, Vec<GuestDisk>, Vec<NotCopied>) {
    let mut left = Vec::new();
    let is_copied = |GuestDisk { disk, image }: &GuestDisk| {
        let file = image_file(&disk.file);
        let why = if disk.read_only {
            "it is read-only".to_owned()
        } else if disk.is_flash() {
            "QEMU writes the content of flash memory when the guest resumes".to_owned()
        } else if !is_local(&file) {
            "it is not a file of this host".to_owned()
        } else {
            match may_be_shared(image.as_ref()) {
                Some(what) => format!("it is {what}, which both hosts may use; name it to copy it"),
                None => return true,
            }
        };
        left.push(format!("the disk {} is not copied: {why}", disk.label()));
        false
    };
    let (copied, others) = disks.into_iter().partition(is_copied);
    (copied, others, left)
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

/// The disks with these names, and the others.
fn named(
    disks: Vec<GuestDisk>,
    names: &[String],
) -> Result<(Vec<GuestDisk>, Vec<GuestDisk>), SelectError> {
    for name in names {
        let Some(found) = disks.iter().find(|found| found.disk.is_called(name)) else {
            let labels = disks.iter().map(|found| found.disk.label().to_owned());
            return Err(SelectError::NoSuch {
                name: name.clone(),
                known: labels.collect(),
            });
        };
        if found.disk.read_only {
            return Err(SelectError::ReadOnly { name: name.clone() });
        }
    }
    let is_named = |found: &GuestDisk| names.iter().any(|name| found.disk.is_called(name));
    Ok(disks.into_iter().partition(is_named))
}

/// Whether this is the name of a file, and not of a network disk, or options.
fn is_local(file: &str) -> bool {
    file.starts_with('/') || !file.contains(':')
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

    #[test]
    fn by_default_files_that_can_be_written_are_copied() {
        let mut flash = disk("", "/vars.fd", false);
        flash.disk.device = "/machine/system.flash1".into();
        let with_image = |found: GuestDisk, image| GuestDisk { image, ..found };
        let rbd = r#"json:{"driver":"raw","file":{"pool":"p","image":"i","driver":"rbd"}}"#;
        let disks = vec![
            disk("vda", "/disk.qcow2", false),
            disk("cd0", "/cd.iso", true),
            disk("vdb", "nbd://host/disk", false),
            disk("vdc", rbd, false),
            with_image(disk("vdd", "/dev/volume", false), Some(image(true, None))),
            disk("vde", "relative.raw", false),
            disk(
                "vdf",
                r#"json:{"driver":"raw","file":{"driver":"file","filename":"/f.raw"}}"#,
                false,
            ),
            flash,
            // A file that was passed to QEMU, and one that it does not have open by this name.
            disk("vdg", "/dev/fdset/3", false),
            with_image(disk("vdh", "/renamed.raw", false), None),
            with_image(disk("vdi", "/dev/fdset/4", false), None),
        ];
        let (copied, others, left) = writable(disks);
        assert_eq!(labels(&copied), ["vda", "vde", "vdf", "vdg"]);
        assert_eq!(left.len(), 7, "{left:?}");
        assert_eq!(others.len(), left.len());
        assert_eq!(left[0], "the disk cd0 is not copied: it is read-only");
        assert!(left[3].contains("both hosts may use"), "{left:?}");
        for left in &left[5..] {
            assert!(
                left.contains("not found among QEMU's open files"),
                "{left:?}"
            );
        }
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
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        let (found, others) = named(disks(), &names(&["vdb-node", "vdb"])).unwrap();
        assert_eq!(
            (labels(&found), labels(&others)),
            (vec!["vdb"], vec!["vda"])
        );
        let error = named(disks(), &names(&["vda", "sda"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no disk 'sda'") && error.ends_with("vda,vdb"),
            "{error}"
        );
        let read_only = vec![disk("cd", "/c", true)];
        let error = named(read_only, &names(&["cd"])).unwrap_err();
        assert!(matches!(error, SelectError::ReadOnly { .. }), "{error}");
    }
}
