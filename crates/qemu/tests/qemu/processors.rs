//! Tests reading and comparing the guest's processors, with real QEMUs.

use std::path::Path;

use error_reporter::Report;
use hikkoshi_engine::{DestinationGuest, SourceGuest};
use hikkoshi_wire::Processors;
use serde_json::json;

use crate::support::{Program, Qemu, accelerator, print_always, says, versions, with_each};

fn of(qemu: &Qemu) -> Processors {
    qemu.source().hardware().processors
}

/// The processors of a paused guest with these options.
fn with(program: &Program, more: &str) -> Processors {
    of(&Qemu::usual(program, &format!("-S {more}")))
}

fn differences(source: &Processors, destination: &Processors) -> String {
    source.loadable_in(destination).unwrap();
    source.differences(destination).to_string()
}

#[test]
fn a_destination_with_the_same_options_is_the_same() {
    with_each(|program| {
        let options = "-cpu qemu64 -smp 4,sockets=1,cores=2,threads=2";
        let source = with(program, options);
        assert_eq!(*source.accelerator, *accelerator());
        assert_eq!(source.processors.len(), 4);
        assert_eq!(source.kinds.len(), 1, "they are identical");
        let qemu = Qemu::usual(program, &format!("{options} -incoming defer"));
        let destination = qemu.destination();
        assert_eq!(differences(&source, &destination.hardware().processors), "");
    });
}

/// The model is compatible, as the versioned machine type guarantees.
#[test]
fn a_named_model_is_the_same_in_both_versions() {
    for options in ["-cpu qemu64 -smp 2", "-cpu Nehalem -smp 1"] {
        let options = format!("-machine pc-q35-7.2 {options}");
        let all: Vec<_> = versions()
            .into_iter()
            .map(|(label, run)| with(&Program { label, run }, &options))
            .collect();
        for pair in all.windows(2) {
            let [one, other] = pair else { continue };
            assert_eq!(differences(one, other), "", "{options}");
            assert_eq!(differences(other, one), "", "{options}");
        }
    }
}

#[test]
fn other_names_of_a_model_are_the_same() {
    with_each(|program| {
        for (one, other) in [
            ("qemu64", "qemu64-v1"),
            ("EPYC", "EPYC-v1"),
            ("EPYC-IBPB", "EPYC-v2"),
            ("Skylake-Client-IBRS", "Skylake-Client-v2"),
        ] {
            let with = |model| with(program, &format!("-smp 1 -cpu {model}"));
            assert_eq!(differences(&with(one), &with(other)), "", "{one}, {other}");
        }
        let caches = |model| with(program, &format!("-smp 1 -cpu EPYC{model}"));
        let found = differences(&caches("-v3"), &caches("-Rome,model-id=x"));
        assert!(
            found.contains("the CPU model of the caches is EPYC at"),
            "{found}"
        );
    });
}

#[test]
fn flags_properties_and_topologies_that_differ_are_named() {
    with_each(|program| {
        let source = with(program, "-cpu qemu64 -smp 2,sockets=1,cores=2");
        for (options, expected) in [
            (
                "-cpu qemu64,-cx16,-mca -smp 2,sockets=1,cores=2",
                "the destination's processors lack cx16, mca",
            ),
            (
                "-cpu qemu64,model=9,phys-bits=42 -smp 2,sockets=1,cores=2",
                "the model is 107 at the source but 9 at the destination; the phys-bits is 40 at \
                 the source but 42 at the destination",
            ),
            (
                "-cpu qemu64 -smp 2,sockets=1,cores=1,threads=2",
                "the number of cores is 2 at the source but 1 at the destination; the number of \
                 threads is 1 at the source but 2 at the destination",
            ),
            (
                "-cpu qemu64 -smp 2,sockets=1,cores=4,maxcpus=4",
                "the number of cores is 2 at the source but 4 at the destination; the maxcpus is \
                 2 at the source but 4 at the destination",
            ),
        ] {
            let found = differences(&source, &with(program, options));
            assert!(found.starts_with(expected), "{options}: {found}");
        }
    });
}

/// A plugged-in processor can differ from those of `-smp`.
#[test]
fn processors_that_were_plugged_in() {
    with_each(|program| {
        let two = "-S -cpu qemu64 -smp 1,sockets=2,cores=1,maxcpus=2";
        let plug = |without: Option<&str>| {
            let qemu = Qemu::usual(program, two);
            let mut device = json!({
                "driver": "qemu64-x86_64-cpu", "id": "second",
                "socket-id": 1, "core-id": 0, "thread-id": 0,
            });
            if let Some(flag) = without {
                device[flag] = json!(false);
            }
            qemu.execute("device_add", device);
            of(&qemu)
        };
        let (source, same, other) = (plug(None), plug(None), plug(Some("cx16")));
        assert_eq!(source.processors.len(), 2);
        assert_eq!(differences(&source, &same), "");
        assert_eq!(
            differences(&source, &other),
            "the destination's processors with the index 1 lack cx16"
        );
        let error = source.loadable_in(&with(program, two)).unwrap_err();
        says(&error, &["list of virtual CPUs"]);
    });
}

/// `-cpu host` copies this host's processor; a named model does not.
#[test]
fn the_hosts_own_processor_under_kvm() {
    if !Path::new("/dev/kvm").exists() {
        return print_always("NOT TESTED: there is no /dev/kvm");
    }
    with_each(|program| {
        let under = |accelerator, more: &str| {
            of(&Qemu::usual_under(program, accelerator, &format!("-S {more}")).unwrap())
        };
        let kvm = |more| under("kvm", more);
        // With that flag QEMU exits on a host whose KVM supports only some of its registers.
        let host = kvm("-cpu host,-arch-capabilities -smp 2");
        let same = kvm("-cpu host,-arch-capabilities -smp 2");
        assert_eq!(*host.accelerator, *"kvm");
        assert!(host.processors.iter().all(|processor| processor.tsc_hz > 0));
        assert_eq!(differences(&host, &same), "");
        // In QEMU they are identical under KVM.
        let most = kvm("-cpu max,-arch-capabilities -smp 2");
        assert_eq!(differences(&host, &most), "");
        assert_eq!(differences(&most, &host), "");
        let named = kvm("-cpu qemu64 -smp 2");
        let found = differences(&host, &named);
        print_always(&found);
        for part in [
            "the destination's processors lack ",
            "kvm-asyncpf-int",
            "the family is ",
        ] {
            assert!(found.contains(part), "{part:?} is not in: {found}");
        }
        // Hyper-V enlightenments are not in the feature words.
        let hyperv = kvm("-cpu qemu64,hv-relaxed -smp 2");
        let found = differences(&hyperv, &named);
        assert!(found.contains("lack hv-relaxed"), "{found}");
        assert_eq!(
            differences(&named, &kvm("-cpu qemu64,kvm-asyncpf-int=on -smp 2")),
            "the destination's processors have kvm-asyncpf-int in addition"
        );
        // Another accelerator is not a difference of features.
        let tcg = under("tcg", "-cpu qemu64 -smp 2");
        let error = Report::new(named.loadable_in(&tcg).unwrap_err()).to_string();
        assert!(error.contains("the accelerator is \"kvm\""), "{error}");
    });
}
