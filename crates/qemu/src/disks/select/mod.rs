//! Which disks are copied, and which both hosts use.

use hikkoshi_wire::{Disk, DiskPlan, Domain, GuestDisks, ImageMark, MAX_COPIED_DISKS, MAX_DISKS};
use serde_json::Value;

use super::describe::describe;
use super::image::ImageFile;
use super::left_behind::{self, LeftBehind};
use super::list::{BlockDisk, is_file, list};
use super::marks::{self, Marks, Owner};
use super::select_error::SelectError;
use crate::disks::image_file;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// What is to be done with the guest's disks. A disk is named by its device's id, the name of the
/// `-drive`, or the block node's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskSelection {
    /// These are copied. `None`: none. Empty: each disk that the guest can write to; it must be a
    /// file of this host only.
    pub copied: Option<Vec<String>>,
    /// These are not copied, and both hosts use them. `None`: that must be found out of each disk.
    /// Empty: each disk that is not copied.
    pub shared: Option<Vec<String>>,
    /// Whether disks are copied without the internal snapshots of their images, and without the
    /// snapshots that the daemon of the guest's domain knows of.
    pub drop_snapshots: bool,
    /// Whether a disk is copied without its dirty bitmaps.
    pub drop_bitmaps: bool,
}

/// The guest's disks, and what is to be done with them.
#[derive(Debug, Default)]
pub struct ChosenDisks {
    disks: Vec<Disk>,
    /// Their QEMU. `None`: its process is not visible from here, and so no image.
    owner: Option<Owner>,
    /// The file of each image, if it was found.
    images: Vec<Option<ImageFile>>,
    /// Those that are copied.
    pub(crate) copied: Vec<CopiedDisk>,
    /// For people: why disks are not copied, and what to mind.
    pub(crate) notices: Vec<String>,
}

/// A guest's disks, as a destination is told, which compares them with its own.
#[derive(Debug, Default)]
pub struct OfferedDisks {
    /// The disks.
    pub disks: GuestDisks,
    /// The marks on their images, until they are compared.
    pub(crate) marks: Option<Marks>,
}

impl ChosenDisks {
    /// Marks the images of the disks that the guest writes to, by which the destination can see
    /// whether it has the same ones. An image that cannot be marked is known only by its names.
    ///
    /// # Errors
    ///
    /// [`SelectError::Random`].
    pub fn offer(&self) -> Result<OfferedDisks, SelectError> {
        let mut offered = OfferedDisks {
            disks: GuestDisks {
                mark: [0; 16],
                disks: self.disks.clone(),
            },
            marks: None,
        };
        let Some(owner) = self.owner else {
            return Ok(offered);
        };
        let mut marks = Marks::new(owner).map_err(SelectError::Random)?;
        for ((number, disk), image) in (0..).zip(&mut offered.disks.disks).zip(&self.images) {
            // Also files of this host: another one can have the file by NFS from here, or another
            // file with the same numbers, if both hosts are clones that were running.
            if let (false, Some(image)) = (disk.read_only, image) {
                disk.image.mark = marks.set(number, image);
            }
        }
        let mut disks = offered.disks.disks.iter();
        if disks.any(|disk| disk.image.mark != ImageMark::Unknown) {
            offered.disks.mark = marks.number;
            offered.marks = Some(marks);
        }
        Ok(offered)
    }

    /// Takes its snapshots from the description of a domain whose disks are copied: their content
    /// is in the source's images only. Adds a notice if it does.
    ///
    /// # Errors
    ///
    /// [`SelectError::LeftBehind`], unless that is allowed.
    pub(crate) fn drop_snapshots(
        &mut self,
        domain: &mut Domain,
        selection: &DiskSelection,
    ) -> Result<(), SelectError> {
        if self.copied.is_empty() || domain.snapshots.is_empty() {
            return Ok(());
        }
        let number = domain.snapshots.len();
        let what = format!("the snapshots of the domain {} ({number})", domain.name);
        if !selection.drop_snapshots {
            return Err(SelectError::LeftBehind {
                what,
                options: "--drop-snapshots".to_owned(),
            });
        }
        domain.snapshots.clear();
        self.notices.push(format!(
            "{what} are not described to the destination's daemon: their content is not copied"
        ));
        Ok(())
    }

    /// Removes the marks that a killed engine has left. Only for the engine that has exclusive
    /// access to the guest.
    pub(crate) fn remove_left_marks(&self) {
        let Some(owner) = self.owner else {
            return;
        };
        for image in self.images.iter().flatten() {
            marks::remove_left(owner, image);
        }
    }
}

/// A disk that is copied.
#[derive(Debug, Clone)]
pub(crate) struct CopiedDisk {
    /// Its block node.
    pub(crate) node: String,
    /// What it is called in messages.
    pub(crate) label: String,
    /// Its size.
    pub(crate) bytes: u64,
    /// The files of its image and of the backing images below.
    pub(crate) images: Vec<String>,
    /// What the copy does not have.
    pub(crate) left_behind: LeftBehind,
}

/// A disk of the guest, and the file of its image, if that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GuestDisk {
    disk: BlockDisk,
    image: Option<ImageFile>,
}

/// Finds the guest's disks, and what is to be done with each.
pub(crate) fn choose(
    client: &mut Client,
    selection: &DiskSelection,
) -> Result<ChosenDisks, SelectError> {
    let mut disks = Vec::new();
    for disk in list(client)? {
        let image = ImageFile::of_disk(client, &disk.file)?;
        disks.push(GuestDisk { disk, image });
    }
    if disks.len() > MAX_DISKS {
        return Err(SelectError::TooMany { found: disks.len() });
    }
    let nodes = match disks.is_empty() {
        true => Value::Null,
        false => left_behind::nodes(client)?,
    };
    let left_behind = |found: &GuestDisk| LeftBehind::of_disk(&found.disk, &nodes);
    let (plans, mut notices) = plan(&disks, selection)?;
    let mut chosen = ChosenDisks {
        owner: client.peer().and_then(Owner::of_process),
        ..ChosenDisks::default()
    };
    let by_name = selection
        .copied
        .as_ref()
        .is_some_and(|names| !names.is_empty());
    for (found, plan) in disks.iter().zip(&plans) {
        let GuestDisk { disk, image } = found;
        if plan.is_copied() {
            check_copy(client, found, &disks, by_name)?;
            notices.extend(copy_notices(found, by_name));
            chosen.copied.push(CopiedDisk {
                node: disk.node.clone(),
                label: disk.label().to_owned(),
                bytes: disk.bytes,
                images: disk.images.iter().map(|image| image_file(image)).collect(),
                left_behind: left_behind(found),
            });
        } else {
            let LeftBehind { in_memory, .. } = left_behind(found);
            if !in_memory.is_empty() {
                notices.push(format!(
                    "{} are only in QEMU's memory, and are gone at the destination",
                    left_behind::list("dirty bitmaps", &in_memory, disk.label())
                ));
            }
        }
        let below = ImageFile::below(client, disk)?;
        let described = describe(disk, image.as_ref(), &below, *plan);
        chosen.disks.push(described);
    }
    notices.extend(check_left_behind(&chosen.copied, selection)?);
    chosen.notices = notices;
    chosen.images = disks.into_iter().map(|found| found.image).collect();
    Ok(chosen)
}

/// Fails if the copy of a disk would lose something besides its content, and that was not allowed.
fn check_left_behind(
    copied: &[CopiedDisk],
    selection: &DiskSelection,
) -> Result<Vec<String>, SelectError> {
    let (mut refused, mut options, mut notices) = (Vec::new(), Vec::new(), Vec::new());
    for disk in copied {
        let LeftBehind {
            snapshots, bitmaps, ..
        } = &disk.left_behind;
        for (what, names, is_allowed, option) in [
            (
                "internal snapshots",
                snapshots,
                selection.drop_snapshots,
                "--drop-snapshots",
            ),
            (
                "dirty bitmaps",
                bitmaps,
                selection.drop_bitmaps,
                "--drop-bitmaps",
            ),
        ] {
            if names.is_empty() {
                continue;
            }
            let text = left_behind::list(what, names, &disk.label);
            if is_allowed {
                notices.push(format!("{text} are not copied"));
                continue;
            }
            refused.push(text);
            if !options.contains(&option) {
                options.push(option);
            }
        }
    }
    match refused.is_empty() {
        true => Ok(notices),
        false => Err(SelectError::LeftBehind {
            what: refused.join("; "),
            options: options.join(" and "),
        }),
    }
}

/// Fails if the copy of a disk would not have everything that is written to it.
fn check_copy(
    client: &mut Client,
    found: &GuestDisk,
    all: &[GuestDisk],
    by_name: bool,
) -> Result<(), SelectError> {
    let GuestDisk { disk, image } = found;
    if let Some(how) = passes_commands_on(client, disk)? {
        let name = disk.label().to_owned();
        return Err(SelectError::Passthrough { name, how });
    }
    let shared_rw = qom::property(client, &disk.path(), "share-rw")?;
    let how = match image {
        _ if shared_rw == Some(Value::Bool(true)) => "its device has share-rw=on",
        // Who names it knows it.
        Some(image) if image.locked == Some(false) && !by_name => {
            "QEMU has not locked its image, as with locking=off"
        }
        _ => return Ok(()),
    };
    let others = all
        .iter()
        .filter(|other| *other != found && other.is_writable());
    Err(SelectError::Shared {
        name: disk.label().to_owned(),
        how,
        others: others.map(|other| other.disk.label().to_owned()).collect(),
    })
}

/// What to mind when this disk is copied; for people.
fn copy_notices(found: &GuestDisk, by_name: bool) -> Vec<String> {
    let GuestDisk { disk, image } = found;
    let mut notices = Vec::new();
    if let Some(what) = may_be_shared(image.as_ref()) {
        notices.push(format!(
            "the disk {} is {what}: the copy destroys the guest's disk if the destination has the \
             same image, and that is not always noticed",
            disk.label()
        ));
    }
    if disk.encrypted && by_name {
        notices.push(format!(
            "the disk {} is encrypted, and its content is copied: it is stored unencrypted unless \
             the destination's image is encrypted, too",
            disk.label()
        ));
    }
    notices
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

/// What is to be done with each of the disks; and why some are not copied.
fn plan(
    disks: &[GuestDisk],
    selection: &DiskSelection,
) -> Result<(Vec<DiskPlan>, Vec<String>), SelectError> {
    let shared = selection.shared.as_deref();
    check_names(disks, shared.unwrap_or_default())?;
    let (copied, notices) = match selection.copied.as_deref() {
        None => (vec![false; disks.len()], Vec::new()),
        Some([]) => writable(disks, shared)?,
        Some(named) => (self::named(disks, named, shared)?, Vec::new()),
    };
    let number = copied.iter().filter(|is_copied| **is_copied).count();
    match number {
        0 if selection.copied.is_some() => return Err(SelectError::None(notices)),
        0..=MAX_COPIED_DISKS => {}
        found => return Err(SelectError::TooManyCopied { found }),
    }
    let by_name = selection
        .copied
        .as_ref()
        .is_some_and(|names| !names.is_empty());
    let plan = |(found, is_copied): (&GuestDisk, bool)| match is_copied {
        true => DiskPlan::Copied {
            // Who names it decides that.
            encrypted: found.disk.encrypted && !by_name,
        },
        false if found.is_said_to_be_shared(shared) => DiskPlan::Shared,
        false => DiskPlan::Same,
    };
    Ok((disks.iter().zip(copied).map(plan).collect(), notices))
}

/// Whether each disk is one that can be written to and is not shared; and why others are not
/// copied. An error if it is not clear of one whether the destination has the same.
fn writable(
    disks: &[GuestDisk],
    shared: Option<&[String]>,
) -> Result<(Vec<bool>, Vec<String>), SelectError> {
    let (mut left, mut reasons, mut unclear) = (Vec::new(), Vec::new(), Vec::new());
    let mut can_be_copied = Vec::new();
    let is_copied = |found: &GuestDisk| {
        let GuestDisk { disk, image } = found;
        let label = disk.label();
        let why = if found.is_among(shared.unwrap_or_default()) {
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
                if found.is_said_to_be_shared(shared) {
                    return false;
                }
                reasons.push(format!("{label} is {what}"));
                unclear.push(label.to_owned());
            }
            can_be_copied.push(label.to_owned());
            return true;
        };
        left.push(format!("the disk {label} is not copied: {why}"));
        false
    };
    let copied = disks.iter().map(is_copied).collect();
    if !unclear.is_empty() {
        return Err(SelectError::Unclear {
            reasons,
            copied: can_be_copied,
            shared: unclear,
        });
    }
    Ok((copied, left))
}

impl GuestDisk {
    fn is_among(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.disk.is_called(name))
    }

    /// Whether the owner says that both hosts use it, unless it is copied.
    fn is_said_to_be_shared(&self, shared: Option<&[String]>) -> bool {
        shared.is_some_and(|names| names.is_empty() || self.is_among(names))
    }

    fn is_writable(&self) -> bool {
        !self.disk.read_only && !self.disk.is_flash()
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
    match image {
        // It was renamed while it was open, for instance.
        None => Some("an image that is not found among QEMU's open files".to_owned()),
        Some(image) if image.is_device => Some("a device of the host".to_owned()),
        Some(image) => image.is_shared.then(|| {
            let kind = &image.file_system;
            format!("on a file system that several hosts can use ({kind})")
        }),
    }
}

/// Whether each disk is named.
fn named(
    disks: &[GuestDisk],
    named: &[String],
    shared: Option<&[String]>,
) -> Result<Vec<bool>, SelectError> {
    check_names(disks, named)?;
    let chosen = || disks.iter().filter(|found| found.is_among(named));
    let name = |found: &GuestDisk| found.disk.label().to_owned();
    if let Some(both) = chosen().find(|found| found.is_among(shared.unwrap_or_default())) {
        return Err(SelectError::Both { name: name(both) });
    }
    if let Some(found) = chosen().find(|found| found.disk.read_only) {
        return Err(SelectError::ReadOnly { name: name(found) });
    }
    Ok(disks.iter().map(|found| found.is_among(named)).collect())
}

#[cfg(test)]
mod tests;
