//! Whether the source's disks are those here, or fit, if they are copied: without any I/O.
//!
//! If the guest continues on another disk than before, it reads what is not its own, and what it
//! has written is lost. So **sameness must be known**: the guest is refused if it is not, unless
//! its owner has said that both hosts use the disk. What the guest only reads is a warning.

use hikkoshi_wire::{Backing, Disk, DiskImage, DiskKind, DiskPlan, ImageMark};

use crate::destination::fitting_disks::{NoCounterpart, counterpart, label};
use crate::disks::is_of_one_host;

/// The most disks of which one reason shows the images. The names of all must fit after that.
const MAX_SHOWN: usize = 8;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Why the guest is refused; for people.
    pub(super) refused: Vec<String>,
    /// What differs although it is not; for people.
    pub(super) warnings: Vec<String>,
    /// The numbers of the disks here that the source's are copied to, in their order.
    pub(super) targets: Vec<usize>,
}

/// Compares the source's disks with those here. `can_copy`: whether disks could be copied here.
pub(super) fn compare(theirs: &[Disk], ours: &[Disk], can_copy: bool) -> Compared {
    let mut compared = Compared::default();
    let mut unknown = Vec::new();
    for disk in theirs {
        match disk.plan {
            DiskPlan::Copied { encrypted } => compared.copy(disk, encrypted, theirs, ours),
            _ if disk.kind == DiskKind::Flash => compared.flash(disk, ours),
            _ if disk.read_only => compared.read_only(disk, ours),
            DiskPlan::Same | DiskPlan::Shared => {
                if let Some(images) = compared.writable(disk, ours) {
                    unknown.push((disk, images));
                }
            }
        }
    }
    if !unknown.is_empty() {
        let copied = theirs.iter().filter(|disk| disk.plan.is_copied());
        compared.refused.push(not_known(&unknown, copied, can_copy));
    }
    compared
}

impl Compared {
    /// A disk that is copied.
    fn copy(&mut self, disk: &Disk, encrypted: bool, theirs: &[Disk], ours: &[Disk]) {
        let found = match counterpart(disk, ours) {
            Ok(found) => found,
            Err(NoCounterpart::Missing) => {
                self.refused.push(format!(
                    "QEMU at the destination has no disk with a medium for the source's {}: give \
                     it an image of that size",
                    at_place(disk)
                ));
                return;
            }
            Err(NoCounterpart::Elsewhere(named)) => {
                self.refused.push(elsewhere(disk, named));
                return;
            }
        };
        let our = &ours[found];
        let (name, file) = (label(our), &our.image.file);
        let mut others = self.targets.iter().map(|other| &ours[*other]);
        if self.targets.contains(&found) {
            self.refused.push(format!(
                "two disks of the source would be copied to the disk {name}: give each disk's \
                 device the same id at both sides"
            ));
        } else if let Some(other) = others.find(|other| other.image.may_be_same(&our.image)) {
            self.refused.push(format!(
                "the disks {} and {name} have the same image at the destination ({file}): give \
                 each disk one of its own",
                label(other)
            ));
        }
        let reason = if our.image.may_be_same(&disk.image) {
            format!(
                "the disk {name} has the same image at both sides ({file}): move the guest without \
                 --copy-disks, or name the other disks: --copy-disks=DISK,…"
            )
        } else if let Some(other) = theirs.iter().find(|other| is_below(&our.image, other)) {
            format!(
                "the disk {name} has a backing file of the source's disk {} at the destination \
                 ({file}): the copy would destroy it. Give it an image of its own",
                label(other)
            )
        } else if theirs
            .iter()
            .any(|other| our.image.may_be_same(&other.image))
        {
            format!(
                "the disk {name} has the image of another disk of the source at the destination \
                 ({file}): the copy would destroy it. Give it an image of its own"
            )
        } else if our.read_only {
            is_read_only(name)
        } else if encrypted && !our.image.encrypted {
            format!(
                "the disk {name} is encrypted at the source, and its image at the destination is \
                 not ({file}): give it an encrypted one, or name the disks to copy: \
                 --copy-disks={name},…"
            )
        } else if let Some(sizes) = other_size(disk, our) {
            format!("{sizes}: give the destination an image of the same size")
        } else {
            self.targets.push(found);
            return;
        };
        self.targets.push(found);
        self.refused.push(reason);
    }

    /// A disk that the guest writes to and that is not copied. Returns what is not known to be the
    /// same, at both sides; for people.
    fn writable(&mut self, disk: &Disk, ours: &[Disk]) -> Option<String> {
        let our = match counterpart(disk, ours) {
            Ok(found) => &ours[found],
            Err(NoCounterpart::Missing) => {
                self.refused.push(format!(
                    "QEMU at the destination has no disk with a medium for the source's {}{}: give \
                     it the same disk",
                    at_place(disk),
                    without_id(ours)
                ));
                return None;
            }
            Err(NoCounterpart::Elsewhere(named)) => {
                self.refused.push(elsewhere(disk, named));
                return None;
            }
        };
        let is_same = disk.image.is_same(&our.image);
        let is_said = disk.plan == DiskPlan::Shared;
        if let Some(sizes) = other_size(disk, our) {
            self.refused.push(same_disk(&sizes, is_same));
        } else if our.read_only {
            self.refused.push(is_read_only(label(disk)));
        } else if (is_same || is_said) && differ(&disk.image.format, &our.image.format) {
            self.refused.push(format!(
                "the image {} of the disk {} is opened as {} at the source, and as {} at the \
                 destination: give the destination's QEMU the same format",
                our.image.file,
                label(disk),
                disk.image.format,
                our.image.format
            ));
        } else if is_said {
            if are_two(&disk.image, &our.image) {
                self.warnings.push(format!(
                    "both hosts are said to use the disk {} (--shared-disks), and they have \
                     different files: {}. If the one at the destination is not a copy, the guest's \
                     data is lost",
                    label(disk),
                    at_both(&on(&disk.image), &on(&our.image))
                ));
            }
            self.unknown_size(disk, our);
            let is_same = |(theirs, ours): (&DiskImage, &DiskImage)| theirs.is_same(ours);
            if let Some(files) = self.other_backing(disk, our, is_same) {
                self.warnings.push(format!(
                    "both hosts are said to use the disk {} (--shared-disks), and it is not known \
                     whether they have the same {files}. If not, the guest's data is lost",
                    label(disk)
                ));
            }
        } else if !is_same {
            return Some(at_both(&on(&disk.image), &on(&our.image)));
        } else if let Some(side) = unknown_backing(disk, our) {
            return Some(format!("backing files: not known at the {side}"));
        } else {
            return self.other_backing(disk, our, |(theirs, ours)| theirs.is_same(ours));
        }
        None
    }

    /// The backing files at both sides that are not equal; for people.
    fn other_backing(
        &mut self,
        theirs: &Disk,
        ours: &Disk,
        are_equal: impl Fn((&DiskImage, &DiskImage)) -> bool,
    ) -> Option<String> {
        if let Some(side) = unknown_backing(theirs, ours) {
            self.warnings.push(format!(
                "the backing files of the disk {} are not known at the {side}, and are not compared",
                label(theirs)
            ));
            return None;
        }
        let (Backing::Known(there), Backing::Known(here)) = (&theirs.backing, &ours.backing) else {
            return None;
        };
        if there.len() != here.len() {
            let both = at_both(&all(there), &all(here));
            return Some(format!("backing files: {both}"));
        }
        let mut pairs = there.iter().zip(here);
        let (there, here) = pairs.find(|&pair| !are_equal(pair))?;
        Some(format!("backing file: {}", at_both(&on(there), &on(here))))
    }

    /// Of one image, both sides have the same size.
    fn unknown_size(&mut self, theirs: &Disk, ours: &Disk) {
        if ours.bytes.is_none() && !theirs.image.is_same(&ours.image) {
            self.warnings.push(format!(
                "the size of the disk {} is not known at the destination ({}), and is not compared \
                 with that at the source",
                at_place(theirs),
                ours.image.file
            ));
        }
    }

    /// A disk or medium that the guest only reads.
    fn read_only(&mut self, disk: &Disk, ours: &[Disk]) {
        let what = match disk.kind {
            DiskKind::Removable => "medium",
            DiskKind::Fixed | DiskKind::Flash => "read-only disk",
        };
        let (name, file) = (label(disk), &disk.image.file);
        let Ok(found) = counterpart(disk, ours) else {
            self.warnings.push(format!(
                "the {what} of {name} ({file}) is missing at the destination{}: the guest finds none \
                 there",
                without_id(ours)
            ));
            return;
        };
        let our = &ours[found];
        let is_same = disk.image.is_same(&our.image);
        let sizes = other_size(disk, our);
        if let (DiskKind::Fixed, Some(sizes)) = (disk.kind, &sizes) {
            // The guest has read it, and does not expect another one.
            self.refused.push(same_disk(sizes, is_same));
            return;
        }
        if disk.kind == DiskKind::Fixed {
            self.unknown_size(disk, our);
        }
        let differs = match other_content(&disk.image, &our.image) {
            _ if sizes.is_some() => Some("another size"),
            _ if disk.plan == DiskPlan::Shared => None,
            differs => differs,
        };
        if let Some(differs) = differs {
            self.warnings.push(format!(
                "the {what} of {name} ({file}) is another one at the destination: {} has {differs}",
                our.image.file
            ));
            return;
        }
        let is_equal =
            |(theirs, ours): (&DiskImage, &DiskImage)| other_content(theirs, ours).is_none();
        if let Some(files) = self.other_backing(disk, our, is_equal) {
            self.warnings.push(format!(
                "the {what} of {name} ({file}) has another one at the destination below it, \
                 {files}"
            ));
        }
    }

    /// Flash memory, whose content moves with the guest's memory.
    fn flash(&mut self, disk: &Disk, ours: &[Disk]) {
        // If it is missing, the RAM block is, too, which is compared elsewhere.
        let Ok(found) = counterpart(disk, ours) else {
            return;
        };
        if let Some(sizes) = other_size(disk, &ours[found]) {
            self.refused.push(format!(
                "{sizes}: give the destination flash memory of the same size"
            ));
        }
    }
}

/// The side at which the images below a disk are not known, so that they cannot be compared.
fn unknown_backing(theirs: &Disk, ours: &Disk) -> Option<&'static str> {
    match (&theirs.backing, &ours.backing) {
        (Backing::Known(_), Backing::Known(_)) => None,
        // Its image says so, which is the same or is not compared.
        (Backing::Known(there), Backing::Unknown) if there.is_empty() => None,
        (Backing::Unknown, _) => Some("source"),
        (_, Backing::Unknown) => Some("destination"),
    }
}

/// What a disk may be that was not found among these: of a machine whose monitor is not available,
/// only those with an id are recognised.
fn without_id(ours: &[Disk]) -> &'static str {
    let has_none = |our: &Disk| our.device.is_empty() && our.drive.is_empty();
    match ours.iter().any(has_none) {
        true => " (a disk there has no id, and is not recognised: give its device the source's id)",
        false => "",
    }
}

/// Both sizes, if they differ.
fn other_size(theirs: &Disk, ours: &Disk) -> Option<String> {
    let (there, here) = (theirs.bytes?, ours.bytes?);
    (there != here).then(|| {
        format!(
            "the disk {} has {} at the source, and {} at the destination",
            label(theirs),
            size(there),
            size(here)
        )
    })
}

/// Why a disk of another size is refused.
fn same_disk(sizes: &str, is_same: bool) -> String {
    // The image was resized after QEMU there was started.
    let new = if is_same { ", in a new QEMU" } else { "" };
    format!("{sizes}: give the destination's QEMU the same disk{new}")
}

/// Whether they are known to be two images.
fn are_two(theirs: &DiskImage, ours: &DiskImage) -> bool {
    let is_marked = |image: &DiskImage| image.mark != ImageMark::Unknown;
    let other_mark = is_marked(theirs) && is_marked(ours);
    let apart = is_of_one_host(&theirs.storage) && is_of_one_host(&ours.storage);
    !theirs.is_same(ours) && (other_mark || apart && !theirs.may_be_same(ours))
}

/// Bytes, and in MiB if that loses nothing.
fn size(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} bytes"),
    }
}

fn at_place(disk: &Disk) -> String {
    let place = match &*disk.place {
        "" => String::new(),
        place => format!(" at {place}"),
    };
    let bytes = disk
        .bytes
        .map_or_else(String::new, |bytes| format!(" ({})", size(bytes)));
    format!("{}{place}{bytes}", label(disk))
}

fn elsewhere(theirs: &Disk, named: &Disk) -> String {
    format!(
        "the source's disk {} is at {}, and the disk of that name at the destination, {}, is at \
         {}: give each disk's device the same address (addr=, lun=, unit=) and the same id at both \
         sides",
        label(theirs),
        theirs.place,
        label(named),
        match &*named.place {
            "" => "no address",
            place => place,
        }
    )
}

fn is_read_only(name: &str) -> String {
    format!(
        "the disk {name} is read-only at the destination, and the guest can write to it at the \
         source"
    )
}

fn differ(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && one != other
}

fn file_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Whether the image may be one below that of the disk.
fn is_below(image: &DiskImage, disk: &Disk) -> bool {
    let mut below = disk.backing.images().iter();
    below.any(|below| image.may_be_same(below))
}

/// What shows that an image that nobody writes to is not like the other.
fn other_content(theirs: &DiskImage, ours: &DiskImage) -> Option<&'static str> {
    match (theirs.checksum, ours.checksum) {
        _ if theirs.is_same(ours) => None,
        (Some(theirs), Some(ours)) => (theirs != ours).then_some("another content"),
        // All that is known.
        _ => (file_name(&theirs.file) != file_name(&ours.file)).then_some("another name"),
    }
}

/// An image, and what it is on.
fn on(image: &DiskImage) -> String {
    match &*image.storage {
        "" => image.file.to_string(),
        storage => format!("{} on {storage}", image.file),
    }
}

fn all(images: &[DiskImage]) -> String {
    match images {
        [] => "none".to_owned(),
        images => images.iter().map(on).collect::<Vec<_>>().join(", "),
    }
}

fn at_both(theirs: &str, ours: &str) -> String {
    format!("{theirs} at the source, {ours} at the destination")
}

/// Why the guest is refused for disks that are not known to be the same, and what can be done.
fn not_known<'a>(
    unknown: &[(&'a Disk, String)],
    copied: impl Iterator<Item = &'a Disk>,
    can_copy: bool,
) -> String {
    let each = unknown.iter().take(MAX_SHOWN);
    let mut each: Vec<_> = each
        .map(|(disk, images)| format!("{} ({images})", label(disk)))
        .collect();
    if let Some(more) = unknown
        .len()
        .checked_sub(MAX_SHOWN)
        .filter(|more| *more > 0)
    {
        each.push(format!("and {more} more"));
    }
    let labels: Vec<_> = unknown.iter().map(|(theirs, _)| label(theirs)).collect();
    let shared = labels.join(",");
    let both = format!("if both hosts use the same, say so (--shared-disks={shared})");
    let what = match can_copy {
        true => {
            let copied: Vec<_> = copied.map(label).chain(labels).collect();
            format!("copy them (--copy-disks={}), or, {both}", copied.join(","))
        }
        false => both,
    };
    format!(
        "the guest writes to disks of which it is not known whether the destination has the same: \
         {}; {what}",
        each.join("; ")
    )
}

#[cfg(test)]
mod tests;
