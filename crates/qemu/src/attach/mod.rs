//! Getting hold of a QEMU by the path of its QMP socket, and nothing else.

pub(crate) mod exclusive_access;
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
use hikkoshi_memory::RamFiles;
use hikkoshi_userfault::{Features, GiveBackError, Leftover, close_remote};
use hikkoshi_wire::{GuestDescription, Machine, Processors};
use serde_json::{Value, json};
use thiserror::Error;

use self::exclusive_access::{ExclusiveAccess, ExclusiveAccessError};
use self::preflight::{AllowedTypes, Refusal, Side};
use self::process::ProcessError;
use self::ram::RamError;
use self::ram::backend::property;
use self::reopen::FileAccess;
use crate::qmp::migration;
use crate::qmp::{Client, ConnectError, QmpError};

/// How long to wait for QEMU's greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// This QEMU, or its guest, cannot take part in a migration. Nothing in it has
/// been changed.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The QMP socket.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The process behind it.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest cannot be moved.
    #[error("this guest cannot be moved: {0}")]
    Refused(#[from] Refusal),
    /// Its memory cannot be moved.
    #[error("this guest cannot be moved: {0}")]
    Ram(#[from] RamError),
    /// Another engine is at work on it.
    #[error(transparent)]
    Occupied(#[from] ExclusiveAccessError),
    /// QEMU could not be asked what it is.
    #[error("asking QEMU what machine it is: {0}")]
    Describe(#[from] QmpError),
    /// Somebody waits for the guest's pages already.
    #[error(
        "process {pid} has a userfaultfd open already (descriptor {number}, {features}): an earlier \
         post-copy migration into it has not ended, or was killed, and pages may be missing; \
         {advice}"
    )]
    Userfault {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: i32,
        /// What it can do.
        features: String,
        /// What to do.
        advice: &'static str,
    },
    /// A dirty log that a killed run left could not be removed.
    #[error("removing what a killed hikkoshi left in process {pid}: {source}")]
    Leftover {
        /// QEMU's process.
        pid: u32,
        /// Why not.
        source: GiveBackError,
    },
    /// The kernel cannot do post-copy.
    #[error("this host's kernel lacks what a destination needs: {missing}")]
    Kernel {
        /// The features, with the releases that brought them.
        missing: String,
    },
}

/// A QEMU that can take part in a migration.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) client: Client,
    pub(crate) process: Arc<Process>,
    pub(crate) ram: Arc<RamFiles>,
    /// Where each block begins in the process, in layout order.
    pub(crate) addresses: Vec<u64>,
    pub(crate) description: GuestDescription,
    pub(crate) processors: Processors,
    pub(crate) lock: ExclusiveAccess,
    pub(crate) machine: Machine,
}

impl AttachError {
    /// Whether the guest was seen to be one that can be moved; it is as it was.
    pub fn found_guest(&self) -> bool {
        !matches!(
            self,
            Self::Connect(_)
                | Self::Occupied(_)
                | Self::Refused(Refusal::Qmp(_) | Refusal::TooOld { .. } | Refusal::State { .. })
        )
    }

    /// Whether the guest may have been handed over by an earlier migration.
    pub fn may_be_handed_over(&self) -> bool {
        matches!(self, Self::Refused(Refusal::State { state, .. }) if state == "postmigrate")
    }
}

/// Gets hold of the QEMU whose QMP socket is at `path`, and checks everything
/// that can be checked without changing anything.
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
    // First: without this right some of what follows is hidden rather than
    // denied, and would be taken for something else.
    process::check_right_to_trace(&process)?;
    let ram = ram::find(&mut client, &process, access)?;
    let lock = exclusive_access::acquire(&process)?;
    match side {
        Side::Source => remove_leftovers(&process)?,
        Side::Destination => {
            refuse_leftovers(&process)?;
            check_kernel()?;
        }
    }
    let description = describe(&mut client, &ram.files)?;
    let processors = processors::read(&mut client)?;
    let machine = machine::read(&mut client)?;
    tracing::info!(
        pid = process.pid(),
        hypervisor = description.hypervisor,
        machine = description.machine,
        blocks = description.blocks.len(),
        parts = %machine,
        bytes = ram.files.layout().bytes(),
        "attached to QEMU"
    );
    Ok(Attached {
        client,
        process,
        ram: Arc::new(ram.files),
        addresses: ram.addresses,
        description,
        processors,
        lock,
        machine,
    })
}

/// Whether a userfaultfd is a dirty log of ours. QEMU has no use for
/// asynchronous write protection, so one with it that we did not make was made
/// by another run of ours.
pub(crate) fn is_dirty_log(leftover: &Leftover) -> bool {
    leftover.features.contains(Features::WP_ASYNC)
}

/// A dirty log holds nobody up: nobody waits for its writes. So one that a
/// killed run left is closed, which ends it.
fn remove_leftovers(process: &Arc<Process>) -> Result<(), AttachError> {
    let pid = process.pid();
    for leftover in process::userfaults(process)? {
        if !is_dirty_log(&leftover) {
            return Err(refuse(
                pid,
                &leftover,
                "wait for its end; if none is under way, the guest may have lost pages: do not \
                 move it, but look at it",
            ));
        }
        tracing::warn!(
            pid,
            number = leftover.number,
            "closing a dirty log that a killed run left in QEMU"
        );
        close_remote(process, leftover.number)
            .map_err(|source| AttachError::Leftover { pid, source })?;
    }
    Ok(())
}

/// At a destination a userfaultfd means a guest, or half of one.
fn refuse_leftovers(process: &Arc<Process>) -> Result<(), AttachError> {
    match process::userfaults(process)?.first() {
        None => Ok(()),
        Some(leftover) => Err(refuse(
            process.pid(),
            leftover,
            "start the destination's QEMU afresh",
        )),
    }
}

fn refuse(pid: u32, leftover: &Leftover, advice: &'static str) -> AttachError {
    AttachError::Userfault {
        pid,
        number: leftover.number,
        features: leftover.features.to_string(),
        advice,
    }
}

fn check_kernel() -> Result<(), AttachError> {
    // If we may not ask, QEMU may still be allowed; we will see then.
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

/// The machine, as the other side must have it too.
fn describe(client: &mut Client, ram: &RamFiles) -> Result<GuestDescription, QmpError> {
    let machine = property(client, "/machine", "type")?;
    let machine = machine
        .as_ref()
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("qom-get", "no machine type"))?;
    let target = client.execute("query-target", json!({}))?;
    let architecture = target
        .get("arch")
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("query-target", target.to_string()))?;
    let cpus = client.execute("query-cpus-fast", json!({}))?;
    let cpus = cpus
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "not a list"))?;
    let cpu_path = cpus
        .first()
        .and_then(|cpu| cpu.get("qom-path"))
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "no processors"))?;
    let cpu = property(client, cpu_path, "type")?;
    let cpu = cpu
        .as_ref()
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("qom-get", "no processor type"))?;
    let kvm = client.execute("query-kvm", json!({}))?;
    let enabled = kvm.get("enabled").and_then(Value::as_bool);
    Ok(GuestDescription {
        machine: strip(machine, "-machine").to_owned(),
        architecture: architecture.to_owned(),
        cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        cpu_model: cpu_model(cpu, architecture, enabled == Some(true)),
        hypervisor: format!("QEMU {}", client.version()),
        running: migration::run_state(client)?.running,
        blocks: GuestDescription::describe_blocks(ram.layout()),
    })
}

/// `qemu64-x86_64-cpu` is the model `qemu64`. Who runs it belongs to it: a
/// model under KVM has other features than emulated, and QEMU does not support
/// moving between the two.
fn cpu_model(kind: &str, architecture: &str, kvm: bool) -> String {
    let model = strip(strip(kind, "-cpu"), architecture);
    let model = strip(model, "-");
    format!("{model} ({})", if kvm { "KVM" } else { "emulated" })
}

fn strip<'a>(text: &'a str, end: &str) -> &'a str {
    text.strip_suffix(end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_models_are_named_as_on_the_command_line() {
        assert_eq!(
            cpu_model("qemu64-x86_64-cpu", "x86_64", true),
            "qemu64 (KVM)"
        );
        assert_eq!(
            cpu_model("Skylake-Client-v1-x86_64-cpu", "x86_64", false),
            "Skylake-Client-v1 (emulated)"
        );
        assert_eq!(cpu_model("odd", "x86_64", false), "odd (emulated)");
    }
}
