//! Attaching to a QEMU, given only the path of its QMP socket: finds its process and
//! its guest's memory, checks that the guest can be moved, and obtains exclusive access.

mod description;
mod error;
pub(crate) mod exclusive_access;
pub(crate) mod leftovers;
pub(crate) mod machine;
pub(crate) mod maps;
pub(crate) mod preflight;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod processors;
pub(crate) mod ram;
pub(crate) mod reopen;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::Features;
use hikkoshi_wire::{GuestDescription, Machine, Processors};

pub use self::error::AttachError;
use self::exclusive_access::ExclusiveAccess;
use self::preflight::{AllowedTypes, Side};
use self::reopen::FileAccess;
use crate::qmp::Client;

/// The timeout of the connection, up to QEMU's greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A QEMU that can take part in a migration.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) client: Client,
    pub(crate) process: Arc<Process>,
    pub(crate) ram: Arc<GuestRam>,
    /// Where each block begins in the process's address space, in layout order.
    pub(crate) addresses: Vec<u64>,
    pub(crate) description: GuestDescription,
    pub(crate) processors: Processors,
    pub(crate) lock: ExclusiveAccess,
    pub(crate) machine: Machine,
}

/// Attaches to the QEMU whose QMP socket is at `path`, and checks everything that can be
/// checked without changes.
pub(crate) fn attach(
    path: &Path,
    side: Side,
    allowed: &AllowedTypes,
) -> Result<Attached, AttachError> {
    let mut client = Client::connect(path, CONNECT_TIMEOUT)?;
    preflight::check(&mut client, side, allowed)?;
    let process = process::find(&client)?;
    let access = match side {
        Side::Source => FileAccess::Read,
        Side::Destination => FileAccess::Write,
    };
    // First: without this right, some of the following information is hidden
    // instead of denied, which would lead to misleading errors.
    process::check_right_to_trace(&process)?;
    let ram = ram::find(&mut client, &process, access)?;
    let lock = exclusive_access::acquire(&process)?;
    match side {
        Side::Source => leftovers::remove(&process)?,
        Side::Destination => {
            leftovers::refuse_all(&process)?;
            check_kernel()?;
        }
    }
    let description = description::describe(&mut client, &ram.memory)?;
    let processors = processors::read(&mut client)?;
    let machine = machine::read(&mut client)?;
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
        client,
        process,
        ram: Arc::new(ram.memory),
        addresses: ram.addresses,
        description,
        processors,
        lock,
        machine,
    })
}

fn check_kernel() -> Result<(), AttachError> {
    // If we may not query this, QEMU's process may still be allowed to use it.
    let Ok(supported) = Features::supported() else {
        return Ok(());
    };
    let missing = Features::FOR_MISSING.without(supported);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(AttachError::Kernel {
            missing: missing.to_string(),
        })
    }
}
