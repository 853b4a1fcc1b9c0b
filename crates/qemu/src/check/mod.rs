//! Whether a guest can be moved from here, and how: [`check()`]. Changes nothing: no system call is
//! injected, no setting of QEMU is changed, no lock is kept.

mod parts;
mod privileges;

use std::path::Path;

use hikkoshi_engine::Mode;
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{GuestDescription, Machine, Processors};
use serde_json::{Value, json};

pub use self::parts::{MemoryPart, Part, Verdict};
pub use self::privileges::Privileges;
use crate::attach::inspect::{Inspection, inspect};
use crate::attach::preflight::{self, AllowedTypes, OLDEST_QEMU, Side};
use crate::attach::{AttachError, description, exclusive_access, leftovers, machine, processors};
use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError, migration};

/// What was found.
#[derive(Debug)]
pub struct Checked {
    /// The guest and its QEMU.
    pub guest: CheckedGuest,
    /// Everything that stands against a move;
    /// [`excludes`](AttachError::excludes) says in which modes.
    pub obstacles: Vec<AttachError>,
    /// The guest's memory backends.
    pub memory: Vec<MemoryPart>,
    /// The devices that were added to the machine, and those that are an obstacle.
    pub devices: Vec<Part>,
    /// Network cards' backends.
    pub networks: Vec<Part>,
    /// What the guest's disks are read by.
    pub disks: Vec<Part>,
    /// What this process may do.
    pub privileges: Privileges,
    /// What is no obstacle, but good to know.
    pub notes: Vec<String>,
    /// What a destination compares; `None` if the memory cannot be described.
    pub offer: Option<Offer>,
}

/// The guest and its QEMU.
#[derive(Debug, Clone)]
pub struct CheckedGuest {
    /// QEMU's process, if it is visible from here.
    pub pid: Option<u32>,
    /// QEMU's version.
    pub version: String,
    /// QEMU's name for the guest's state.
    pub state: String,
    /// The machine type, with its version.
    pub machine: String,
    /// The number of processors.
    pub cpus: usize,
    /// `kvm` or `tcg`.
    pub accelerator: String,
}

/// What is offered to a destination.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The machine and its memory.
    pub description: GuestDescription,
    /// The processors.
    pub processors: Processors,
    /// The devices.
    pub machine: Machine,
}

impl Checked {
    /// Whether the guest can be moved by this mode.
    pub fn allows(&self, mode: Mode) -> bool {
        let excludes = |obstacle: &AttachError| obstacle.excludes().includes(mode);
        !self.obstacles.iter().any(excludes)
    }
}

/// Checks the guest whose QMP socket is at `qmp`.
///
/// # Errors
///
/// See [`AttachError`]: nothing can be found out about the guest.
pub fn check(qmp: &Path, allowed: &AllowedTypes) -> Result<Checked, AttachError> {
    let Inspection {
        mut client,
        process,
        ram,
        mut obstacles,
        ..
    } = inspect(qmp, Side::Source, allowed)?;
    let client = &mut client;
    let mut notes = Vec::new();
    if let Some(process) = &process {
        obstacles.extend(exclusive_access::check(process).err().map(Into::into));
        notes.extend(leftovers::note(process));
    }
    obstacles.extend(hikkoshi_dirty::support().err().map(AttachError::DirtyLog));
    let mut found = Checked {
        guest: guest(client)?,
        privileges: Privileges::of(process.as_deref()),
        obstacles,
        memory: Vec::new(),
        devices: Vec::new(),
        networks: Vec::new(),
        disks: Vec::new(),
        notes,
        offer: None,
    };
    if client.version() < OLDEST_QEMU {
        return Ok(found);
    }
    let layout: Option<&RamLayout> = ram.as_ref().map(|ram| ram.files.layout());
    found.memory = parts::memory(client, layout)?;
    found.devices = preflight::parts::devices(client, allowed)?;
    found.networks = preflight::parts::networks(client, allowed)?;
    found.disks = preflight::parts::disks(client, allowed)?;
    found.add_notes();
    if let Some(ram) = &ram {
        found.offer = Some(Offer {
            description: description::describe(client, &ram.files)?,
            processors: processors::read(client)?,
            machine: machine::read(client)?,
        });
    }
    Ok(found)
}

impl Checked {
    fn add_notes(&mut self) {
        let files = self
            .disks
            .iter()
            .filter(|disk| disk.detail.starts_with('/'));
        let files: Vec<_> = files.map(|disk| disk.detail.clone()).collect();
        if !files.is_empty() {
            self.notes.push(format!(
                "the destination has to reach the same disks under the names in its command line: {}",
                files.join(", ")
            ));
        }
        if self.networks.iter().any(|network| network.kind == "user") {
            let text = "connections through a network backend of the type user end: they belong \
                        to this QEMU process";
            self.notes.push(text.to_owned());
        }
        if self.guest.state != "running" {
            let text = "the guest does not run, and arrives paused";
            self.notes.push(text.to_owned());
        }
    }
}

fn guest(client: &mut Client) -> Result<CheckedGuest, QmpError> {
    let machine = property(client, "/machine", "type")?;
    let machine = machine.as_ref().and_then(Value::as_str).unwrap_or("?");
    let kvm = client.execute("query-kvm", json!({}))?;
    let kvm = kvm.get("enabled").and_then(Value::as_bool) == Some(true);
    let cpus = client.execute("query-cpus-fast", json!({}))?;
    Ok(CheckedGuest {
        pid: client.peer(),
        version: client.version().to_string(),
        state: migration::run_state(client)?.status,
        machine: machine
            .strip_suffix("-machine")
            .unwrap_or(machine)
            .to_owned(),
        cpus: cpus.as_array().map_or(0, Vec::len),
        accelerator: if kvm { "kvm" } else { "tcg" }.to_owned(),
    })
}
