//! Why disks are not offered to a destination, or copied.

use hikkoshi_wire::{MAX_COPIED_DISKS, MAX_DISKS};
use thiserror::Error;

use crate::qmp::QmpError;

/// Disks cannot be chosen, or not be copied.
#[derive(Debug, Error)]
pub enum SelectError {
    /// A QMP command failed.
    #[error("looking at the guest's disks")]
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
    /// It is to be copied, and not to be.
    #[error(
        "choosing the disks to copy: the disk {name} is in both --copy-disks and --shared-disks"
    )]
    Both {
        /// The disk.
        name: String,
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
    /// The guest would continue with the destination's content of a disk that was not copied, if it
    /// is not the same disk.
    #[error(
        "choosing the disks to copy: the guest can write to disks of which it is not known whether \
         the destination has the same ones: {}. Name all disks to copy, \
         --copy-disks={copied}, or those that both hosts use, --shared-disks={shared}",
        reasons.join("; "),
        copied = copied.join(","),
        shared = shared.join(",")
    )]
    Unclear {
        /// What each of them is.
        reasons: Vec<String>,
        /// All disks that can be copied.
        copied: Vec<String>,
        /// Those that are not clear.
        shared: Vec<String>,
    },
    /// The guest's commands do not go through QEMU's block layer.
    #[error(
        "copying the disk {name}: {how}, so what the guest does goes past the copy, or fails. Give \
         both hosts the same disk and move the guest without copying it, or attach it as another \
         device (scsi-hd, virtio-blk without scsi=on)"
    )]
    Passthrough {
        /// The disk.
        name: String,
        /// How that is known.
        how: &'static str,
    },
    /// What their images hold besides their content would be lost.
    #[error(
        "choosing the disks to copy: a copy does not have what the source's images hold besides \
         the content of the disks: {what}. Copy them without that by {options}"
    )]
    LeftBehind {
        /// What, and of which disks.
        what: String,
        /// The options that allow it.
        options: String,
    },
    /// There are too many.
    #[error("comparing the guest's disks: it has {found}, and at most {MAX_DISKS} are supported")]
    TooMany {
        /// How many.
        found: usize,
    },
    /// There are too many to copy.
    #[error(
        "choosing the disks to copy: the guest has {found}, and at most {MAX_COPIED_DISKS} are \
         copied"
    )]
    TooManyCopied {
        /// How many.
        found: usize,
    },
    /// The marks need a random number.
    #[error("comparing the guest's disks")]
    Random(#[source] std::io::Error),
    /// There is none.
    #[error(
        "choosing the disks to copy: the guest has no disk that it can write to and that both hosts \
         do not use; move it without --copy-disks, or name a disk{}", because(.0)
    )]
    None(Vec<String>),
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
