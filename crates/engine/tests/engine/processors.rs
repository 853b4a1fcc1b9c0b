//! Guests whose processors would differ at the destination.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{
    CancelFlag, DestinationOptions, MigrateControl, Mode, ReceiveControl, SourceControl,
    SourceOptions, migrate, receive,
};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::{Address, Listener, hello, split};
use hikkoshi_wire::{
    CHALLENGE_LEN, CpuidRegister, CpuidWord, HELLO_LEN, Hello, Limits, MigrationId, Processor,
    ProcessorKind, ProcessorPlace, Processors, Role, ToDestination, ToSource, Topology, Versions,
};

use crate::guests::TestDestination;
use crate::run::{Notices, Setup, open, watchdog};

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

/// Version 1 did not describe a guest's processors.
#[test]
fn an_older_destination_is_refused() {
    let _watchdog = watchdog();
    let Setup { mut source, .. } = Setup::new(Mode::Hybrid);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listen");
    let listener = UnixListener::bind(&path).unwrap();
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            let mut hello_bytes = [0; HELLO_LEN];
            socket.read_exact(&mut hello_bytes).unwrap();
            let theirs = Hello {
                versions: Versions::new(1, 1).unwrap(),
                ..Hello::decode(&hello_bytes).unwrap()
            };
            socket.write_all(&theirs.encode()).unwrap();
            socket.write_all(&[7; CHALLENGE_LEN]).unwrap();
            socket.read_exact(&mut [0; CHALLENGE_LEN]).unwrap();
            // Nothing else is sent.
            assert_eq!(socket.read(&mut [0]).unwrap(), 0);
        });
        let watch = MigrateControl {
            cancel: CancelFlag::new(),
            control: SourceControl::new(),
            observer: Arc::new(Notices::default()),
            journal: Arc::new(Unrecorded),
        };
        let remote = Address::Unix(path.clone()).into();
        migrate(&mut source, &remote, &SourceOptions::default(), &watch).unwrap_err()
    });
    assert_eq!(error.outcome, Outcome::AtSource);
    assert!(
        Report::new(&error)
            .to_string()
            .contains("hikkoshi there is too old"),
        "{error}"
    );
}

#[test]
fn an_older_source_is_refused() {
    let _watchdog = watchdog();
    let setup = Setup::new(Mode::Hybrid);
    let mut guest: TestDestination = setup.destination;
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&Address::Unix(folder.path().join("listen"))).unwrap();
    let watch = ReceiveControl {
        cancel: CancelFlag::new(),
        observer: Arc::new(Notices::default()),
        journal: Arc::new(Unrecorded),
    };
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            receive(
                &mut guest,
                &listener,
                &DestinationOptions::default(),
                &watch,
            )
        });
        let hello = Hello {
            versions: Versions::new(1, 1).unwrap(),
            ..hello(Role::Control, MigrationId::from_bytes([3; 16]))
        };
        let stream = Arc::new(open(&listener.address().clone().into(), &hello).unwrap());
        let limits = Limits { pages: 1 << 20 };
        let (mut reader, mut writer) = split(&stream, limits, &CancelFlag::new()).unwrap();
        writer
            .control(&ToDestination::Begin {
                description,
                mode: Mode::Hybrid,
                may_postcopy: true,
                background_links: 1,
            })
            .unwrap();
        let ToSource::Refuse { reason } = reader.control().unwrap() else {
            panic!("not refused")
        };
        assert!(
            reason.contains("hikkoshi at the source is older"),
            "{reason}"
        );
        watch.cancel.cancel();
        assert!(receiving.join().unwrap().is_err());
    });
}
