//! The reasons to refuse a guest.

use hikkoshi_dirty::UnsupportedKernel;
use hikkoshi_wire::MachineMismatch;
use thiserror::Error;

use super::tested_versions::TESTED_NAMES;
use crate::qmp::{QmpError, Version};

/// The oldest QEMU that is supported.
pub(crate) const OLDEST_QEMU: Version = Version::new(7, 2, 0);

/// Why a guest cannot be moved. It is unchanged.
#[derive(Debug, Error)]
pub enum Refusal {
    /// A QMP command failed.
    #[error("checking whether the guest can be moved")]
    Qmp(#[from] QmpError),
    /// Writes to its memory cannot be tracked, so pre-copy rounds are not possible.
    #[error("writes to RAM block {block:?} cannot be tracked in pre-copy rounds: {why}")]
    Untracked {
        /// The block.
        block: String,
        /// Why not, and what is possible.
        why: UnsupportedKernel,
    },
    /// QEMU is too old.
    #[error("this is QEMU {version}; QEMU {OLDEST_QEMU} or later is needed")]
    TooOld {
        /// Its version.
        version: Version,
    },
    /// QEMU does not have a migration capability.
    #[error(
        "this QEMU does not have the migration capability {name}, without which the guest's disks could \
         be locked at both sides"
    )]
    NoCapability {
        /// The capability.
        name: &'static str,
    },
    /// A capability is on that conflicts with moving the guest from outside.
    #[error(
        "the migration capability {name} is on, which conflicts with moving the guest from outside: \
         turn it off (QMP command 'migrate-set-capabilities') if nothing needs it"
    )]
    Capability {
        /// The capability.
        name: String,
    },
    /// Another migration of the source's guest is under way.
    #[error(
        "QEMU already has a migration (status {status}): wait until it ends, or cancel it (QMP command \
         'migrate_cancel')"
    )]
    Migrating {
        /// QEMU's name for its status.
        status: String,
    },
    /// The destination's QEMU has been sent a guest before, or is now.
    #[error(
        "this QEMU was sent a guest before (migration status {status}), and a QEMU receives only one: \
         restart it, unless a program is sending a guest to it now"
    )]
    Used {
        /// QEMU's name for the status.
        status: String,
    },
    /// QEMU reports that the guest cannot be migrated.
    #[error("QEMU reports that this guest cannot be migrated now: {reasons}")]
    Blocked {
        /// QEMU's reasons.
        reasons: String,
    },
    /// The source is in a state that cannot be moved.
    #[error(
        "the guest's state is {state}, and only running or paused guests can be moved: {advice}"
    )]
    State {
        /// QEMU's name for the state.
        state: String,
        /// What to do.
        advice: &'static str,
    },
    /// The destination's QEMU does not wait for an incoming migration.
    #[error(
        "this QEMU does not wait for an incoming migration: its state is {state}, so it may already \
         run a guest. If it does, leave it alone. Each incoming guest needs a separate QEMU, started \
         with -incoming defer"
    )]
    NotWaiting {
        /// QEMU's name for its state.
        state: String,
    },
    /// A manager of hosts owns the guest.
    #[error(
        "this guest seems to be managed by {manager} (its QEMU was started with {sign}), which would \
         not know of the move: it may start the guest a second time on the same disks, or end it while \
         its pages are sent (docs/other-managers.md). Let {manager} move it; or, if it does not manage \
         this guest any more, use --allow-managed"
    )]
    Managed {
        /// The manager.
        manager: &'static str,
        /// What shows it.
        sign: String,
    },
    /// A device that cannot be moved.
    #[error("the device {path} is a {kind}, and {why}{process}; unplug it to move the guest")]
    Device {
        /// Its path in QEMU's object tree, or its name.
        path: String,
        /// Its type.
        kind: String,
        /// Why it cannot be moved.
        why: &'static str,
        /// The other process that works for it, in parentheses; or nothing.
        process: String,
    },
    /// A device by which the guest returns memory to the host.
    #[error(
        "the device {path} has {property}=on: the guest may rely on zeros in memory that it has \
         returned to the host, and in post-copy the old content can reappear there; move it with \
         --mode precopy, or without that property"
    )]
    ReturnsMemory {
        /// Its path in QEMU's object tree.
        path: String,
        /// What is on.
        property: &'static str,
    },
    /// The guest's memory is encrypted.
    #[error("this is a confidential guest ({path}): its memory cannot be read from outside")]
    Confidential {
        /// The object that encrypts it.
        path: String,
    },
    /// A device that writes memory; the dirty log does not track these writes.
    #[error(
        "the device {path} is a {kind}, and {why}: move the guest with --mode postcopy, which \
         copies its memory after the guest is paused, or unplug the device"
    )]
    Rounds {
        /// Its path in QEMU's object tree.
        path: String,
        /// Its type.
        kind: String,
        /// Why it cannot be moved.
        why: &'static str,
    },
    /// A disk that no mode supports.
    #[error(
        "the disk with the block node {node} is read by the driver {driver}, and {why}; unplug the \
         disk, or open it with another driver, to move the guest"
    )]
    Disk {
        /// The block node.
        node: String,
        /// Its driver.
        driver: String,
        /// Why it cannot be moved.
        why: &'static str,
    },
    /// A device, object or backend of an unknown type.
    #[error(
        "{path} is of the type {kind}, which this version of hikkoshi does not know: if it writes \
         to the guest's memory without QEMU's page tables (by DMA, or from another process), pages \
         would be lost. Unplug it to move the guest; or, if you know that it does not, use \
         --allow-device {kind}"
    )]
    Unknown {
        /// Its path in QEMU's object tree, or its name.
        path: String,
        /// Its type.
        kind: String,
    },
    /// A disk whose image was deleted.
    #[error(
        "the disk {file} (block node {node}) is a deleted file, such as the temporary image of \
         -snapshot or snapshot=on: a destination cannot open it; copy it to an image with a name \
         (QMP command 'blockdev-mirror'), or start the guest without -snapshot"
    )]
    Deleted {
        /// The block node.
        node: String,
        /// The name that it had.
        file: String,
    },
    /// Nested virtualization.
    #[error(
        "the guest can run nested guests (its processors have {feature}), and KVM writes to a nested \
         hypervisor's memory, which the dirty log does not track: move it with --mode \
         postcopy, which copies its memory after the guest is paused"
    )]
    Nested {
        /// The processor feature.
        feature: &'static str,
    },
    /// A QEMU of an untested version that lacks commands.
    #[error(
        "QEMU {version} does not have the commands that hikkoshi needs to move a guest ({commands}): \
         use a newer version of hikkoshi"
    )]
    NoCommands {
        /// Its version.
        version: Version,
        /// The commands.
        commands: String,
    },
    /// A disk that needs drains, and a QEMU of an untested version, for which a drain was tried.
    #[error(
        "the guest has a disk with direct I/O (cache=none), which pre-copy rounds have to drain. \
         hikkoshi was tested with QEMU {}, a drain was tried in this QEMU {version}, \
         and {why}: move the guest with --mode postcopy",
        TESTED_NAMES
    )]
    DoesNotDrain {
        /// Its version.
        version: Version,
        /// What the trial has shown.
        why: String,
    },
    /// A disk was reopened for direct I/O during the move.
    #[error(
        "the disk {file} (block node {node}) was opened for direct I/O after the move began, and \
         data that it read may not have been copied; start the move again"
    )]
    PinningSince {
        /// The block node.
        node: String,
        /// Its file.
        file: String,
    },
    /// A device was plugged or unplugged during the move.
    #[error(
        "the guest's devices have changed since the move began ({}); start the destination's QEMU \
         with the devices that the guest has now, and start the move again",
        changed(.0)
    )]
    Changed(MachineMismatch),
    /// Memory was plugged or unplugged during the move.
    #[error(
        "the guest's memory has changed since the move began ({difference}); start the \
         destination's QEMU with the memory that the guest has now, and start the move again"
    )]
    MemoryChanged {
        /// What has changed.
        difference: String,
    },
    /// A disk is being copied for a migration, or was.
    #[error(
        "the block job '{id}' copies a disk of the guest for a migration by hikkoshi: end that by \
         'hikkoshi cancel', or, if it was interrupted, by 'hikkoshi migrate --resume'. ('hikkoshi \
         migrate' ends the job itself if no hikkoshi process has the guest. Never use the QMP \
         command 'job-complete': the guest would continue with the destination's disk)"
    )]
    Copy {
        /// The job.
        id: String,
    },
    /// A block job is running.
    #[error(
        "the block job '{id}' ({kind}) is {status}, and QEMU cannot hand over its images before the \
         job ends: wait for it, or end it (QMP command 'job-complete' or 'job-cancel')"
    )]
    Job {
        /// The job.
        id: String,
        /// Its type.
        kind: String,
        /// QEMU's name for its status.
        status: String,
    },
}

/// Describes the change: `source_has` is the guest now, `destination_has` is the
/// first description of the guest.
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
