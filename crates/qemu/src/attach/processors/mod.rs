//! Reads the guest's virtual processors from QEMU's object tree.
//!
//! QEMU's options show what was requested; the processors' objects show the result on
//! this host, in this version. Each answer takes QEMU about 0.4 ms, because it reads
//! commands byte by byte, and a processor has 500 properties. So the flags are read as
//! whole words (`feature-words`), and other properties only if a guest can notice them.
//! Processors of `-smp` have the same properties, so each of them is queried only for
//! its flags and for its own identifiers.

pub(crate) mod asynchronous_faults;
mod features;
mod json_number;
mod settings;
#[cfg(test)]
mod tests;

use std::fs;

use hikkoshi_wire::{
    Processor, ProcessorKind, ProcessorPlace, ProcessorSetting, Processors, Topology,
};
use serde_json::{Value, json};

use self::features::{implied_by_topology, words};
use self::json_number::number;
use self::settings::settings;
use crate::qmp::accelerator::uses_kvm;
use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// Reads the guest's processors.
///
/// # Errors
///
/// If QEMU does not answer, or gives an unexpected answer.
pub(crate) fn read(client: &mut Client) -> Result<Processors, QmpError> {
    let kvm = uses_kvm(client)?;
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
    // The settings of all processors of -smp.
    let mut common: Option<Vec<ProcessorSetting>> = None;
    for entry in entries {
        let unexpected = || QmpError::unexpected("query-cpus-fast", entry.to_string());
        let path = entry.get("qom-path").and_then(Value::as_str);
        let path = path.ok_or_else(unexpected)?;
        let index = number(entry.get("cpu-index")).ok_or_else(unexpected)?;
        let mut kind = ProcessorKind {
            features: words(property(client, path, "feature-words")?.as_ref()),
            filtered: words(property(client, path, "filtered-features")?.as_ref()),
            settings: Vec::new(),
        };
        let from_smp = path.starts_with("/machine/unattached/");
        kind.settings = match &common {
            Some(common) if from_smp => common.clone(),
            _ => settings(client, path, &kind, kvm)?,
        };
        if from_smp && common.is_none() {
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
            // An architecture without APIC ids.
            apic_id: number(apic_id.as_ref()).unwrap_or(index),
            tsc_hz: tsc_hz.as_ref().and_then(Value::as_u64).unwrap_or(0),
            place: place(entry.get("props")),
        });
    }
    found.processors.sort_by_key(|processor| processor.index);
    Ok(found)
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

/// Whether KVM can scale a guest's time-stamp counter to another frequency than this
/// host's.
fn host_scales_tsc() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut words = cpuinfo.split_whitespace();
    // Intel's and AMD's.
    words.any(|word| matches!(word, "tsc_scaling" | "tsc_scale"))
}
