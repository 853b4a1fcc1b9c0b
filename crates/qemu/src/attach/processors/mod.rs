//! What the guest was given for virtual processors, from QEMU's object tree.
//!
//! QEMU's options say what was asked for; the processors' objects say what came
//! of it on this host, in this version. Each answer takes QEMU some 0.4 ms, for
//! it reads commands a byte at a time, and a processor has 500 properties. So
//! the flags come as whole words (`feature-words`), and of the other properties
//! only those are read that a guest can notice. Processors that `-smp` made
//! have the same ones, so they are asked one by one only for their flags, and
//! for what tells them apart.

mod features;
mod settings;
#[cfg(test)]
mod tests;

use std::fs;

use hikkoshi_wire::{
    Processor, ProcessorKind, ProcessorPlace, ProcessorSetting, Processors, Topology,
};
use serde_json::{Value, json};

use self::features::{implied_by_topology, words};
use self::settings::settings;
use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// The guest's processors.
///
/// # Errors
///
/// If QEMU does not answer, or says something else than it should.
pub(crate) fn read(client: &mut Client) -> Result<Processors, QmpError> {
    let kvm = client.execute("query-kvm", json!({}))?;
    let kvm = kvm.get("enabled").and_then(Value::as_bool) == Some(true);
    let topology = topology(property(client, "/machine", "smp")?.as_ref());
    let answer = client.execute("query-cpus-fast", json!({}))?;
    let mut found = Processors {
        accelerator: if kvm { "kvm" } else { "tcg" }.into(),
        tsc_scaling: kvm && host_scales_tsc(),
        topology,
        kinds: Vec::new(),
        processors: Vec::new(),
    };
    let entries = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "not a list"))?;
    // What all those have that -smp made.
    let mut common: Option<Vec<ProcessorSetting>> = None;
    for entry in entries {
        let garbage = || QmpError::unexpected("query-cpus-fast", entry.to_string());
        let path = entry.get("qom-path").and_then(Value::as_str);
        let path = path.ok_or_else(garbage)?;
        let index = number(entry.get("cpu-index")).ok_or_else(garbage)?;
        let mut kind = ProcessorKind {
            features: words(property(client, path, "feature-words")?.as_ref()),
            filtered: words(property(client, path, "filtered-features")?.as_ref()),
            settings: Vec::new(),
        };
        let made_by_smp = path.starts_with("/machine/unattached/");
        kind.settings = match &common {
            Some(common) if made_by_smp => common.clone(),
            _ => settings(client, path, &kind, kvm)?,
        };
        if made_by_smp && common.is_none() {
            common = Some(kind.settings.clone());
        }
        implied_by_topology(&mut kind, topology);
        let apic_id = property(client, path, "apic-id")?;
        let tsc_hz = property(client, path, "tsc-frequency")?;
        let known = found.kinds.iter().position(|known| *known == kind);
        let kind = known.unwrap_or_else(|| {
            found.kinds.push(kind);
            found.kinds.len() - 1
        });
        found.processors.push(Processor {
            index,
            kind: u16::try_from(kind).unwrap_or(u16::MAX),
            // An architecture without them numbers its processors otherwise.
            apic_id: number(apic_id.as_ref()).unwrap_or(index),
            tsc_hz: tsc_hz.as_ref().and_then(Value::as_u64).unwrap_or(0),
            place: place(entry.get("props")),
        });
    }
    found.processors.sort_by_key(|processor| processor.index);
    Ok(found)
}

fn number(value: Option<&Value>) -> Option<u32> {
    value?.as_u64()?.try_into().ok()
}

fn topology(smp: Option<&Value>) -> Topology {
    let get = |name| number(smp.and_then(|smp| smp.get(name))).unwrap_or(1);
    Topology {
        sockets: get("sockets"),
        dies: get("dies"),
        modules: get("modules"),
        cores: get("cores"),
        threads: get("threads"),
        most: get("maxcpus"),
    }
}

fn place(props: Option<&Value>) -> ProcessorPlace {
    let get = |name| number(props.and_then(|props| props.get(name)));
    ProcessorPlace {
        socket: get("socket-id").unwrap_or(0),
        die: get("die-id").unwrap_or(0),
        module: get("module-id").unwrap_or(0),
        core: get("core-id").unwrap_or(0),
        thread: get("thread-id").unwrap_or(0),
        node: get("node-id"),
    }
}

/// Whether KVM can run a guest's time-stamp counter at another frequency than
/// this host's.
fn host_scales_tsc() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut words = cpuinfo.split_whitespace();
    // Intel's and AMD's.
    words.any(|word| matches!(word, "tsc_scaling" | "tsc_scale"))
}
