//! Two hosts' processors compared, and the message about their differences.

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
                place: ProcessorPlace {
                    core: index,
                    ..ProcessorPlace::default()
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
    // A word that only one side has.
    assert_eq!(
        differs(|guest| {
            let words = &mut guest.kinds[0].features;
            words.push(word(0x24, CpuidRegister::Ebx, 0));
            words.push(word(0x77, CpuidRegister::Edx, 4));
        }),
        "the destination's processors have CPUID[eax=77h,ecx=0h].EDX[bit 2] in addition"
    );
}

/// An Intel processor has `fpu`, and not AMD's repetition of it.
#[test]
fn what_amd_repeats_is_not_missing_from_another_vendor() {
    let kind = |vendor: &str, repeated: u32| ProcessorKind {
        features: vec![
            word(1, CpuidRegister::Edx, 1),
            word(0x8000_0001, CpuidRegister::Edx, repeated | 1 << 29),
        ],
        filtered: vec![],
        settings: vec![setting("vendor", vendor)],
    };
    let amd = kind("AuthenticAMD", 1);
    let intel = KindDifferences::between(&amd, &kind("GenuineIntel", 0));
    assert!(
        intel.missing.is_empty() && intel.added.is_empty(),
        "{intel:?}"
    );
    assert_eq!(intel.changed.len(), 1, "the vendor");
    // With the same vendor it is another bit.
    let other = KindDifferences::between(&amd, &kind("AuthenticAMD", 0));
    let name = "CPUID[eax=80000001h,ecx=0h].EDX[bit 0] (repeats fpu)";
    assert_eq!(other.missing, [name]);
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
fn properties_are_compared_if_both_sides_have_them() {
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
    // A faulty peer: it refers to a kind that it does not describe.
    assert!(differs(|guest| guest.processors[1].kind = 7).contains("index 1 lack pni"));
}

#[test]
fn another_topology_is_a_difference() {
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
fn frequencies_within_the_tolerance_are_equal() {
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
    assert_eq!(with(3_000_000_000, true), "", "the destination can scale");
    assert!(!with(0, false).is_empty());
}

#[test]
fn state_that_cannot_be_loaded_is_refused() {
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
            place: ProcessorPlace {
                core: index,
                ..ProcessorPlace::default()
            },
            ..one
        })
        .collect();
    guest
}

#[test]
fn places_are_omitted_if_the_topology_differs() {
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
fn many_groups_and_values_are_counted() {
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
