//! Guests whose processors would differ at the destination.

use std::sync::Arc;

use hikkoshi_engine::Mode;
use hikkoshi_wire::{
    CpuidRegister, CpuidWord, Processor, ProcessorKind, ProcessorPlace, Processors, Topology,
};

use crate::run::Setup;

/// One processor with these flags of CPUID's leaf 7 in EBX.
fn with_flags(bits: u32) -> Processors {
    Processors {
        accelerator: "tcg".into(),
        tsc_scaling: false,
        topology: Topology::default(),
        kinds: vec![ProcessorKind {
            features: vec![CpuidWord {
                leaf: 7,
                subleaf: 0,
                register: CpuidRegister::Ebx,
                bits,
            }],
            ..ProcessorKind::default()
        }],
        processors: vec![Processor {
            index: 0,
            kind: 0,
            apic_id: 0,
            tsc_hz: 0,
            place: ProcessorPlace::default(),
        }],
    }
}

const AVX2: u32 = 1 << 5;
const RDSEED: u32 = 1 << 18;

#[test]
fn a_destination_with_other_features_is_refused_in_both_directions() {
    for (source, destination, what) in [
        (AVX2, 0, "the destination's processors lack avx2; "),
        (
            AVX2,
            AVX2 | RDSEED,
            "the destination's processors have rdseed in addition; ",
        ),
    ] {
        let mut setup = Setup::new(Mode::Hybrid);
        setup.source.processors = with_flags(source);
        setup.destination.processors = with_flags(destination);
        let done = setup.run();
        let (text, _) = done.at_source();
        let expected =
            format!("the destination refuses the guest: comparing the two guests: {what}");
        assert!(text.starts_with(&expected), "{text}");
        assert!(text.contains("--allow-cpu-mismatch"), "{text}");
        // Neither guest was touched.
        assert_eq!(done.destination_calls.count("prepare"), 0);
        assert_eq!(done.source_calls.count("start_dirty_log"), 0);
    }
}

#[test]
fn allowed_processor_differences_are_reported_on_both_sides() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.source.processors = with_flags(AVX2);
    setup.destination.processors = with_flags(0);
    setup.options.allow_cpu_mismatch = true;
    let done = setup.run();
    let notices = Arc::clone(&done.notices);
    done.moved(true);
    let expected = "the processors at the destination differ from the guest's, which the source \
                    allows: the destination's processors lack avx2";
    let sides = notices.all().matches(expected).count();
    assert_eq!(sides, 2, "{}", notices.all());
}

#[test]
fn another_accelerator_is_always_refused() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.source.processors = with_flags(AVX2);
    setup.destination.processors = Processors {
        accelerator: "kvm".into(),
        ..with_flags(AVX2)
    };
    setup.options.allow_cpu_mismatch = true;
    let done = setup.run();
    let (text, _) = done.at_source();
    assert!(
        text.contains("the accelerator is \"tcg\" at the source"),
        "{text}"
    );
    assert_eq!(done.destination_calls.count("prepare"), 0);
}
