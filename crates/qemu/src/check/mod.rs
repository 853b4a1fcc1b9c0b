//! Whether a guest can be moved from here, and how: [`check()`]. Changes nothing: no system call is
//! injected, no setting of QEMU is changed, no lock is kept. Only while a destination compares the
//! disks ([`OfferedMachine::disks`]), their images have marks.

use std::path::Path;

use hikkoshi_account::Side;
use hikkoshi_engine::Mode;
use hikkoshi_linux::Process;
use hikkoshi_memory::RamFile;
use hikkoshi_wire::{Domain, GuestDescription, Machine, Processors};
use rustix::fs::OFlags;
use serde::Serialize;

use crate::attach::inspect::{Inspection, inspect};
use crate::attach::preflight::jobs::{self, Job};
use crate::attach::preflight::{self, Allowed, OLDEST_QEMU, Refusal, nested, untested};
use crate::attach::processors::asynchronous_faults::AsynchronousFaultSupport;
use crate::attach::{AttachError, description, processors, stale_userfaultfds};
use crate::command_line::Exact;
use crate::device_tree;
use crate::device_tree::{OWN_SWTPM, is_tpm};
use crate::disks::{self, ChosenDisks, CopiedDisk, DiskSelection, OfferedDisks, SelectError};
pub use crate::guest_parts::{GuestPart, MemoryPart, PageHolder, Verdict};
use crate::network::overview::{CardPart, cards};
use crate::network::vlans_lost;
use crate::process::exclusive_access;
pub use crate::process::privileges::{NoUserfaultfd, Privileges};
use crate::qmp::{CONNECT_TIMEOUT, Client, QmpError, migration_status};
use crate::ram::overview;

/// What was found. Its parts are written as JSON, by the names of `docs/json.md`.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// The guest and its QEMU.
    pub guest: CheckedGuest,
    /// Everything that prevents a move;
    /// [`excludes`](AttachError::excludes) says in which modes.
    #[serde(skip)]
    pub obstacles: Vec<AttachError>,
    /// The guest's RAM blocks.
    pub memory: Vec<MemoryPart>,
    /// The devices that were added to the machine, those that QEMU made for a short option or by
    /// default, and those that are an obstacle.
    pub devices: Vec<GuestPart>,
    /// Network cards' backends.
    pub networks: Vec<GuestPart>,
    /// The network cards, if QEMU's process can be accessed.
    pub cards: Vec<CardPart>,
    /// What the guest's disks are read by.
    pub disks: Vec<GuestPart>,
    /// The disks that would be copied; `None`: none are to be copied, or they cannot be.
    #[serde(rename = "copied_disks")]
    pub copied: Option<Vec<CopiedPart>>,
    /// Why the disks cannot be copied or offered, if so.
    #[serde(skip)]
    pub refused_disks: Option<SelectError>,
    /// Block jobs.
    pub jobs: Vec<Job>,
    /// This host's kernel.
    pub kernel: Kernel,
    /// What this process may do.
    pub privileges: Privileges,
    /// Remarks that do not prevent a move.
    pub notes: Vec<String>,
    /// What a destination compares; `None` if the memory cannot be described.
    #[serde(skip)]
    pub offer: Option<OfferedMachine>,
}

/// The guest and its QEMU.
#[derive(Debug, Clone, Serialize)]
pub struct CheckedGuest {
    /// QEMU's process, if it is visible from here.
    pub pid: Option<u32>,
    /// QEMU's version.
    #[serde(rename = "qemu")]
    pub version: String,
    /// QEMU's name for the guest's state.
    pub state: String,
    /// The machine type, with its version.
    pub machine: String,
    /// The number of processors.
    pub cpus: usize,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// The processors' model, such as `qemu64`.
    pub processor: String,
    /// Whether it can have KVM's asynchronous page faults.
    pub asynchronous_faults: AsynchronousFaultSupport,
    /// The feature by which the guest can run nested guests under KVM: `vmx` or `svm`.
    pub nested: Option<&'static str>,
}

/// This host's kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Its release, such as `6.18.44`.
    pub release: String,
    /// Whether it can track writes to memory, as pre-copy rounds need.
    pub dirty_log: bool,
}

/// A disk that would be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopiedPart {
    /// Its device's id, or another name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The internal snapshots of its image, which are not copied.
    pub snapshots: Vec<String>,
    /// The dirty bitmaps that it has, which are not copied.
    pub bitmaps: Vec<String>,
    /// The files of its image and of the backing images below.
    #[serde(skip)]
    images: Vec<String>,
}

/// What is offered to a destination.
#[derive(Debug)]
pub struct OfferedMachine {
    /// The machine and its memory.
    pub description: GuestDescription,
    /// The processors.
    pub processors: Processors,
    /// The devices.
    pub machine: Machine,
    /// What the destination's daemon needs; `None` if no daemon owns the guest.
    pub domain: Option<Domain>,
    disks: ChosenDisks,
}

impl OfferedMachine {
    /// The disks. While the destination compares them, their images may have marks.
    ///
    /// # Errors
    ///
    /// See [`SelectError`].
    pub fn disks(&self) -> Result<OfferedDisks, SelectError> {
        self.disks.offer()
    }
}

impl Checked {
    /// Adds the domain that the guest is to what is offered, as its daemon describes it.
    pub fn set_domain(&mut self, mut domain: Option<Domain>, selection: &DiskSelection) {
        let Some(offer) = &mut self.offer else {
            return;
        };
        if let Some(domain) = &mut domain {
            match offer.disks.drop_snapshots(domain, selection) {
                Ok(()) => self.notes.append(&mut offer.disks.notices),
                Err(error) => self.refused_disks = Some(error),
            }
        }
        offer.domain = domain;
    }

    /// Whether the guest can be moved by this mode.
    pub fn allows(&self, mode: Mode) -> bool {
        let excludes = |obstacle: &AttachError| obstacle.excludes().includes(mode);
        !self.obstacles.iter().any(excludes)
    }

    /// Whether frames that arrive for this card during the switchover are delivered at the
    /// destination.
    pub fn keeps_frames(&self, card: &CardPart) -> bool {
        card.interface.is_some() && self.privileges.network_capture
    }
}

/// Checks the guest whose QMP socket is at `qmp`. `selection`: what is to be done with its disks.
///
/// # Errors
///
/// See [`AttachError`]: nothing can be found out about the guest.
pub fn check(
    qmp: &Path,
    allowed: &Allowed,
    selection: &DiskSelection,
) -> Result<Checked, AttachError> {
    check_by(Client::connect(qmp, CONNECT_TIMEOUT)?, allowed, selection)
}

/// Checks the guest of an open session, such as one that libvirt lends.
///
/// # Errors
///
/// See [`AttachError`]: nothing can be found out about the guest.
pub fn check_by(
    client: Client,
    allowed: &Allowed,
    selection: &DiskSelection,
) -> Result<Checked, AttachError> {
    let Inspection {
        mut client,
        process,
        ram,
        mut obstacles,
        ..
    } = inspect(client, Side::Source, allowed)?;
    let client = &mut client;
    let warnings = ram.as_ref().map(|ram| ram.warnings.clone());
    let mut notes = warnings.unwrap_or_default();
    notes.extend(untested::note(client.version()));
    if let Some(process) = &process {
        match exclusive_access::check(process) {
            Ok(()) => notes.extend(stale_userfaultfds::note(process)),
            // The dirty log is that of the other process.
            Err(error) => obstacles.push(error.into()),
        }
    }
    let dirty_log = hikkoshi_dirty::support();
    let kernel = Kernel {
        release: release(),
        dirty_log: dirty_log.is_ok(),
    };
    obstacles.extend(dirty_log.err().map(AttachError::DirtyLog));
    // An older QEMU is refused, and may not answer all of this.
    let processors = match client.version() < OLDEST_QEMU {
        true => Processors::default(),
        false => processors::read(client)?,
    };
    let mut found = Checked {
        guest: guest(client, &processors)?,
        privileges: Privileges::of_process(process.as_deref()),
        obstacles,
        memory: Vec::new(),
        devices: Vec::new(),
        networks: Vec::new(),
        cards: Vec::new(),
        disks: Vec::new(),
        copied: None,
        refused_disks: None,
        jobs: Vec::new(),
        kernel,
        notes,
        offer: None,
    };
    if client.version() < OLDEST_QEMU {
        return Ok(found);
    }
    found.memory = match &process {
        // An error is an obstacle, which was found before.
        Some(process) => overview::of_process(client, process).unwrap_or_default(),
        None => Vec::new(),
    };
    if found.memory.is_empty() {
        found.memory = overview::of_backends(client)?;
    }
    found.devices = preflight::list_parts::devices(client, allowed)?;
    found.networks = preflight::list_parts::networks(client, allowed)?;
    found.disks = preflight::list_parts::disks(client, allowed)?;
    found.jobs = jobs::list(client)?;
    found.mark_unmigratable(&migration_status::query(client)?.blocked);
    found.mark_balloons();
    found.mark_deleted();
    found.add_cards(client, process.as_deref())?;
    let chosen = found.choose_disks(client, selection);
    found.add_notes();
    if let Some(ram) = &ram {
        found.offer = Some(OfferedMachine {
            description: description::describe(client, &ram.memory)?,
            processors,
            machine: device_tree::read(client)?,
            domain: None,
            disks: chosen,
        });
    }
    Ok(found)
}

impl Checked {
    /// Devices that QEMU itself cannot migrate, by its blockers:
    /// `non-migratable device: 0000:00:05.0/nvme`. They are an obstacle already.
    fn mark_unmigratable(&mut self, blocked: &[String]) {
        for device in &mut self.devices {
            let names = |reason: &String| {
                let place = reason.strip_prefix("non-migratable device: ");
                place.is_some_and(|place| place.rsplit('/').next() == Some(&device.kind))
            };
            if blocked.iter().any(names) {
                device.verdict = Verdict::Refused("QEMU cannot migrate it");
            }
        }
    }

    /// Balloons that return memory to the host. They are an obstacle already.
    fn mark_balloons(&mut self) {
        for obstacle in &self.obstacles {
            let AttachError::Refused(Refusal::ReturnsMemory { path, .. }) = obstacle else {
                continue;
            };
            let mut devices = self.devices.iter_mut();
            if let Some(device) = devices.find(|device| device.name == *path) {
                device.verdict = Verdict::PrecopyOnly("the guest returns memory to the host");
            }
        }
    }

    /// Disks whose image was deleted. They are an obstacle already.
    fn mark_deleted(&mut self) {
        for obstacle in &self.obstacles {
            if let AttachError::Refused(Refusal::Deleted { node, .. }) = obstacle
                && let Some(disk) = self.disks.iter_mut().find(|disk| disk.name == *node)
            {
                disk.verdict = Verdict::Refused("its image was deleted");
            }
        }
    }

    /// Finds the disks, and those that would be copied.
    fn choose_disks(&mut self, client: &mut Client, selection: &DiskSelection) -> ChosenDisks {
        match disks::choose(client, selection) {
            Ok(mut chosen) => {
                self.notes.append(&mut chosen.notices);
                let part = |copied: &CopiedDisk| CopiedPart {
                    name: copied.label.clone(),
                    bytes: copied.bytes,
                    snapshots: copied.left_behind.snapshots.clone(),
                    bitmaps: copied.left_behind.bitmaps.clone(),
                    images: copied.images.clone(),
                };
                let copied = chosen.copied.iter().map(part);
                self.copied = selection.copied.is_some().then(|| copied.collect());
                chosen
            }
            Err(error) => {
                self.refused_disks = Some(error);
                ChosenDisks::default()
            }
        }
    }

    fn add_cards(
        &mut self,
        client: &mut Client,
        process: Option<&Process>,
    ) -> Result<(), QmpError> {
        let Some(process) = process else {
            return Ok(());
        };
        self.cards = cards(client, process)?;
        self.notes.extend(vlans_lost::note(client));
        let is_lost = |card: &CardPart| card.interface.is_some() && !self.keeps_frames(card);
        if self.cards.iter().any(is_lost) {
            self.notes.push(
                "frames that arrive at the guest's tap devices during the switchover are lost: \
                 capturing them needs the capability CAP_NET_RAW"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn add_notes(&mut self) {
        let is_copied = |disk: &GuestPart| {
            let mut copied = self.copied.iter().flatten();
            copied.any(|copied| copied.images.contains(&disk.detail))
        };
        let files = self.disks.iter().filter(|disk| {
            !disk.detail.is_empty() && !disk.kind.starts_with("null-") && !is_copied(disk)
        });
        let files: Vec<_> = files.map(|disk| disk.detail.clone()).collect();
        if !files.is_empty() {
            self.notes.push(format!(
                "the destination has to reach the same disks under the names in its command line: {}",
                files.join(", ")
            ));
        }
        if self.devices.iter().any(|device| is_tpm(&device.kind)) {
            self.notes.push(format!(
                "the guest has a TPM, whose state moves with it: at the destination it needs {OWN_SWTPM}"
            ));
        }
        let of_qemu = |kind: &str| matches!(kind, "user" | "passt");
        if let Some(network) = self.networks.iter().find(|network| of_qemu(&network.kind)) {
            self.notes.push(format!(
                "connections through a network backend of the type {} end: they belong to this \
                 QEMU process",
                network.kind
            ));
        }
        let ends_with_qemu = |memory: &&MemoryPart| {
            memory.backend.is_some()
                && matches!(
                    memory.held,
                    Some(PageHolder::Private | PageHolder::PrivateFile)
                )
        };
        let private: Vec<_> = self.memory.iter().filter(ends_with_qemu).collect();
        if let [first, ..] = private.as_slice() {
            self.notes.push(format!(
                "the memory {} ends with QEMU's process: from the handover of a post-copy or hybrid \
                 migration on, the source's QEMU must not end before every page has been sent, or \
                 the guest is lost",
                first.id
            ));
        }
        let on_disk = |part: &&MemoryPart| match (part.held, &part.path) {
            (Some(PageHolder::SharedFile), Some(path)) => {
                // Whatever has the name by now, it is not opened.
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
                file.is_ok_and(|file| RamFile::new(file.into(), 0).is_on_disk())
            }
            _ => false,
        };
        if let Some(part) = self.memory.iter().find(on_disk) {
            self.notes.push(format!(
                "the memory {} is a shared file on a disk: from here every mode is possible, but a \
                 destination with such a file takes the guest by --mode precopy only. Pages that \
                 the host has evicted are read from the disk first",
                part.id
            ));
        }
        if matches!(self.guest.processor.as_str(), "host" | "max") {
            self.notes.push(format!(
                "the processor model {} has other features on other hosts and in other versions of \
                 QEMU; --to INVITATION compares them with the destination's",
                self.guest.processor
            ));
        }
        if self.guest.state != "running" {
            let text = "the guest does not run, and arrives paused";
            self.notes.push(text.to_owned());
        }
    }
}

fn guest(client: &mut Client, processors: &Processors) -> Result<CheckedGuest, QmpError> {
    let exact = Exact::query(client)?;
    Ok(CheckedGuest {
        pid: client.peer(),
        version: client.version().to_string(),
        state: migration_status::run_state(client)?.status,
        machine: exact.machine,
        cpus: processors.processors.len(),
        accelerator: processors.accelerator.to_string(),
        processor: exact.cpu,
        asynchronous_faults: AsynchronousFaultSupport::of_processors(processors),
        nested: nested::feature(client)?,
    })
}

fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "?".to_owned(), |release| release.trim().to_owned())
}
