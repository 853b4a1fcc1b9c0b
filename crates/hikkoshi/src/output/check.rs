//! The result of `hikkoshi check`, for people and for programs (`docs/json.md`).

use std::fmt::Write as _;

use hikkoshi_engine::{Comparison, Mode};
use hikkoshi_qemu::{AttachError, Checked, MemoryPart, Part, Verdict};
use serde::Serialize;

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport<'a> {
    /// Whether at least one mode is possible, and the destination accepts the guest if it was asked.
    can_be_moved: bool,
    /// The modes that are possible from here.
    modes: Vec<String>,
    guest: GuestReport<'a>,
    obstacles: Vec<ObstacleReport>,
    memory: Vec<MemoryReport<'a>>,
    devices: Vec<PartReport<'a>>,
    networks: Vec<PartReport<'a>>,
    disks: Vec<PartReport<'a>>,
    privileges: PrivilegesReport,
    notes: &'a [String],
    /// `null`: no destination was asked.
    destination: Option<DestinationReport<'a>>,
}

#[derive(Debug, Serialize)]
struct GuestReport<'a> {
    pid: Option<u32>,
    qemu: &'a str,
    state: &'a str,
    machine: &'a str,
    cpus: usize,
    accelerator: &'a str,
}

#[derive(Debug, Serialize)]
struct ObstacleReport {
    /// The modes in which the guest cannot be moved because of it.
    modes: Vec<String>,
    text: String,
}

#[derive(Debug, Serialize)]
struct MemoryReport<'a> {
    id: &'a str,
    kind: &'a str,
    bytes: u64,
    share: bool,
    path: Option<&'a str>,
    host_page_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct PartReport<'a> {
    name: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    verdict: &'static str,
    why: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[allow(clippy::struct_excessive_bools)] // Each is one right.
struct PrivilegesReport {
    trace: bool,
    userfaultfd: bool,
    network_capture: bool,
}

#[derive(Debug, Serialize)]
struct DestinationReport<'a> {
    /// `null`: it could not be asked.
    protocol_version: Option<u16>,
    /// Whether the machines were compared. An older destination cannot be asked.
    compared: bool,
    obstacles: &'a [String],
    error: Option<&'a str>,
}

impl<'a> CheckReport<'a> {
    pub(crate) fn new(
        checked: &'a Checked,
        destination: Option<&'a Result<Comparison, String>>,
    ) -> Self {
        let modes: Vec<_> = modes(|mode| checked.allows(mode));
        let destination = destination.map(DestinationReport::new);
        let accepted = destination
            .as_ref()
            .is_none_or(|there| there.error.is_none() && there.obstacles.is_empty());
        let guest = &checked.guest;
        let privileges = &checked.privileges;
        Self {
            can_be_moved: !modes.is_empty() && accepted,
            modes,
            guest: GuestReport {
                pid: guest.pid,
                qemu: &guest.version,
                state: &guest.state,
                machine: &guest.machine,
                cpus: guest.cpus,
                accelerator: &guest.accelerator,
            },
            obstacles: checked.obstacles.iter().map(ObstacleReport::new).collect(),
            memory: checked.memory.iter().map(MemoryReport::new).collect(),
            devices: checked.devices.iter().map(PartReport::new).collect(),
            networks: checked.networks.iter().map(PartReport::new).collect(),
            disks: checked.disks.iter().map(PartReport::new).collect(),
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
}

impl<'a> MemoryReport<'a> {
    fn new(part: &'a MemoryPart) -> Self {
        Self {
            id: &part.id,
            kind: &part.kind,
            bytes: part.bytes,
            share: part.share,
            path: part.path.as_deref(),
            host_page_bytes: part.host_page,
        }
    }
}

impl<'a> PartReport<'a> {
    fn new(part: &'a Part) -> Self {
        let (verdict, why) = match part.verdict {
            Verdict::Moves => ("moves", None),
            Verdict::Drained => ("drained", None),
            Verdict::PostcopyOnly(why) => ("postcopy_only", Some(why)),
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
                compared: comparison.obstacles.is_some(),
                obstacles: comparison.obstacles.as_deref().unwrap_or_default(),
                error: None,
            },
            Err(error) => Self {
                protocol_version: None,
                compared: false,
                obstacles: &[],
                error: Some(error),
            },
        }
    }
}

/// The result as text.
pub(crate) fn readable(report: &CheckReport<'_>) -> String {
    let mut text = String::new();
    let guest = &report.guest;
    let pid = guest
        .pid
        .map_or_else(String::new, |pid| format!(" (process {pid})"));
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "QEMU {}{pid}: {}, {} processor(s), {}, state {}",
        guest.qemu, guest.machine, guest.cpus, guest.accelerator, guest.state
    );
    let _ = match (report.can_be_moved, report.modes.is_empty()) {
        (true, _) => writeln!(text, "the guest can be moved: {}", report.modes.join(", ")),
        (false, true) => writeln!(text, "the guest cannot be moved"),
        (false, false) => writeln!(text, "the guest cannot be moved to this destination"),
    };
    for obstacle in &report.obstacles {
        let modes = if obstacle.modes.len() == MODES.len() {
            "obstacle".to_owned()
        } else {
            format!("obstacle to {}", obstacle.modes.join(" and "))
        };
        let _ = writeln!(text, "  {modes}: {}", obstacle.text);
    }
    if let Some(there) = &report.destination {
        text.push_str(&destination_text(there));
    }
    for memory in &report.memory {
        let _ = writeln!(text, "  memory {}", memory_text(memory));
    }
    for (what, parts) in [
        ("device", &report.devices),
        ("network", &report.networks),
        ("disk", &report.disks),
    ] {
        for part in parts {
            let _ = writeln!(text, "  {what} {}", part_text(part));
        }
    }
    for note in report.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

fn destination_text(there: &DestinationReport<'_>) -> String {
    let mut text = String::new();
    if let Some(error) = there.error {
        let _ = writeln!(text, "  destination: {error}");
    } else if !there.compared {
        text.push_str(
            "  destination: it is authentic and supports this protocol; the machines were not \
             compared, because hikkoshi there is older (it compares them when a migration begins)\n",
        );
    } else if there.obstacles.is_empty() {
        text.push_str(
            "  destination: it would accept the guest (compared: machine type, memory, devices, \
             processors)\n",
        );
    }
    for obstacle in there.obstacles {
        let _ = writeln!(text, "  obstacle at the destination: {obstacle}");
    }
    text
}

fn memory_text(memory: &MemoryReport<'_>) -> String {
    let MemoryReport { id, kind, .. } = memory;
    let share = if memory.share { "on" } else { "off" };
    let mut text = format!("{id}: {} MiB, {kind}, share={share}", memory.bytes >> 20);
    if let Some(bytes) = memory.host_page_bytes {
        let _ = write!(text, ", pages of {} KiB", bytes >> 10);
    }
    if let Some(path) = memory.path {
        let _ = write!(text, ", {path}");
    }
    text
}

fn part_text(part: &PartReport<'_>) -> String {
    let PartReport { name, kind, .. } = part;
    let file = if part.file.is_empty() {
        String::new()
    } else {
        format!(", {}", part.file)
    };
    let means = match part.verdict {
        "moves" => "every mode",
        "drained" => "every mode; direct I/O, so pre-copy rounds drain it",
        "postcopy_only" => "post-copy only",
        "allowed" => "of an unknown type, allowed",
        "unknown" => "of an unknown type",
        _ => "cannot be moved",
    };
    format!("{name} ({kind}{file}): {means}")
}
