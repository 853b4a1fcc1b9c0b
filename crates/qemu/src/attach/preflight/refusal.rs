//! Why a guest is refused.

use hikkoshi_dirty::UnsupportedKernel;
use hikkoshi_wire::MachineMismatch;
use thiserror::Error;

use super::OLDEST_QEMU;
use crate::qmp::{QmpError, Version};

/// Why a guest is refused. It has not been touched.
#[derive(Debug, Error)]
pub enum Refusal {
    /// QEMU could not be asked.
    #[error("checking whether the guest can be moved: {0}")]
    Qmp(#[from] QmpError),
    /// Writes to its memory cannot be tracked, so that there can be no rounds.
    #[error("writes to RAM block {block:?} cannot be tracked in pre-copy rounds: {why}")]
    Untracked {
        /// The block.
        block: String,
        /// Why not, and what works.
        why: UnsupportedKernel,
    },
    /// QEMU is too old.
    #[error("this is QEMU {version}; QEMU {OLDEST_QEMU} or later is needed")]
    TooOld {
        /// What it is.
        version: Version,
    },
    /// QEMU lacks a capability.
    #[error(
        "this QEMU lacks the migration capability {name}, without which it would send the guest's memory itself"
    )]
    NoCapability {
        /// The capability.
        name: &'static str,
    },
    /// A capability is on that changes what memory is.
    #[error(
        "the migration capability {name} is on, which excludes moving the guest from outside: turn \
         it off (QMP migrate-set-capabilities) if nothing needs it"
    )]
    Capability {
        /// The capability.
        name: String,
    },
    /// Another migration is under way.
    #[error(
        "QEMU is in a migration already (status {status}): wait for its end, or cancel it (QMP \
         migrate_cancel)"
    )]
    Migrating {
        /// QEMU's name for where it is.
        status: String,
    },
    /// QEMU says that the guest cannot be migrated.
    #[error("QEMU says that this guest cannot be migrated now: {reasons}")]
    Blocked {
        /// QEMU's reasons.
        reasons: String,
    },
    /// The source is in a state that cannot be moved.
    #[error(
        "the guest's state is {state}, and only running or paused guests can be moved: {advice}"
    )]
    State {
        /// QEMU's name for it.
        state: String,
        /// What to do.
        advice: &'static str,
    },
    /// The destination does not wait for a guest.
    #[error(
        "this QEMU does not wait for a guest: its state is {state}, so it may have one already. Leave \
         it alone if so; a guest is taken in by a QEMU of its own, started with -incoming defer"
    )]
    NotWaiting {
        /// QEMU's name for its state.
        state: String,
    },
    /// A device that the move would break.
    #[error("the device {path} is a {kind}, and {why}; unplug it to move the guest")]
    Device {
        /// Its place in QEMU's object tree, or its name.
        path: String,
        /// Its type.
        kind: String,
        /// Why it stands in the way.
        why: &'static str,
    },
    /// A device that lets the guest give memory back.
    #[error(
        "the device {path} has {property}=on: the guest may count on zeros in memory that it gives \
         back, and in post-copy that may come back as it was; move it with --mode precopy, or \
         without that property"
    )]
    GivesBack {
        /// Its place in QEMU's object tree.
        path: String,
        /// What is on.
        property: &'static str,
    },
    /// The guest's memory is encrypted.
    #[error("the guest is a confidential one ({path}): its memory cannot be read from outside")]
    Confidential {
        /// The object that makes it so.
        path: String,
    },
    /// A device that writes memory behind the log of pre-copy rounds.
    #[error(
        "the device {path} is a {kind}, and {why}: move the guest with --mode postcopy, which \
         copies its memory after it was paused, or unplug the device"
    )]
    Rounds {
        /// Its place in QEMU's object tree.
        path: String,
        /// Its type.
        kind: String,
        /// Why it stands in the way.
        why: &'static str,
    },
    /// A disk that no mode copes with.
    #[error(
        "the disk with the block node {node} is read by the driver {driver}, and {why}; unplug the \
         disk, or open it with another driver, to move the guest"
    )]
    Disk {
        /// The block node.
        node: String,
        /// Its driver.
        driver: String,
        /// Why it stands in the way.
        why: &'static str,
    },
    /// Something that may write memory in a way that is not known.
    #[error(
        "{path} is of the type {kind}, which this version of hikkoshi does not know: if it writes \
         to the guest's memory past QEMU's page tables (by DMA, or from another process), pages \
         would be lost. Unplug it to move the guest; or, if you know that it does not, say \
         --allow-device {kind}"
    )]
    Unknown {
        /// Its place in QEMU's object tree, or its name.
        path: String,
        /// Its type.
        kind: String,
    },
    /// Nested virtualization.
    #[error(
        "the guest can run guests of its own (its processors have {feature}), and KVM writes to an \
         inner hypervisor's memory where pre-copy rounds do not see it: move it with --mode \
         postcopy, which copies its memory after it was paused"
    )]
    Nested {
        /// The processor feature.
        feature: &'static str,
    },
    /// A disk that needs drains, with a QEMU whose drains are not known to work.
    #[error(
        "the guest has a disk that reads by direct I/O (cache=none), and it was never tried whether \
         QEMU {version} can drain it, which pre-copy rounds need: move the guest with --mode postcopy"
    )]
    DrainNotTried {
        /// What it is.
        version: Version,
    },
    /// A disk that came to write into pinned pages during the move.
    #[error(
        "the disk {file} (block node {node}) has been opened for direct I/O since the move began, and \
         what it read since may not have been copied; start the move again"
    )]
    PinningSince {
        /// The block node.
        node: String,
        /// Its file.
        file: String,
    },
    /// A device was plugged in or out during the move.
    #[error(
        "the guest's devices have changed since the move began ({}); start the destination with \
         the devices that the guest has now, and the move again",
        changed(.0)
    )]
    Changed(MachineMismatch),
    /// A block job.
    #[error(
        "the block job '{id}' ({kind}) is {status}, and QEMU cannot hand over its images before it \
         ends: wait for it, or end it (QMP job-complete or job-cancel)"
    )]
    Job {
        /// The job.
        id: String,
        /// What it does.
        kind: String,
        /// QEMU's name for where it is.
        status: String,
    },
}

/// The source is the guest as it is now, the destination as it was described.
fn changed(mismatch: &MachineMismatch) -> String {
    match mismatch {
        MachineMismatch::Device {
            place,
            source_has,
            destination_has,
        } => format!("at {place} there was {destination_has}, and is {source_has}"),
        MachineMismatch::Number {
            kind,
            source_has,
            destination_has,
        } => format!("there were {destination_has} of the type {kind}, and are {source_has}"),
        other => other.to_string(),
    }
}
