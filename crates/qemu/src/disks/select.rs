//! Which disks are copied.

use hikkoshi_wire::{Disk, MAX_DISKS};
use serde_json::Value;
use thiserror::Error;

use super::image::ImageFile;
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

/// The disks to copy; and for people, why others are not, and what to mind.
pub(crate) fn choose(
    client: &mut Client,
    selection: &DiskSelection,
) -> Result<(Vec<CopiedDisk>, Vec<NotCopied>), SelectError> {
    let disks = list(client)?;
    let (chosen, mut left) = match selection {
        DiskSelection::All => writable(disks, client.peer()),
        DiskSelection::Named(names) => (named(disks, names)?, Vec::new()),
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
    for disk in &chosen {
        let file = client
            .peer()
            .and_then(|pid| ImageFile::of(pid, &image_file(&disk.file)));
        let shared_rw = qom::property(client, &disk.device, "share-rw")?;
        let how = match &file {
            _ if shared_rw == Some(Value::Bool(true)) => Some("its device has share-rw=on"),
            // Who names it knows it.
            Some(file) if file.locked == Some(false) && !by_name => {
                Some("QEMU has not locked its image, as with locking=off")
            }
            _ => None,
        };
        if let Some(how) = how {
            let others = chosen.iter().filter(|other| *other != disk);
            return Err(SelectError::Shared {
                name: disk.label().to_owned(),
                how,
                others: others.map(|other| other.label().to_owned()).collect(),
            });
        }
        if let Some(what) = file.as_ref().and_then(may_be_shared) {
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
                image: file.map_or_else(String::new, |file| file.identity).into(),
            },
            node: disk.node.clone(),
            label: disk.label().to_owned(),
        });
    }
    Ok((copied, left))
}

/// Each disk that is a file of this host only, and can be written to.
fn writable(disks: Vec<BlockDisk>, pid: Option<u32>) -> (Vec<BlockDisk>, Vec<NotCopied>) {
    let mut left = Vec::new();
    let is_copied = |disk: &BlockDisk| {
        let file = image_file(&disk.file);
        let why = if disk.read_only {
            "it is read-only".to_owned()
        } else if disk.is_flash() {
            "QEMU writes the content of flash memory when the guest resumes".to_owned()
        } else if file.starts_with("/dev/fdset/") {
            return true;
        } else if !is_local(&file) {
            "it is not a file of this host".to_owned()
        } else {
            let open = pid.and_then(|pid| ImageFile::of(pid, &file));
            let by_name = || file.starts_with("/dev/").then(|| DEVICE.to_owned());
            match open.map_or_else(by_name, |open| may_be_shared(&open)) {
                Some(what) => format!("it is {what}, which both hosts may use; name it to copy it"),
                None => return true,
            }
        };
        left.push(format!("the disk {} is not copied: {why}", disk.label()));
        false
    };
    let copied = disks.into_iter().filter(is_copied);
    let copied = Vec::from_iter(copied);
    (copied, left)
}

const DEVICE: &str = "a device of the host";

/// What the image is, if the other host may use it as well.
fn may_be_shared(image: &ImageFile) -> Option<String> {
    let on = |kind: &String| format!("on a file system that several hosts can use ({kind})");
    match image.is_device {
        true => Some(DEVICE.to_owned()),
        false => image.shared.as_ref().map(on),
    }
}

/// The disks with these names.
fn named(disks: Vec<BlockDisk>, names: &[String]) -> Result<Vec<BlockDisk>, SelectError> {
    for name in names {
        let Some(disk) = disks.iter().find(|disk| disk.is_called(name)) else {
            return Err(SelectError::NoSuch {
                name: name.clone(),
                known: disks.iter().map(|disk| disk.label().to_owned()).collect(),
            });
        };
        if disk.read_only {
            return Err(SelectError::ReadOnly { name: name.clone() });
        }
    }
    let is_named = |disk: &BlockDisk| names.iter().any(|name| disk.is_called(name));
    Ok(disks.into_iter().filter(is_named).collect())
}

/// Whether this is the name of a file, and not of a network disk, or options.
fn is_local(file: &str) -> bool {
    file.starts_with('/') || !file.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(id: &str, file: &str, read_only: bool) -> BlockDisk {
        BlockDisk {
            device: format!("/machine/peripheral/{id}"),
            node: format!("{id}-node"),
            bytes: 1 << 20,
            file: file.to_owned(),
            read_only,
            ..BlockDisk::default()
        }
    }

    fn labels(disks: &[BlockDisk]) -> Vec<&str> {
        disks.iter().map(BlockDisk::label).collect()
    }

    #[test]
    fn by_default_files_that_can_be_written_are_copied() {
        let flash = BlockDisk {
            device: "/machine/system.flash1".into(),
            ..disk("", "/vars.fd", false)
        };
        let rbd = r#"json:{"driver":"raw","file":{"pool":"p","image":"i","driver":"rbd"}}"#;
        let disks = vec![
            disk("vda", "/disk.qcow2", false),
            disk("cd0", "/cd.iso", true),
            disk("vdb", "nbd://host/disk", false),
            disk("vdc", rbd, false),
            disk("vdd", "/dev/no-such-volume", false),
            disk("vde", "relative.raw", false),
            disk(
                "vdf",
                r#"json:{"driver":"raw","file":{"driver":"file","filename":"/f.raw"}}"#,
                false,
            ),
            flash,
        ];
        let (copied, left) = writable(disks, None);
        assert_eq!(labels(&copied), ["vda", "vde", "vdf"]);
        assert_eq!(left.len(), 5, "{left:?}");
        assert_eq!(left[0], "the disk cd0 is not copied: it is read-only");
        assert!(left[3].contains("both hosts may use"), "{left:?}");
    }

    #[test]
    fn what_other_hosts_may_use_is_said() {
        let image = |is_device, shared: Option<&str>| ImageFile {
            identity: String::new(),
            locked: Some(true),
            is_device,
            shared: shared.map(str::to_owned),
        };
        assert_eq!(may_be_shared(&image(false, None)), None);
        assert_eq!(
            may_be_shared(&image(false, Some("nfs4"))).as_deref(),
            Some("on a file system that several hosts can use (nfs4)")
        );
        assert_eq!(
            may_be_shared(&image(true, None)).as_deref(),
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
        let found = named(disks(), &names(&["vdb-node", "vdb"])).unwrap();
        assert_eq!(labels(&found), ["vdb"]);
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
