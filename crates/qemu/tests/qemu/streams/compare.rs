//! Compares what `xen-save-devices-state` and `stream` write with the stream of QEMU's own
//! `migrate`.

use std::fs;
use std::path::Path;

use hikkoshi_qemu::qmp::Client;
use hikkoshi_qemu::stream::{SavedDevices, Section, StreamBlock, head};
use serde_json::json;

use crate::support::{eventually, print_always};

use super::walk;

/// Sections whose payloads may differ between the two ways, and why. `ram` and `dirty-bitmap` are
/// saved in parts, and `xen-save-devices-state` leaves them out.
const MAY_DIFFER: [(&str, &str); 1] = [(
    "globalstate",
    "holds the run state's name: xen-save-devices-state writes 'running' always, migrate the \
     guest's state. A guest that was paused is kept paused at the destination by other means",
)];

/// What may change while the guest is paused, from one save to the next.
struct MayChange {
    /// All of them if `None`.
    accelerator: Option<&'static str>,
    section: &'static str,
    /// The field, as QEMU's description of the stream names it.
    field: &'static str,
    why: &'static str,
}

/// A timer of KVM runs on while the guest is paused, and its interrupt becomes pending between two
/// saves.
const KVM_TIMER: &str = "an interrupt of a timer in the kernel, which runs on";

const MAY_CHANGE: [MayChange; 5] = [
    MayChange::under_kvm("apic", "apic.irr", KVM_TIMER),
    MayChange::under_kvm("i8259", "i8259.irr", KVM_TIMER),
    MayChange::under_kvm("i8259", "i8259.last_irr", KVM_TIMER),
    MayChange::under_kvm("ioapic", "ioapic.irr", KVM_TIMER),
    MayChange {
        accelerator: None,
        section: "tpm-emulator",
        field: "tpm-emulator.state_blobs.volatil.buffer",
        why: "the TPM's clock: its emulator is not paused with the guest",
    },
];

impl MayChange {
    const fn under_kvm(section: &'static str, field: &'static str, why: &'static str) -> Self {
        Self {
            accelerator: Some("kvm"),
            section,
            field,
            why,
        }
    }

    /// Why that field may change.
    fn why(accelerator: &str, section: &str, field: &str) -> Option<&'static str> {
        let may_change = |may: &&Self| {
            may.accelerator.is_none_or(|under| under == accelerator)
                && may.section == section
                && field == may.field
        };
        MAY_CHANGE.iter().find(may_change).map(|may| may.why)
    }
}

/// What is compared.
#[derive(Debug)]
pub(crate) struct Compared<'a> {
    /// For messages.
    pub(crate) label: &'a str,
    pub(crate) accelerator: &'a str,
    /// Ends of the names of sections that must be there.
    pub(crate) expected: &'a [&'a str],
}

impl Compared<'_> {
    /// Pauses the guest and compares, section by section, both ways to save its device state.
    pub(crate) fn assert_same(&self, client: &mut Client) {
        client.execute("stop", json!({})).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let saved = save(client, &folder.path().join("saved"), false);
        let stream = own_stream(client, &folder.path().join("own"));
        let later = save(client, &folder.path().join("later"), false);
        let sections = SavedDevices::parse(&saved).unwrap().sections().unwrap();
        let later = SavedDevices::parse(&later).unwrap().sections().unwrap();
        assert_eq!(headers(&sections), headers(&later));

        compare_beginnings(client, &stream);
        let full = stream.sections.iter().filter(|section| section.full);
        let own: Vec<_> = full.map(walk::Section::as_saved).collect();
        assert_eq!(headers(&sections), headers(&own));
        for section in stream.sections.iter().filter(|section| !section.full) {
            assert!(
                ["ram", "dirty-bitmap"].contains(&section.name.as_str()),
                "{} is saved in parts",
                section.name
            );
        }

        let mut described = 0;
        for ((saved, own), later) in sections.iter().zip(&own).zip(&later) {
            // The boundaries were found by footers; the description says how long a section is.
            if let Some(fields) = stream.fields(saved.name, saved.instance) {
                let bytes: usize = fields.iter().map(|(_, bytes)| bytes).sum();
                assert_eq!(bytes, own.payload.len(), "{}", saved.name);
                described += 1;
            }
            self.compare_payloads(&stream, saved, own, later);
        }
        print_always(&format!(
            "{}, {}: {} sections, {described} of them described",
            self.label,
            self.accelerator,
            sections.len()
        ));
        for device in self.expected {
            assert!(
                sections
                    .iter()
                    .any(|section| section.name.ends_with(device)),
                "{device} is not among them: {:?}",
                headers(&sections)
            );
        }
    }

    fn compare_payloads(
        &self,
        stream: &walk::Stream,
        saved: &Section<'_>,
        own: &Section<'_>,
        later: &Section<'_>,
    ) {
        let may_differ = MAY_DIFFER.iter().any(|(name, _)| *name == saved.name);
        if saved.payload == own.payload {
            assert!(!may_differ, "{} is the same", saved.name);
            return;
        }
        if may_differ {
            return;
        }
        let differ = differences(stream, saved, own);
        let change = differences(stream, saved, later);
        let what = format!(
            "{} ({}): {} {}: {differ:?} differ; between two saves: {change:?}",
            self.label, self.accelerator, saved.name, saved.instance
        );
        assert!(saved.payload != later.payload, "{what}");
        for field in &differ {
            match MayChange::why(self.accelerator, saved.name, field) {
                Some(why) => print_always(&format!("{what}: {why}")),
                None => panic!("{field}: {what}"),
            }
        }
    }
}

/// Numbers, names, instances and versions.
pub(crate) fn headers<'a>(sections: &[Section<'a>]) -> Vec<(u32, &'a str, u32, u32)> {
    sections
        .iter()
        .map(|section| (section.id, section.name, section.instance, section.version))
        .collect()
}

/// Compares what comes before the devices' sections, byte by byte. Two things differ: QEMU's `ram`
/// is a section in parts (mark 1), whose list of blocks is the first part, and ours is complete
/// with that list (mark 4); and the number of ours is one that no section of QEMU has.
fn compare_beginnings(client: &mut Client, stream: &walk::Stream) {
    const FULL: u8 = 4;
    let machine = machine_type(client);
    assert_eq!(stream.machine, machine);
    // In QEMU's order: both lists are that of its RAM blocks.
    let listed = blocks(client);
    let names: Vec<_> = listed
        .iter()
        .map(|block| (block.name.clone(), block.used))
        .collect();
    assert_eq!(names, stream.ram_blocks());

    let ours = head(&machine, &listed).unwrap();
    let section = &stream.sections[0];
    assert_eq!((&*section.name, section.full), ("ram", false));
    let expected = [&*stream.beginning, &section.encode(FULL, u32::MAX)].concat();
    assert_eq!(ours, expected);
}

/// The fields that differ in two payloads of a device; without a description of the device, its
/// bytes.
pub(crate) fn differences(
    stream: &walk::Stream,
    one: &Section<'_>,
    other: &Section<'_>,
) -> Vec<String> {
    let (one_bytes, other_bytes) = (one.payload, other.payload);
    if one_bytes.len() != other_bytes.len() {
        return vec![format!(
            "{} and {} bytes",
            one_bytes.len(),
            other_bytes.len()
        )];
    }
    let differ = |at: usize, bytes: usize| one_bytes[at..at + bytes] != other_bytes[at..at + bytes];
    let Some(fields) = stream.fields(one.name, one.instance) else {
        let bytes = (0..one_bytes.len()).filter(|at| differ(*at, 1));
        return bytes.map(|at| format!("byte {at}")).collect();
    };
    let mut at = 0;
    let mut all = Vec::new();
    for (name, bytes) in fields {
        if differ(at, bytes) {
            all.push(name);
        }
        at += bytes;
    }
    all
}

pub(crate) fn save(client: &mut Client, path: &Path, live: bool) -> Vec<u8> {
    let arguments = json!({ "filename": path, "live": live });
    client.execute("xen-save-devices-state", arguments).unwrap();
    fs::read(path).unwrap()
}

/// Names and used lengths of all RAM blocks.
pub(crate) fn blocks(client: &mut Client) -> Vec<StreamBlock> {
    let command = json!({ "command-line": "info ramblock" });
    let answer = client.execute("human-monitor-command", command).unwrap();
    let table = answer.as_str().unwrap();
    // The name can contain blanks: read from the page size on.
    let row = |line: &str| {
        let (name, rest) = [" KiB ", " MiB ", " GiB "]
            .iter()
            .find_map(|unit| line.split_once(unit))?;
        let name = name.trim_end().rsplit_once(' ')?.0.trim();
        let used = rest.split_whitespace().nth(1)?.strip_prefix("0x")?;
        Some(StreamBlock {
            name: name.to_owned(),
            used: u64::from_str_radix(used, 16).ok()?,
        })
    };
    table.lines().filter_map(row).collect()
}

fn machine_type(client: &mut Client) -> String {
    let arguments = json!({ "path": "/machine", "property": "type" });
    let name = client.execute("qom-get", arguments).unwrap();
    let name = name.as_str().unwrap();
    name.strip_suffix("-machine").unwrap().to_owned()
}

fn own_stream(client: &mut Client, path: &Path) -> walk::Stream {
    let uri = format!("exec:cat > {}", path.display());
    client.execute("migrate", json!({ "uri": uri })).unwrap();
    eventually("the end of QEMU's migration", || {
        let info = client.execute("query-migrate", json!({})).unwrap();
        assert_ne!(info["status"], "failed", "{info}");
        info["status"] == "completed"
    });
    // `cat` may still be writing: the description is the last part.
    eventually("the end of the stream", || {
        fs::read(path).is_ok_and(|bytes| bytes.ends_with(b"}") && is_complete(&bytes))
    });
    walk::Stream::parse(&fs::read(path).unwrap())
}

fn is_complete(bytes: &[u8]) -> bool {
    let mark = b"\x00\x06\x00";
    let starts = bytes.windows(3).enumerate().filter(|(_, w)| w == mark);
    starts.map(|(at, _)| at).any(|at| {
        let length = bytes.get(at + 2..at + 6);
        length.is_some_and(|length| {
            let length = u32::from_be_bytes(length.try_into().unwrap());
            length as usize == bytes.len() - at - 6
        })
    })
}
