//! The result of `hikkoshi check`, as `--json` writes it (`docs/json.md`).

use error_reporter::Report;
use hikkoshi_engine::{Comparison, DestinationObstacle, Mode};
use hikkoshi_qemu::{
    AsynchronousFaultSupport, AttachError, CardPart, Checked, CopiedPart, Job, MemoryPart,
    PageHolder, Part, Verdict,
};
use serde::Serialize;

pub(super) const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport<'a> {
    /// Whether at least one mode is possible.
    pub(super) can_be_moved: bool,
    /// The modes that are possible from here, and to the destination if it was asked.
    pub(super) modes: Vec<String>,
    pub(super) guest: GuestReport<'a>,
    pub(super) obstacles: Vec<ObstacleReport>,
    pub(super) memory: Vec<MemoryReport<'a>>,
    pub(super) devices: Vec<PartReport<'a>>,
    pub(super) networks: Vec<PartReport<'a>>,
    pub(super) cards: Vec<CardReport<'a>>,
    pub(super) disks: Vec<PartReport<'a>>,
    /// `null`: no disks are to be copied, or they cannot be.
    pub(super) copied_disks: Option<Vec<CopiedDiskReport<'a>>>,
    pub(super) jobs: Vec<JobReport<'a>>,
    pub(super) kernel: KernelReport<'a>,
    pub(super) privileges: PrivilegesReport,
    pub(super) notes: &'a [String],
    /// `null`: no destination was asked.
    pub(super) destination: Option<DestinationReport<'a>>,
}

#[derive(Debug, Serialize)]
pub(super) struct GuestReport<'a> {
    pub(super) pid: Option<u32>,
    pub(super) qemu: &'a str,
    pub(super) state: &'a str,
    pub(super) machine: &'a str,
    pub(super) cpus: usize,
    pub(super) accelerator: &'a str,
    pub(super) processor: &'a str,
    pub(super) nested: Option<&'a str>,
    pub(super) asynchronous_faults: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct ObstacleReport {
    /// The modes in which the guest cannot be moved because of it.
    pub(super) modes: Vec<String>,
    pub(super) text: String,
}

#[derive(Debug, Serialize)]
pub(super) struct MemoryReport<'a> {
    pub(super) id: &'a str,
    /// `null`: memory of a device or the firmware.
    pub(super) backend: Option<&'a str>,
    pub(super) bytes: u64,
    pub(super) share: Option<bool>,
    pub(super) path: Option<&'a str>,
    pub(super) host_page_bytes: Option<u64>,
    pub(super) held: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct CardReport<'a> {
    pub(super) name: &'a str,
    pub(super) backend: &'a str,
    pub(super) interface: Option<&'a str>,
    /// Whether frames that arrive during the switchover are delivered.
    #[serde(skip)]
    pub(super) keeps_frames: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct CopiedDiskReport<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: u64,
    pub(super) snapshots: &'a [String],
    pub(super) bitmaps: &'a [String],
}

#[derive(Debug, Serialize)]
pub(super) struct JobReport<'a> {
    pub(super) id: &'a str,
    pub(super) kind: &'a str,
    pub(super) status: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct KernelReport<'a> {
    pub(super) release: &'a str,
    pub(super) dirty_log: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct PartReport<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) file: &'a str,
    pub(super) verdict: &'static str,
    pub(super) why: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct PrivilegesReport {
    pub(super) trace: bool,
    pub(super) userfaultfd: bool,
    pub(super) network_capture: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct DestinationReport<'a> {
    /// `null`: it could not be asked.
    pub(super) protocol_version: Option<u16>,
    pub(super) obstacles: Vec<ObstacleReport>,
    pub(super) warnings: &'a [String],
    pub(super) error: Option<&'a str>,
}

impl<'a> CheckReport<'a> {
    /// `unfinished`: earlier migrations of the guest that prevent another one.
    pub(crate) fn new(
        checked: &'a Checked,
        unfinished: Vec<String>,
        destination: Option<&'a Result<Comparison, String>>,
    ) -> Self {
        let accepts = |mode| destination.is_none_or(|answer| accepts(answer, mode));
        // They exclude every mode.
        let mut others = unfinished;
        if let Some(error) = &checked.refused_disks {
            others.push(Report::new(error).to_string());
        }
        let is_free = others.is_empty();
        let modes: Vec<_> = modes(|mode| is_free && checked.allows(mode) && accepts(mode));
        let destination = destination.map(DestinationReport::new);
        let guest = &checked.guest;
        let privileges = &checked.privileges;
        Self {
            can_be_moved: !modes.is_empty(),
            modes,
            guest: GuestReport {
                pid: guest.pid,
                qemu: &guest.version,
                state: &guest.state,
                machine: &guest.machine,
                cpus: guest.cpus,
                accelerator: &guest.accelerator,
                processor: &guest.processor,
                nested: guest.nested,
                asynchronous_faults: match guest.asynchronous_faults {
                    AsynchronousFaultSupport::NoKvm => "no_kvm",
                    AsynchronousFaultSupport::NotOffered => "not_offered",
                    AsynchronousFaultSupport::Off => "off",
                    AsynchronousFaultSupport::On => "on",
                },
            },
            obstacles: others
                .into_iter()
                .map(ObstacleReport::to_every_mode)
                .chain(checked.obstacles.iter().map(ObstacleReport::new))
                .collect(),
            memory: checked.memory.iter().map(MemoryReport::new).collect(),
            devices: checked.devices.iter().map(PartReport::new).collect(),
            networks: checked.networks.iter().map(PartReport::new).collect(),
            cards: checked
                .cards
                .iter()
                .map(|card| CardReport::new(card, checked.keeps_frames(card)))
                .collect(),
            disks: checked.disks.iter().map(PartReport::new).collect(),
            copied_disks: (checked.copied.as_ref())
                .map(|copied| copied.iter().map(CopiedDiskReport::new).collect()),
            jobs: checked.jobs.iter().map(JobReport::new).collect(),
            kernel: KernelReport {
                release: &checked.kernel.release,
                dirty_log: checked.kernel.dirty_log,
            },
            privileges: PrivilegesReport {
                trace: privileges.trace,
                userfaultfd: privileges.userfaultfd,
                network_capture: privileges.network_capture,
            },
            notes: &checked.notes,
            destination,
        }
    }

    /// Whether the guest can be moved, perhaps not in all modes.
    pub(crate) fn can_be_moved(&self) -> bool {
        self.can_be_moved
    }
}

/// Whether the destination accepts a guest that is moved by this mode.
fn accepts(answer: &Result<Comparison, String>, mode: Mode) -> bool {
    let Ok(comparison) = answer else {
        return false;
    };
    let mut obstacles = comparison.obstacles.iter();
    !obstacles.any(|obstacle| obstacle.excludes(mode))
}

fn modes(is_one: impl Fn(Mode) -> bool) -> Vec<String> {
    let found = MODES.into_iter().filter(|mode| is_one(*mode));
    found.map(|mode| mode.to_string()).collect()
}

impl ObstacleReport {
    fn new(obstacle: &AttachError) -> Self {
        Self {
            modes: modes(|mode| obstacle.excludes().includes(mode)),
            text: obstacle.reason(),
        }
    }

    fn to_every_mode(text: String) -> Self {
        Self {
            modes: modes(|_| true),
            text,
        }
    }

    fn there(obstacle: &DestinationObstacle) -> Self {
        Self {
            modes: modes(|mode| obstacle.excludes(mode)),
            text: obstacle.reason.clone(),
        }
    }
}

impl<'a> MemoryReport<'a> {
    fn new(part: &'a MemoryPart) -> Self {
        let held = part.held.map(|held| match held {
            PageHolder::SharedFile => "shared_file",
            PageHolder::UnnamedFile => "unnamed_file",
            PageHolder::PrivateFile => "private_file",
            PageHolder::Private => "private",
        });
        Self {
            id: &part.id,
            backend: part.backend.as_deref(),
            bytes: part.bytes,
            share: part.share,
            path: part.path.as_deref(),
            host_page_bytes: part.host_page,
            held,
        }
    }
}

impl<'a> CardReport<'a> {
    fn new(card: &'a CardPart, keeps_frames: bool) -> Self {
        Self {
            keeps_frames,
            name: &card.name,
            backend: &card.backend,
            interface: card.interface.as_deref(),
        }
    }
}

impl<'a> CopiedDiskReport<'a> {
    fn new(copied: &'a CopiedPart) -> Self {
        Self {
            name: &copied.name,
            bytes: copied.bytes,
            snapshots: &copied.snapshots,
            bitmaps: &copied.bitmaps,
        }
    }
}

impl<'a> JobReport<'a> {
    fn new(job: &'a Job) -> Self {
        Self {
            id: &job.id,
            kind: &job.kind,
            status: &job.status,
        }
    }
}

impl<'a> PartReport<'a> {
    fn new(part: &'a Part) -> Self {
        let (verdict, why) = match part.verdict {
            Verdict::Moves => ("moves", None),
            Verdict::Drained => ("drained", None),
            Verdict::PostcopyOnly(why) => ("postcopy_only", Some(why)),
            Verdict::PrecopyOnly(why) => ("precopy_only", Some(why)),
            Verdict::Refused(why) => ("refused", Some(why)),
            Verdict::Unknown => ("unknown", None),
            Verdict::Allowed => ("allowed", None),
        };
        Self {
            name: &part.name,
            kind: &part.kind,
            file: &part.detail,
            verdict,
            why,
        }
    }
}

impl<'a> DestinationReport<'a> {
    fn new(answer: &'a Result<Comparison, String>) -> Self {
        match answer {
            Ok(comparison) => Self {
                protocol_version: Some(comparison.version),
                obstacles: comparison
                    .obstacles
                    .iter()
                    .map(ObstacleReport::there)
                    .collect(),
                warnings: &comparison.warnings,
                error: None,
            },
            Err(error) => Self {
                protocol_version: None,
                obstacles: Vec::new(),
                warnings: &[],
                error: Some(error),
            },
        }
    }
}
