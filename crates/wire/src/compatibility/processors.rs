//! Whether a guest would notice that its processors are others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::cpuid_names;
use super::guest::Mismatch;
use crate::messages::{CpuidRegister, CpuidWord, Place, Processor, ProcessorKind, Processors};

/// Frequencies of time-stamp counters that are closer than this count as the
/// same, in parts per million: the kernel's `tsc_tolerance_ppm`, within which
/// KVM does not scale. Two boots of one host measure differently by as much.
const TSC_TOLERANCE_PPM: u64 = 250;

/// Most names in a message.
const SHOWN: usize = 48;

/// Most groups of processors in a message.
const GROUPS: usize = 4;

/// Most values that are others in a message.
const CHANGES: usize = 16;

impl Processors {
    /// Whether the state of these (the source's) processors can be loaded in
    /// `destination` at all: the same accelerator, and the same processors
    /// plugged in, with the same APIC IDs.
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
                source_has: list(source),
                destination_has: list(destination),
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

    /// What the guest could notice if these (the source's) processors became
    /// `destination`'s. Features that the destination has in addition count,
    /// too: the guest, and each program in it, asks with CPUID when it likes,
    /// and would find something else than its other parts have found.
    #[must_use]
    pub fn differences(&self, destination: &Self) -> ProcessorDifferences {
        let mut found = ProcessorDifferences::default();
        let (ours, theirs) = (self.topology, destination.topology);
        for (what, ours, theirs) in [
            ("number of sockets", ours.sockets, theirs.sockets),
            ("number of dies", ours.dies, theirs.dies),
            ("number of modules", ours.modules, theirs.modules),
            ("number of cores", ours.cores, theirs.cores),
            ("number of threads", ours.threads, theirs.threads),
            ("maxcpus", ours.most, theirs.most),
        ] {
            if ours != theirs {
                let (ours, theirs) = (ours.to_string(), theirs.to_string());
                found.machine.push(Changed::new(what, &ours, &theirs));
            }
        }
        let mut kinds: BTreeMap<(u16, u16), Vec<u32>> = BTreeMap::new();
        let mut own: BTreeMap<Vec<Changed>, Vec<u32>> = BTreeMap::new();
        // In another topology the places are others, too; that tells nothing more.
        let places = self.topology == destination.topology;
        for (ours, theirs) in self.processors.iter().zip(&destination.processors) {
            let pair = kinds.entry((ours.kind, theirs.kind)).or_default();
            pair.push(ours.index);
            let mut changed = Vec::new();
            if places {
                changed.extend(changed_places(ours.place, theirs.place));
            }
            if !destination.tsc_scaling && !same_clock(ours.tsc_hz, theirs.tsc_hz) {
                let (ours, theirs) = (ours.tsc_hz.to_string(), theirs.tsc_hz.to_string());
                changed.push(Changed::new("tsc-frequency", &ours, &theirs));
            }
            if !changed.is_empty() {
                own.entry(changed).or_default().push(ours.index);
            }
        }
        for ((ours, theirs), indices) in kinds {
            found.add(
                indices,
                Kinds::compare(&self.kind(ours), &destination.kind(theirs)),
            );
        }
        let mut own: Vec<_> = own.into_iter().collect();
        own.sort_by_key(|(_, indices)| indices.first().copied());
        found
            .groups
            .extend(own.into_iter().map(|(changed, indices)| {
                let kinds = Kinds {
                    changed,
                    ..Kinds::default()
                };
                (indices, kinds)
            }));
        found.processors = self.processors.len();
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

fn same_clock(ours: u64, theirs: u64) -> bool {
    let apart = u128::from(ours.abs_diff(theirs)) * 1_000_000;
    apart <= u128::from(ours) * u128::from(TSC_TOLERANCE_PPM)
}

fn changed_places(ours: Place, theirs: Place) -> impl Iterator<Item = Changed> {
    let node = |place: Place| match place.node {
        Some(node) => node.to_string(),
        None => "none".to_owned(),
    };
    let all = [
        (
            "socket-id",
            ours.socket.to_string(),
            theirs.socket.to_string(),
        ),
        ("die-id", ours.die.to_string(), theirs.die.to_string()),
        (
            "module-id",
            ours.module.to_string(),
            theirs.module.to_string(),
        ),
        ("core-id", ours.core.to_string(), theirs.core.to_string()),
        (
            "thread-id",
            ours.thread.to_string(),
            theirs.thread.to_string(),
        ),
        ("node-id", node(ours), node(theirs)),
    ];
    let differ = all.into_iter().filter(|(_, ours, theirs)| ours != theirs);
    differ.map(|(what, ours, theirs)| Changed::new(what, &ours, &theirs))
}

/// What a guest could notice of its processors. Its text says what, in the
/// hypervisor's names; the most it says of many differences is how many more
/// there are. (Names and values are the peer's, and as long as these like.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorDifferences {
    /// How many processors there are.
    processors: usize,
    /// In the machine as a whole.
    machine: Vec<Changed>,
    /// Differences, and the processors that have them.
    groups: Vec<(Vec<u32>, Kinds)>,
}

impl ProcessorDifferences {
    /// Whether the guest could notice nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machine.is_empty() && self.groups.is_empty()
    }

    fn add(&mut self, indices: Vec<u32>, kinds: Kinds) {
        if kinds == Kinds::default() {
            return;
        }
        match self.groups.iter_mut().find(|(_, known)| *known == kinds) {
            Some((known, _)) => {
                known.extend(indices);
                known.sort_unstable();
            }
            None => self.groups.push((indices, kinds)),
        }
    }
}

impl fmt::Display for ProcessorDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> = self.machine.iter().map(ToString::to_string).collect();
        let mut changes = CHANGES.saturating_sub(parts.len());
        for (indices, kinds) in self.groups.iter().take(GROUPS) {
            let which = if indices.len() == self.processors {
                "processors".to_owned()
            } else {
                format!("processors with the index {}", list(spans(indices)))
            };
            kinds.tell(&which, &mut changes, &mut parts);
        }
        let rest = self.groups.iter().skip(GROUPS);
        let more: BTreeSet<u32> = rest.flat_map(|(indices, _)| indices).copied().collect();
        if !more.is_empty() {
            parts.push(format!("and {} more processors differ", more.len()));
        }
        f.write_str(&parts.join("; "))
    }
}

/// Sorted numbers for a message: `0, 2 to 7`.
fn spans(numbers: &[u32]) -> Vec<String> {
    let follow = |one: &u32, next: &u32| one.checked_add(1) == Some(*next);
    let spans = numbers.chunk_by(follow).filter_map(|span| match span {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first} to {last}")),
    });
    spans.collect()
}

/// A value that is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Changed {
    what: String,
    source: String,
    destination: String,
}

impl Changed {
    fn new(what: &str, source: &str, destination: &str) -> Self {
        Self {
            what: what.to_owned(),
            source: source.to_owned(),
            destination: destination.to_owned(),
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the {} is {} at the source but {} at the destination",
            self.what, self.source, self.destination
        )
    }
}

/// How two kinds of processors differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kinds {
    /// Features that only the source has.
    lacking: Vec<String>,
    /// Those of them that the destination was asked for in vain.
    unavailable: Vec<String>,
    /// Features that only the destination has.
    added: Vec<String>,
    /// Other properties.
    changed: Vec<Changed>,
}

impl Kinds {
    fn compare(source: &ProcessorKind, destination: &ProcessorKind) -> Self {
        let mut found = Self::default();
        let ours = words(&source.features);
        let theirs = words(&destination.features);
        let filtered = words(&destination.filtered);
        let all: BTreeSet<_> = ours.keys().chain(theirs.keys()).copied().collect();
        for word in all {
            let bits = |words: &Words| words.get(&word).copied().unwrap_or(0);
            let (ours, theirs, filtered) = (bits(&ours), bits(&theirs), bits(&filtered));
            for bit in (0..32).filter(|bit| (ours ^ theirs) >> bit & 1 == 1) {
                let name = flag(word, bit);
                if theirs >> bit & 1 == 1 {
                    put(&mut found.added, name);
                } else {
                    if filtered >> bit & 1 == 1 {
                        put(&mut found.unavailable, name.clone());
                    }
                    put(&mut found.lacking, name);
                }
            }
        }
        found.compare_settings(source, destination);
        found
    }

    fn compare_settings(&mut self, source: &ProcessorKind, destination: &ProcessorKind) {
        let (ours, theirs) = (settings(source), settings(destination));
        let all: BTreeSet<_> = ours.keys().chain(theirs.keys()).copied().collect();
        for name in all {
            match (ours.get(name).copied(), theirs.get(name).copied()) {
                (ours, theirs) if ours == theirs => {}
                (Some("on"), Some("off") | None) => put(&mut self.lacking, name.to_owned()),
                (Some("off") | None, Some("on")) => put(&mut self.added, name.to_owned()),
                (Some(ours), Some(theirs)) => self.changed.push(Changed::new(name, ours, theirs)),
                _ => {}
            }
        }
    }

    /// Adds what a message says of `which` processors, with at most `changes`
    /// values, which it counts down.
    fn tell(&self, which: &str, changes: &mut usize, parts: &mut Vec<String>) {
        if !self.lacking.is_empty() {
            let mut text = format!("the destination's {which} lack {}", list(&self.lacking));
            if !self.unavailable.is_empty() {
                let names = list(&self.unavailable);
                text += &format!(" (its host or accelerator cannot provide {names})");
            }
            parts.push(text);
        }
        if !self.added.is_empty() {
            parts.push(format!(
                "the destination's {which} have {} in addition",
                list(&self.added)
            ));
        }
        let of = if which == "processors" {
            String::new()
        } else {
            format!(" ({which})")
        };
        let shown = self.changed.len().min(*changes);
        *changes -= shown;
        let all = self.changed.iter().take(shown);
        parts.extend(all.map(|changed| format!("{changed}{of}")));
        match self.changed.len() - shown {
            0 => {}
            1 => parts.push(format!("and 1 more value{of}")),
            more => parts.push(format!("and {more} more values{of}")),
        }
    }
}

type Word = (u32, u32, CpuidRegister);
type Words = BTreeMap<Word, u32>;

fn words(words: &[CpuidWord]) -> Words {
    let each = words.iter();
    each.map(|word| ((word.leaf, word.subleaf, word.register), word.bits))
        .collect()
}

fn settings(kind: &ProcessorKind) -> BTreeMap<&str, &str> {
    let each = kind.settings.iter();
    each.map(|setting| (&*setting.name, &*setting.value))
        .collect()
}

/// A flag's name, or its place as QEMU writes it.
fn flag((leaf, subleaf, register): Word, bit: u32) -> String {
    match cpuid_names::name(leaf, subleaf, register, bit) {
        Some(name) => name.to_owned(),
        None => {
            let register = format!("{register:?}").to_uppercase();
            format!("CPUID[eax={leaf:X}h,ecx={subleaf:X}h].{register}[bit {bit}]")
        }
    }
}

/// Some flags stand in two words.
fn put(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// Names for a message: not more than a person reads.
fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<T> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ProcessorSetting, Topology};

    fn setting(name: &str, value: &str) -> ProcessorSetting {
        ProcessorSetting {
            name: name.into(),
            value: value.into(),
        }
    }

    fn word(leaf: u32, register: CpuidRegister, bits: u32) -> CpuidWord {
        CpuidWord {
            leaf,
            subleaf: 0,
            register,
            bits,
        }
    }

    fn guest() -> Processors {
        Processors {
            accelerator: "tcg".into(),
            tsc_scaling: false,
            topology: Topology {
                cores: 2,
                most: 2,
                ..Topology::default()
            },
            kinds: vec![ProcessorKind {
                features: vec![
                    word(1, CpuidRegister::Ecx, 1 << 20 | 1),
                    word(7, CpuidRegister::Ebx, 1 << 5),
                ],
                filtered: vec![],
                settings: vec![setting("family", "15"), setting("rdctl-no", "on")],
            }],
            processors: (0..2)
                .map(|index| Processor {
                    index,
                    kind: 0,
                    apic_id: index,
                    tsc_hz: 2_000_000_000,
                    place: Place {
                        core: index,
                        ..Place::default()
                    },
                })
                .collect(),
        }
    }

    fn differs(change: impl FnOnce(&mut Processors)) -> String {
        let mut other = guest();
        change(&mut other);
        assert_eq!(guest().loadable_in(&other), Ok(()));
        let differences = guest().differences(&other);
        assert_eq!(differences.is_empty(), differences.to_string().is_empty());
        differences.to_string()
    }

    #[test]
    fn missing_and_added_features_are_named() {
        assert_eq!(differs(|_| {}), "");
        assert_eq!(
            differs(|guest| guest.kinds[0].features.clear()),
            "the destination's processors lack pni, sse4.2, avx2"
        );
        assert_eq!(
            differs(|guest| {
                guest.kinds[0].features[1].bits = 1 << 3 | 1 << 11;
                guest.kinds[0].filtered = vec![word(7, CpuidRegister::Ebx, 1 << 5 | 1 << 9)];
            }),
            "the destination's processors lack avx2 (its host or accelerator cannot provide \
             avx2); the destination's processors have bmi1, rtm in addition"
        );
        assert_eq!(
            differs(|guest| guest.kinds[0].settings.truncate(1)),
            "the destination's processors lack rdctl-no"
        );
        // A word that only one side knows.
        assert_eq!(
            differs(|guest| {
                let words = &mut guest.kinds[0].features;
                words.push(word(0x24, CpuidRegister::Ebx, 0));
                words.push(word(0x77, CpuidRegister::Edx, 4));
            }),
            "the destination's processors have CPUID[eax=77h,ecx=0h].EDX[bit 2] in addition"
        );
    }

    #[test]
    fn flags_that_amd_repeats_are_named_once() {
        assert_eq!(
            differs(|guest| {
                let words = &mut guest.kinds[0].features;
                words.push(word(1, CpuidRegister::Edx, 1));
                words.push(word(0x8000_0001, CpuidRegister::Edx, 1));
            }),
            "the destination's processors have fpu in addition"
        );
    }

    #[test]
    fn properties_are_compared_where_both_sides_have_them() {
        assert_eq!(
            differs(|guest| guest.kinds[0].settings[0].value = "6".into()),
            "the family is 15 at the source but 6 at the destination"
        );
        assert_eq!(
            differs(|guest| guest.kinds[0].settings.push(setting("phys-bits", "40"))),
            ""
        );
    }

    #[test]
    fn processors_that_differ_from_the_others_are_named() {
        assert_eq!(
            differs(|guest| {
                let mut other = guest.kinds[0].clone();
                other.features[1].bits = 0;
                other.settings[0].value = "6".into();
                guest.kinds.push(other);
                guest.processors[1].kind = 1;
            }),
            "the destination's processors with the index 1 lack avx2; the family is 15 at the \
             source but 6 at the destination (processors with the index 1)"
        );
        // A peer that names a kind which it does not describe.
        assert!(differs(|guest| guest.processors[1].kind = 7).contains("index 1 lack pni"));
    }

    #[test]
    fn another_topology_is_noticed() {
        assert_eq!(
            differs(|guest| (guest.topology.cores, guest.topology.sockets) = (1, 2)),
            "the number of sockets is 1 at the source but 2 at the destination; the number of \
             cores is 2 at the source but 1 at the destination"
        );
        assert_eq!(
            differs(|guest| guest.processors[1].place.node = Some(1)),
            "the node-id is none at the source but 1 at the destination (processors with the \
             index 1)"
        );
    }

    #[test]
    fn clocks_that_nearly_agree_are_the_same() {
        let with = |hz, scaling| {
            differs(|guest| {
                guest.tsc_scaling = scaling;
                for processor in &mut guest.processors {
                    processor.tsc_hz = hz;
                }
            })
        };
        assert_eq!(with(2_000_500_000, false), "");
        assert_eq!(
            with(2_000_500_001, false),
            "the tsc-frequency is 2000000000 at the source but 2000500001 at the destination"
        );
        assert_eq!(with(3_000_000_000, true), "", "it can be given the old one");
        assert!(!with(0, false).is_empty());
    }

    #[test]
    fn what_cannot_be_loaded_is_told_apart() {
        let refused = |change: fn(&mut Processors)| {
            let mut other = guest();
            change(&mut other);
            guest().loadable_in(&other).unwrap_err().to_string()
        };
        for (text, what) in [
            (
                refused(|guest| guest.accelerator = "kvm".into()),
                "the accelerator is \"tcg\" at the source but \"kvm\" at the destination",
            ),
            (
                refused(|guest| guest.processors.truncate(1)),
                "the list of virtual CPUs is \"0, 1\" at the source but \"0\" at the destination",
            ),
            (
                refused(|guest| guest.processors[1].apic_id = 2),
                "the list of the virtual CPUs' APIC IDs is \"0, 1\" at the source but \"0, 2\" at \
                 the destination",
            ),
        ] {
            assert!(text.contains(what), "{text}");
        }
    }

    fn with(processors: u32) -> Processors {
        let mut guest = guest();
        guest.topology.cores = processors;
        let one = guest.processors[0];
        guest.processors = (0..processors)
            .map(|index| Processor {
                index,
                place: Place {
                    core: index,
                    ..Place::default()
                },
                ..one
            })
            .collect();
        guest
    }

    #[test]
    fn places_do_not_repeat_what_the_topology_says() {
        let source = with(255);
        let mut other = source.clone();
        (other.topology.sockets, other.topology.cores) = (255, 1);
        for processor in &mut other.processors {
            (processor.place.socket, processor.place.core) = (processor.place.core, 0);
        }
        assert_eq!(
            source.differences(&other).to_string(),
            "the number of sockets is 1 at the source but 255 at the destination; the number of \
             cores is 255 at the source but 1 at the destination"
        );
    }

    #[test]
    fn many_groups_and_changes_are_counted() {
        let source = with(255);
        let mut other = source.clone();
        for processor in &mut other.processors {
            processor.place.node = Some(processor.index);
        }
        let text = source.differences(&other).to_string();
        assert!(
            text.contains("none at the source but 3 at the destination (processors with the"),
            "{text}"
        );
        assert!(!text.contains("but 4 at"), "{text}");
        assert!(text.ends_with("; and 251 more processors differ"), "{text}");
        // One group, with an index in a span and one outside.
        let mut other = source.clone();
        for processor in &mut other.processors {
            if processor.index != 1 {
                processor.place.node = Some(7);
            }
        }
        let text = source.differences(&other).to_string();
        assert!(text.ends_with("index 0, 2 to 254)"), "{text}");
        let setting = |n, value| setting(&format!("x{n:03}"), value);
        let mut source = source;
        source.kinds[0].settings = (0..100).map(|n| setting(n, "1")).collect();
        let mut other = source.clone();
        other.kinds[0].settings = (0..100).map(|n| setting(n, "2")).collect();
        let text = source.differences(&other).to_string();
        assert!(text.contains("the x015 is 1"), "{text}");
        assert!(!text.contains("the x016 is 1"), "{text}");
        assert!(text.ends_with("; and 84 more values"), "{text}");
    }

    #[test]
    fn long_lists_are_cut() {
        let text = differs(|guest| {
            for leaf in 0x100..0x104 {
                let words = &mut guest.kinds[0].features;
                words.push(word(leaf, CpuidRegister::Eax, u32::MAX));
            }
        });
        assert!(text.ends_with(" and 80 more in addition"), "{text}");
        assert!(text.len() < crate::MAX_TEXT, "{}", text.len());
    }
}
