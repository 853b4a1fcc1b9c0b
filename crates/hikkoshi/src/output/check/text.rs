//! The result of `hikkoshi check` as text.

use std::fmt::Write as _;

use hikkoshi_qemu::{
    AsynchronousFaultSupport, CardPart, CheckedGuest, CopiedPart, GuestPart, MemoryPart,
    PageHolder, Verdict,
};

use super::report::{CheckReport, DestinationReport, MODES, ObstacleReport};

/// The result as text: a line for the guest, one for the verdict, and one for each thing that was
/// found.
pub(crate) fn readable(report: &CheckReport<'_>) -> String {
    let checked = report.checked;
    let mut lines = vec![guest(&checked.guest), verdict(report)];
    for obstacle in &report.obstacles {
        lines.push(format!("  {}: {}", excluded(obstacle, ""), obstacle.text));
    }
    let there = report.destination.iter();
    lines.extend(there.flat_map(destination));
    lines.extend(checked.memory.iter().filter_map(memory));
    lines.extend(device_memory(&checked.memory));
    for (what, parts) in [
        ("device", &checked.devices),
        ("network", &checked.networks),
        ("disk", &checked.disks),
    ] {
        lines.extend(
            parts
                .iter()
                .map(|found| format!("  {what} {}", part(found))),
        );
    }
    let copied = checked.copied.iter().flatten();
    lines.extend(copied.map(copied_disk));
    let cards = checked.cards.iter();
    lines.extend(cards.map(|card| network_card(card, checked.keeps_frames(card))));
    for job in &checked.jobs {
        lines.push(format!(
            "  block job {} ({}): {}",
            job.id, job.kind, job.status
        ));
    }
    lines.push(asynchronous_faults(&checked.guest));
    lines.push(rights(report));
    lines.extend(checked.notes.iter().map(|note| format!("  note: {note}")));
    // Names from QEMU can contain anything: each stays in its line.
    let mut text = String::new();
    for line in lines {
        text.extend(line.chars().filter(|c| !c.is_control()));
        text.push('\n');
    }
    text
}

fn network_card(card: &CardPart, keeps_frames: bool) -> String {
    let backend = match &card.interface {
        Some(interface) => format!("tap device {interface}"),
        None => format!("{}, no tap device that is known", card.backend),
    };
    let fate = if keeps_frames {
        "delivered at the destination"
    } else {
        "lost"
    };
    format!(
        "  network card {}: {backend}: frames that arrive during the switchover are {fate}",
        card.name
    )
}

fn guest(guest: &CheckedGuest) -> String {
    let mut text = format!("QEMU {}", guest.version);
    // Writing to a String cannot fail.
    if let Some(pid) = guest.pid {
        let _ = write!(text, " (process {pid})");
    }
    let _ = write!(
        text,
        ": {}, {} x {}, {}",
        guest.machine, guest.cpus, guest.processor, guest.accelerator
    );
    if let Some(feature) = guest.nested {
        let _ = write!(text, ", nested guests ({feature})");
    }
    let _ = write!(text, ", state {}", guest.state);
    text
}

/// Whether the guest can have KVM's asynchronous page faults, and what to change if not.
fn asynchronous_faults(guest: &CheckedGuest) -> String {
    let text = match guest.asynchronous_faults {
        AsynchronousFaultSupport::On => {
            "the processors have them; whether the guest uses them is only known when it is moved"
                .to_owned()
        }
        AsynchronousFaultSupport::Off => {
            "off: in post-copy, a vCPU waits for each page; to switch them on, add \
                  kvm-asyncpf-int=on to -cpu in the command lines of both QEMUs, and restart the \
                  guest"
                .to_owned()
        }
        AsynchronousFaultSupport::NotOffered => {
            "none: this host's KVM does not offer them".to_owned()
        }
        AsynchronousFaultSupport::NoKvm => {
            "none: the guest is emulated, and only KVM has them".to_owned()
        }
    };
    format!("  asynchronous page faults: {text}")
}

fn verdict(report: &CheckReport<'_>) -> String {
    if report.can_be_moved {
        format!("the guest can be moved: {}", report.modes.join(", "))
    } else {
        "the guest cannot be moved".to_owned()
    }
}

/// What an obstacle prevents. `place`: where it is.
fn excluded(obstacle: &ObstacleReport, place: &str) -> String {
    if obstacle.modes.len() == MODES.len() {
        format!("obstacle{place}")
    } else {
        format!("obstacle{place} to {}", obstacle.modes.join(" and "))
    }
}

fn copied_disk(disk: &CopiedPart) -> String {
    let without = [("snapshots", &disk.snapshots), ("bitmaps", &disk.bitmaps)];
    let without = without.into_iter().filter(|(_, names)| !names.is_empty());
    let without: Vec<_> = without
        .map(|(what, names)| format!("its {what} {}", names.join(", ")))
        .collect();
    let without = match &without[..] {
        [] => String::new(),
        without => format!(", without {}", without.join(" and ")),
    };
    format!("  copied disk {}: {}{without}", disk.name, size(disk.bytes))
}

fn destination(there: &DestinationReport<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(error) = there.error {
        lines.push(format!("  destination: {error}"));
    } else if there.obstacles.is_empty() {
        lines.push(
            "  destination: it would accept the guest (compared: machine type, memory, devices, \
             processors, disks)"
                .to_owned(),
        );
    }
    let obstacles = there.obstacles.iter();
    lines.extend(obstacles.map(|obstacle| {
        let what = excluded(obstacle, " at the destination");
        format!("  {what}: {}", obstacle.text)
    }));
    let warnings = there.warnings.iter();
    lines.extend(warnings.map(|warning| format!("  warning from the destination: {warning}")));
    lines
}

/// A memory backend; `None` for the memory of a device.
fn memory(memory: &MemoryPart) -> Option<String> {
    let backend = memory.backend.as_deref()?;
    let path = memory.path.as_deref().unwrap_or_default();
    let held = match memory.held {
        Some(PageHolder::SharedFile) => format!("shared file {path}; it stays when QEMU ends"),
        Some(PageHolder::UnnamedFile) => format!(
            "shared file without a name ({path}); it exists as long as a process has it open"
        ),
        Some(PageHolder::PrivateFile) => {
            format!("private mapping of {path}; what was written ends with QEMU")
        }
        Some(PageHolder::Private) => "private memory; it ends with QEMU".to_owned(),
        None => {
            let share = if memory.share == Some(true) {
                "on"
            } else {
                "off"
            };
            format!("share={share} {path}").trim_end().to_owned()
        }
    };
    let pages = memory
        .host_page
        .map_or_else(String::new, |bytes| format!(", pages of {}", size(bytes)));
    let bytes = size(memory.bytes);
    Some(format!(
        "  memory {}: {bytes}{pages}, {backend}: {held}",
        memory.id
    ))
}

/// The sum of the memory of devices and firmware.
fn device_memory(all: &[MemoryPart]) -> Option<String> {
    let blocks = all.iter().filter(|memory| memory.backend.is_none());
    let (count, bytes) = blocks.fold((0u32, 0), |(count, bytes), memory| {
        (count + 1, bytes + memory.bytes)
    });
    #[allow(clippy::cast_precision_loss)] // It is rounded anyway.
    let mib = bytes as f64 / f64::from(1 << 20);
    (count > 0)
        .then(|| format!("  memory of devices and firmware: {mib:.1} MiB in {count} block(s)"))
}

/// Bytes in the largest unit that loses nothing.
fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

fn part(part: &GuestPart) -> String {
    let GuestPart { name, kind, .. } = part;
    let file = if part.detail.is_empty() {
        String::new()
    } else {
        format!(", {}", part.detail)
    };
    let means = match part.verdict {
        Verdict::Moves => "every mode",
        Verdict::Drained => "every mode; direct I/O, so pre-copy rounds drain it",
        Verdict::PostcopyOnly(_) => "post-copy only",
        Verdict::PrecopyOnly(_) => "pre-copy only",
        Verdict::Allowed => "of an unknown type, allowed",
        Verdict::Unknown => "of an unknown type",
        Verdict::Refused(_) => "cannot be moved",
    };
    format!("{name} ({kind}{file}): {means}")
}

fn rights(report: &CheckReport<'_>) -> String {
    let can = |can, what| format!("{} {what}", if can { "can" } else { "cannot" });
    let (kernel, privileges) = (&report.checked.kernel, &report.checked.privileges);
    format!(
        "  this host: Linux {}; hikkoshi {}, {}, {}, and {}",
        kernel.release,
        can(kernel.dirty_log, "track writes to memory"),
        can(privileges.trace, "trace QEMU"),
        can(privileges.userfaultfd, "create a userfaultfd in it"),
        can(privileges.network_capture, "capture frames")
    )
}

#[cfg(test)]
mod tests {
    use super::{CardPart, network_card, size};

    #[test]
    fn sizes_lose_nothing() {
        assert_eq!(size(4 << 30), "4 GiB");
        assert_eq!(size(1536 << 20), "1536 MiB");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(131_072 + 1), "131073 bytes");
        assert_eq!(size(0), "0 bytes");
    }

    #[test]
    fn frames_are_lost_without_a_tap_device_or_the_right_to_capture() {
        let card = |interface: Option<&str>, keeps_frames| {
            let card = CardPart {
                name: "nic".to_owned(),
                backend: "tap".to_owned(),
                interface: interface.map(str::to_owned),
            };
            network_card(&card, keeps_frames)
        };
        assert!(card(Some("tap0"), true).ends_with("switchover are delivered at the destination"));
        assert!(card(Some("tap0"), false).contains("tap device tap0: frames"));
        for lost in [card(Some("tap0"), false), card(None, false)] {
            assert!(lost.ends_with("switchover are lost"), "{lost}");
        }
    }
}
