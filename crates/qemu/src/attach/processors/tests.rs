//! Tests of what is read from QEMU's properties.
#![allow(clippy::unwrap_used)] // A failure is the message.

use hikkoshi_wire::{
    CpuidRegister, CpuidWord, GuestDescription, OfferedGuest, ProcessorKind, Processors,
    ToDestination, Topology, decode_control, encode_control,
};
use serde_json::json;

use super::features::{CMP_LEGACY, HT, has, implied_by_topology, words};
use super::settings::{caches_of, is_noticeable, setting};

fn word(leaf: u32, register: CpuidRegister, bits: u32) -> CpuidWord {
    CpuidWord {
        leaf,
        subleaf: 0,
        register,
        bits,
    }
}

#[test]
fn feature_words_of_both_versions() {
    let answer = json!([
        {"cpuid-register": "EBX", "cpuid-input-ecx": 0, "cpuid-input-eax": 7, "features": 32},
        {"cpuid-register": "EAX", "cpuid-input-eax": 1_073_741_825, "features": 0},
        {"cpuid-register": "EDX", "cpuid-input-eax": 1, "features": 126_614_525},
        {"cpuid-register": "EXX", "cpuid-input-eax": 1, "features": 1},
        {"cpuid-register": "EDX"},
    ]);
    assert_eq!(
        words(Some(&answer)),
        [
            word(1, CpuidRegister::Edx, 126_614_525),
            word(7, CpuidRegister::Ebx, 32)
        ]
    );
    assert_eq!(words(None), []);
}

#[test]
fn what_the_topology_implies_is_the_same_in_every_version() {
    let kind = |edx, vendor: &str| ProcessorKind {
        features: vec![
            word(1, CpuidRegister::Edx, edx),
            word(0x8000_0001, CpuidRegister::Ecx, 1),
        ],
        filtered: vec![],
        settings: vec![setting("vendor", &json!(vendor))],
    };
    let implied = |cores, edx, vendor| {
        let mut kind = kind(edx, vendor);
        let topology = Topology {
            cores,
            ..Topology::default()
        };
        implied_by_topology(&mut kind, topology);
        (has(&kind, HT), has(&kind, CMP_LEGACY))
    };
    assert_eq!(implied(1, 1, "AuthenticAMD"), (false, false));
    assert_eq!(implied(1, 1 << 28, "AuthenticAMD"), (true, false));
    assert_eq!(implied(2, 1, "AuthenticAMD"), (true, true));
    assert_eq!(implied(2, 1, "GenuineIntel"), (true, false));
}

#[test]
fn values_are_what_a_message_can_carry() {
    let value = |value| setting("x", &value).value.to_string();
    assert_eq!(value(json!(true)), "on");
    assert_eq!(value(json!(40)), "40");
    assert_eq!(value(json!("QEMU CPU  ")), "QEMU CPU  ");
    assert_eq!(value(json!("a\u{1b}[2J")), "a?[2J");
    for odd in ["a\u{2028}b", "a\u{202e}b", "a\u{200f}b", "a\nb"] {
        let guest = Processors {
            kinds: vec![ProcessorKind {
                settings: vec![setting("model-id", &json!(odd))],
                ..ProcessorKind::default()
            }],
            ..Processors::default()
        };
        let description = GuestDescription {
            machine: "m".into(),
            architecture: "x86_64".into(),
            cpus: 1,
            cpu_model: "c".into(),
            hypervisor: "h".into(),
            running: true,
            blocks: Vec::new(),
        };
        let mut offered = OfferedGuest::from_description(description);
        offered.processors = guest;
        let message = ToDestination::Compare {
            guest: Box::new(offered),
        };
        let payload = encode_control(&message).unwrap();
        assert_eq!(decode_control(&payload), Ok(message), "{odd:?}");
    }
}

#[test]
fn models_with_the_same_caches() {
    for (kind, model) in [
        ("EPYC-x86_64-cpu", "EPYC"),
        ("EPYC-v2-x86_64-cpu", "EPYC"),
        ("EPYC-IBPB-x86_64-cpu", "EPYC"),
        ("EPYC-Rome-v1-x86_64-cpu", "EPYC-Rome"),
        ("some-vendor-x86_64-cpu", "some-vendor"),
        ("odd", "odd"),
    ] {
        assert_eq!(caches_of(kind), model);
    }
}

#[test]
fn groups_of_properties_are_read_where_they_count() {
    let with = |leaf, register, bit: u32| ProcessorKind {
        features: vec![word(leaf, register, 1 << bit)],
        ..ProcessorKind::default()
    };
    let none = ProcessorKind::default();
    assert!(is_noticeable("phys-bits", &none, false));
    assert!(!is_noticeable("x-migrate-smi-count", &none, true));
    assert!(!is_noticeable("ucode-rev", &none, true));
    assert!(!is_noticeable("vmx-ept", &none, true));
    assert!(is_noticeable(
        "vmx-ept",
        &with(1, CpuidRegister::Ecx, 5),
        true
    ));
    assert!(!is_noticeable("hv-time", &none, false));
    assert!(is_noticeable("hv-time", &none, true));
    assert!(!is_noticeable("mds-no", &none, true));
    let msr = with(7, CpuidRegister::Edx, 29);
    assert!(is_noticeable("mds-no", &msr, true) && is_noticeable("rsba", &msr, true));
}
