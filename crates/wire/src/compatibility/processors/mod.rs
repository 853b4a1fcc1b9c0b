//! Whether a guest can notice that the destination gives it other processors.

mod cpuid_names;
mod message;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::guest::Mismatch;
use crate::messages::{
    CpuidRegister, CpuidWord, Processor, ProcessorKind, ProcessorPlace, Processors,
};

/// Two time-stamp counter frequencies that differ by at most this many parts
/// per million count as equal. It is the kernel's `tsc_tolerance_ppm`, within
/// which KVM does not scale. Two boots of one host measure frequencies that
/// differ by as much.
const TSC_TOLERANCE_PPM: u64 = 250;

impl Processors {
    /// Checks that the state of the source's processors, these, can be loaded
    /// in `destination`: the same accelerator, and the same processors plugged
    /// in, with the same APIC IDs.
    ///
    /// # Errors
    ///
    /// The first difference found.
    pub fn loadable_in(&self, destination: &Self) -> Result<(), Mismatch> {
        let same = |what, source: &[String], destination: &[String]| {
            if source == destination {
                return Ok(());
            }
            Err(Mismatch::Setting {
                what,
                source_has: message::list(source),
                destination_has: message::list(destination),
            })
        };
        let accelerator = |processors: &Self| [processors.accelerator.to_string()];
        same("accelerator", &accelerator(self), &accelerator(destination))?;
        let indices = |processors: &Self| processors.each(|processor| processor.index);
        same(
            "list of virtual CPUs",
            &indices(self),
            &indices(destination),
        )?;
        let apic_ids = |processors: &Self| processors.each(|processor| processor.apic_id);
        same(
            "list of the virtual CPUs' APIC IDs",
            &apic_ids(self),
            &apic_ids(destination),
        )
    }

    /// Returns what the guest can notice if the source's processors, these,
    /// become `destination`'s. Features that only the destination has count
    /// too: the guest, and each program in it, executes CPUID at any time, and
    /// the result must not change.
    #[must_use]
    pub fn differences(&self, destination: &Self) -> ProcessorDifferences {
        let mut found = ProcessorDifferences {
            processors: self.processors.len(),
            machine: changed_topology(self, destination),
            groups: Vec::new(),
        };
        let mut kinds: BTreeMap<(u16, u16), Vec<u32>> = BTreeMap::new();
        let mut single: BTreeMap<Vec<ChangedValue>, Vec<u32>> = BTreeMap::new();
        // If the topology differs, so do the places. The message names the
        // topology only.
        let same_topology = self.topology == destination.topology;
        for (source, there) in self.processors.iter().zip(&destination.processors) {
            let pair = kinds.entry((source.kind, there.kind)).or_default();
            pair.push(source.index);
            let mut changed = Vec::new();
            if same_topology {
                changed.extend(changed_places(source.place, there.place));
            }
            if !destination.tsc_scaling && !same_frequency(source.tsc_hz, there.tsc_hz) {
                changed.push(ChangedValue::new(
                    "tsc-frequency",
                    source.tsc_hz,
                    there.tsc_hz,
                ));
            }
            if !changed.is_empty() {
                single.entry(changed).or_default().push(source.index);
            }
        }
        for ((source, there), indices) in kinds {
            let differences =
                KindDifferences::between(&self.kind(source), &destination.kind(there));
            found.add(indices, differences);
        }
        let mut single: Vec<_> = single.into_iter().collect();
        single.sort_by_key(|(_, indices)| indices.first().copied());
        for (changed, indices) in single {
            let differences = KindDifferences {
                changed,
                ..KindDifferences::default()
            };
            found.groups.push((indices, differences));
        }
        found
    }

    fn each(&self, number: impl Fn(&Processor) -> u32) -> Vec<String> {
        let all = self.processors.iter();
        all.map(|processor| number(processor).to_string()).collect()
    }

    fn kind(&self, kind: u16) -> ProcessorKind {
        let kind = self.kinds.get(usize::from(kind));
        kind.cloned().unwrap_or_default()
    }
}

fn changed_topology(source: &Processors, destination: &Processors) -> Vec<ChangedValue> {
    let (source, destination) = (source.topology, destination.topology);
    let all = [
        ("number of sockets", source.sockets, destination.sockets),
        ("number of dies", source.dies, destination.dies),
        ("number of modules", source.modules, destination.modules),
        ("number of cores", source.cores, destination.cores),
        ("number of threads", source.threads, destination.threads),
        ("maxcpus", source.most, destination.most),
    ];
    let differ = all.into_iter().filter(|(_, one, other)| one != other);
    differ
        .map(|(what, one, other)| ChangedValue::new(what, one, other))
        .collect()
}

fn changed_places(
    source: ProcessorPlace,
    destination: ProcessorPlace,
) -> impl Iterator<Item = ChangedValue> {
    let node = |place: ProcessorPlace| match place.node {
        Some(node) => node.to_string(),
        None => "none".to_owned(),
    };
    let numbers = [
        ("socket-id", source.socket, destination.socket),
        ("die-id", source.die, destination.die),
        ("module-id", source.module, destination.module),
        ("core-id", source.core, destination.core),
        ("thread-id", source.thread, destination.thread),
    ];
    let numbers = numbers.into_iter().filter(|(_, one, other)| one != other);
    let node =
        (source.node != destination.node).then(|| ("node-id", node(source), node(destination)));
    numbers
        .map(|(what, one, other)| ChangedValue::new(what, one, other))
        .chain(
            node.into_iter()
                .map(|(what, one, other)| ChangedValue::new(what, one, other)),
        )
}

fn same_frequency(source: u64, destination: u64) -> bool {
    let difference = u128::from(source.abs_diff(destination)) * 1_000_000;
    difference <= u128::from(source) * u128::from(TSC_TOLERANCE_PPM)
}

/// What a guest can notice of its processors after the move. Its text names
/// each difference in the hypervisor's terms. Of many differences the text
/// gives only the number. (Names and values come from the peer and can be
/// long.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorDifferences {
    /// The number of processors.
    processors: usize,
    /// Differences of the machine as a whole.
    machine: Vec<ChangedValue>,
    /// The indices of processors, and how these processors differ.
    groups: Vec<(Vec<u32>, KindDifferences)>,
}

impl ProcessorDifferences {
    /// Returns whether the guest can notice nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machine.is_empty() && self.groups.is_empty()
    }

    fn add(&mut self, indices: Vec<u32>, differences: KindDifferences) {
        if differences == KindDifferences::default() {
            return;
        }
        let known = self.groups.iter_mut();
        match known.into_iter().find(|(_, known)| *known == differences) {
            Some((known, _)) => {
                known.extend(indices);
                known.sort_unstable();
            }
            None => self.groups.push((indices, differences)),
        }
    }
}

/// A value that differs between the two sides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChangedValue {
    what: String,
    source: String,
    destination: String,
}

impl ChangedValue {
    fn new(what: &str, source: impl ToString, destination: impl ToString) -> Self {
        Self {
            what: what.to_owned(),
            source: source.to_string(),
            destination: destination.to_string(),
        }
    }
}

/// How two kinds of processors differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KindDifferences {
    /// Features that only the source has.
    missing: Vec<String>,
    /// Those of them that the destination requested, but that its host or
    /// accelerator cannot provide.
    unavailable: Vec<String>,
    /// Features that only the destination has.
    added: Vec<String>,
    /// Other properties.
    changed: Vec<ChangedValue>,
}

impl KindDifferences {
    fn between(source: &ProcessorKind, destination: &ProcessorKind) -> Self {
        let mut found = Self::default();
        let at_source = flags(&source.features);
        let at_destination = flags(&destination.features);
        let filtered = flags(&destination.filtered);
        let original = |flags: &FlagWords| {
            let word = flags.get(&cpuid_names::REPEATED);
            word.copied().unwrap_or(0)
        };
        let originals = original(&at_source) ^ original(&at_destination);
        let (source_has, destination_has) = (settings(source), settings(destination));
        let vendors = (source_has.get("vendor"), destination_has.get("vendor"));
        let other_vendor = matches!(vendors, (Some(one), Some(other)) if one != other);
        let all: BTreeSet<_> = at_source
            .keys()
            .chain(at_destination.keys())
            .copied()
            .collect();
        for word in all {
            let bits = |flags: &FlagWords| flags.get(&word).copied().unwrap_or(0);
            let is_set = |flags: &FlagWords, bit: u32| bits(flags) >> bit & 1 == 1;
            let differ = bits(&at_source) ^ bits(&at_destination);
            for bit in (0..32).filter(|bit| differ >> bit & 1 == 1) {
                let name = match cpuid_names::repeated(word.0, word.1, word.2, bit) {
                    // The vendor, which is named, says whether there are such bits; or the flag
                    // itself is named.
                    Some(_) if other_vendor || originals >> bit & 1 == 1 => continue,
                    Some(name) => format!("{} (repeats {name})", position(word, bit)),
                    None => flag_name(word, bit),
                };
                if is_set(&at_destination, bit) {
                    add_once(&mut found.added, name);
                } else {
                    if is_set(&filtered, bit) {
                        add_once(&mut found.unavailable, name.clone());
                    }
                    add_once(&mut found.missing, name);
                }
            }
        }
        found.compare_settings(source, destination);
        found
    }

    fn compare_settings(&mut self, source: &ProcessorKind, destination: &ProcessorKind) {
        let (source, destination) = (settings(source), settings(destination));
        let all: BTreeSet<_> = source.keys().chain(destination.keys()).copied().collect();
        for name in all {
            match (source.get(name).copied(), destination.get(name).copied()) {
                (one, other) if one == other => {}
                (Some("on"), Some("off") | None) => add_once(&mut self.missing, name.to_owned()),
                (Some("off") | None, Some("on")) => add_once(&mut self.added, name.to_owned()),
                (Some(one), Some(other)) => {
                    self.changed.push(ChangedValue::new(name, one, other));
                }
                _ => {}
            }
        }
    }
}

/// Leaf, subleaf and register of 32 feature flags.
type FlagWord = (u32, u32, CpuidRegister);
type FlagWords = BTreeMap<FlagWord, u32>;

fn flags(words: &[CpuidWord]) -> FlagWords {
    let each = words.iter();
    each.map(|word| ((word.leaf, word.subleaf, word.register), word.bits))
        .collect()
}

fn settings(kind: &ProcessorKind) -> BTreeMap<&str, &str> {
    let each = kind.settings.iter();
    each.map(|setting| (&*setting.name, &*setting.value))
        .collect()
}

/// The name of a flag; for one without a name its position, as QEMU writes it.
fn flag_name((leaf, subleaf, register): FlagWord, bit: u32) -> String {
    match cpuid_names::name(leaf, subleaf, register, bit) {
        Some(name) => name.to_owned(),
        None => position((leaf, subleaf, register), bit),
    }
}

fn position((leaf, subleaf, register): FlagWord, bit: u32) -> String {
    let register = format!("{register:?}").to_uppercase();
    format!("CPUID[eax={leaf:X}h,ecx={subleaf:X}h].{register}[bit {bit}]")
}

/// Adds a name that is not in the list yet: some flags are in two words.
fn add_once(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}
