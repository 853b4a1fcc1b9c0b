//! Attaching to a QEMU, given only its monitor: finds its process and
//! its guest's memory, checks that the guest can be moved, and obtains exclusive access.

pub(crate) mod description;
mod error;
mod guest_name;
pub(crate) mod inspect;
mod left_copies;
pub(crate) mod preflight;
pub(crate) mod probe;
pub(crate) mod processors;
pub(crate) mod stale_userfaultfds;

use std::sync::Arc;

use hikkoshi_account::Side;
use hikkoshi_engine::Mode;
use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;
use hikkoshi_wire::{GuestDescription, Machine, Processors};

pub use self::error::AttachError;
use self::inspect::{Inspection, inspect};
use self::preflight::{Allowed, Excludes, Refusal, untested};
use crate::device_tree;
use crate::process::exclusive_access::{self, ExclusiveAccess};
use crate::qmp::{CONNECT_TIMEOUT, Client, Monitor};
pub(crate) use crate::ram::enough_memory::Overcommit;

/// A QEMU that can take part in a migration.
#[derive(Debug)]
pub(crate) struct Attached {
    /// `None`: the machine's owner does not lend its monitor yet.
    pub(crate) client: Option<Client>,
    pub(crate) process: Arc<Process>,
    pub(crate) ram: Arc<GuestRam>,
    /// Where each block begins in the process's address space, in layout order.
    pub(crate) addresses: Vec<u64>,
    pub(crate) description: GuestDescription,
    /// How its owner calls the guest (`-name`), if QEMU says it.
    pub(crate) name: Option<String>,
    pub(crate) processors: Processors,
    pub(crate) lock: ExclusiveAccess,
    pub(crate) machine: Machine,
    /// Whether a trial has shown that this QEMU, of an untested version, drains its disks.
    pub(crate) drains: bool,
}

/// Attaches to the QEMU of this monitor, and checks everything that can be
/// checked without changes. The error names every obstacle, with those of `mode`. Copies of disks
/// that a killed engine has left are ended.
pub(crate) fn attach(
    monitor: &dyn Monitor,
    side: Side,
    allowed: &Allowed,
    mode: Option<Mode>,
    overcommit: Overcommit,
) -> Result<Attached, AttachError> {
    let found = inspect(monitor.open(CONNECT_TIMEOUT)?, side, allowed)?;
    let Inspection {
        mut client,
        process,
        ram,
        mut obstacles,
    } = left_copies::remove(found, side, allowed)?;
    obstacles.retain(|obstacle| obstacle.matters(mode));
    if overcommit == Overcommit::Allow {
        obstacles.retain(|obstacle| !obstacle.is_overcommit());
    }
    let (Some(process), Some(ram), true) = (&process, ram, obstacles.is_empty()) else {
        // What is checked later otherwise. Without waiting for the lock: this attempt fails anyway.
        if let Some(process) = &process {
            obstacles.extend(exclusive_access::check(process).err().map(Into::into));
        }
        if mode.is_some_and(|mode| Excludes::Rounds.includes(mode)) {
            obstacles.extend(hikkoshi_dirty::support().err().map(AttachError::DirtyLog));
        }
        return Err(AttachError::from_obstacles(obstacles));
    };
    let process = Arc::clone(process);
    let lock = exclusive_access::acquire(&process)?;
    if side == Side::Source {
        stale_userfaultfds::remove(&process)?;
        untested::remove_left(&mut client).map_err(Refusal::Qmp)?;
    }
    // A mode that is not known yet is checked when its rounds begin.
    let mut drains = false;
    if side == Side::Source
        && mode.is_some_and(|mode| Excludes::Rounds.includes(mode))
        && let Some(refusal) =
            untested::check_drain(&mut client, &mut drains).map_err(Refusal::Qmp)?
    {
        return Err(refusal.into());
    }
    for warning in ram.warnings.iter().chain(&untested::note(client.version())) {
        tracing::warn!("{warning}");
    }
    let description = description::describe(&mut client, &ram.memory)?;
    let name = guest_name::read(&mut client)?;
    let processors = processors::read(&mut client)?;
    let machine = device_tree::read(&mut client)?;
    tracing::info!(
        pid = process.pid(),
        hypervisor = description.hypervisor,
        machine = description.machine,
        blocks = description.blocks.len(),
        parts = %machine,
        bytes = ram.memory.layout().bytes(),
        "attached to QEMU"
    );
    Ok(Attached {
        client: Some(client),
        process,
        ram: Arc::new(ram.memory),
        addresses: ram.addresses,
        description,
        name,
        processors,
        lock,
        machine,
        drains,
    })
}
