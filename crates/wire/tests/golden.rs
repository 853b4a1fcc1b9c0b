//! The encoding of each message: two builds that differ here cannot communicate. The kept encodings
//! are inputs of the fuzz target `wire_stream`, in its archive `fuzz/corpora/wire_stream.tar`.
//!
//! After adding a message, run `HIKKOSHI_WRITE_GOLDEN=1 cargo test -p hikkoshi-wire --test golden`.
//! It writes the new encoding to `fuzz/found/wire_stream`; add it to the archive with `make
//! fuzz-add`. A kept encoding never changes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's failure is its message"
)]

use std::collections::BTreeMap;
use std::path::Path;

use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{
    AuxiliaryBlock, Backing, BlockDescription, CompressionMethod, ControlMessage, CpuidRegister,
    CpuidWord, DestinationStage, Device, Disk, DiskImage, DiskKind, DiskPlan, Domain,
    DomainSnapshot, FaultKind, FaultMeasures, Features, Frame, GuestDescription, GuestDisks,
    GuestRangeDescription, Hello, ImageMark, ImageName, Machine, MigrationId, Mode, NetworkFrame,
    OfferedGuest, PageRanges, Processor, ProcessorKind, ProcessorPlace, ProcessorSetting,
    Processors, RequestSummary, Role, SourceStage, StageSummary, ThreadFaults, ToDestination,
    ToSource, Topology, Versions, encode_control,
};

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::from_len(Page::new(start), pages)
}

fn ranges() -> PageRanges {
    PageRanges::batches([range(0, 1), range(300, 512), range(1 << 19, 1 << 19)])
        .next()
        .unwrap()
}

fn description() -> GuestDescription {
    let piece = |gpa, offset, bytes| GuestRangeDescription { gpa, offset, bytes };
    GuestDescription {
        machine: "pc-q35-7.2".into(),
        architecture: "x86_64".into(),
        cpus: 2,
        cpu_model: "qemu64".into(),
        hypervisor: "QEMU 7.2.22".into(),
        running: true,
        blocks: vec![
            BlockDescription {
                id: "ram".into(),
                bytes: 3 << 30,
                host_page: 4096,
                guest: vec![piece(0, 0, 2 << 30), piece(4 << 30, 2 << 30, 1 << 30)],
            },
            BlockDescription {
                id: "dimm0".into(),
                bytes: 1 << 30,
                host_page: 2 << 20,
                guest: vec![piece(5 << 30, 0, 1 << 30)],
            },
        ],
    }
}

fn to_destination() -> Vec<ToDestination> {
    vec![
        ToDestination::Offer {
            guest: Box::new(guest()),
            mode: Mode::Hybrid,
            may_postcopy: true,
            background_links: 2,
            keeps_frames: true,
        },
        ToDestination::Discard { ranges: ranges() },
        ToDestination::DiscardEnd,
        ToDestination::DeviceStateChunk {
            bytes: b"QEVM\0\0\0\x03".to_vec(),
        },
        ToDestination::Switch {
            device_bytes: 330_000,
            device_crc32c: 0xe306_9283,
            owed_pages: 524_801,
            postcopy: true,
            running: true,
        },
        ToDestination::Commit,
        ToDestination::Cancel {
            reason: "interrupted".into(),
        },
        ToDestination::Goodbye,
        ToDestination::ResumeRequest {
            stage: SourceStage::HandedOver,
        },
        ToDestination::Owed { ranges: ranges() },
        ToDestination::OwedEnd {
            pages: 524_801,
            background_links: 2,
        },
        ToDestination::Frames {
            card: [0x52, 0x54, 0, 0x12, 0x34, 0x56],
            frames: vec![NetworkFrame {
                offload: [1, 0, 0, 0, 0, 0, 34, 0, 6, 0],
                bytes: b"RT\0\x124VRU\n\0\x02\x02\x08\0".to_vec(),
            }],
        },
        ToDestination::FramesEnd,
        ToDestination::MemoryLost {
            reason: "private memory is lost".into(),
        },
        ToDestination::Compare {
            guest: Box::new(OfferedGuest {
                domain: None,
                ..guest()
            }),
        },
        ToDestination::Probe {
            background_links: 2,
        },
        ToDestination::Echo,
    ]
}

fn guest() -> OfferedGuest {
    OfferedGuest {
        domain: Some(domain()),
        description: description(),
        machine: machine(),
        processors: processors(),
        allow_cpu_mismatch: true,
        disks: disks(),
    }
}

fn domain() -> Domain {
    Domain {
        name: "guest".into(),
        uuid: "6695eb01-f6a4-8304-79aa-97f2502e193f".into(),
        xml: b"<domain type='kvm'/>".to_vec(),
        persistent: b"<domain/>".to_vec(),
        autostart: true,
        snapshots: vec![DomainSnapshot {
            xml: b"<domainsnapshot/>".to_vec(),
            current: true,
        }],
    }
}

fn disks() -> GuestDisks {
    let name = |name: &str, unique| ImageName {
        name: name.into(),
        unique,
    };
    let copied = Disk {
        device: "/machine/peripheral/vda/virtio-backend".into(),
        drive: "drive0".into(),
        place: "pci.0/04.0".into(),
        bytes: Some(10 << 30),
        read_only: false,
        kind: DiskKind::Fixed,
        plan: DiskPlan::Copied { encrypted: true },
        image: DiskImage {
            file: "/images/a.qcow2".into(),
            format: "qcow2".into(),
            storage: "nfs4".into(),
            encrypted: true,
            names: vec![name("4e1f:12:1234", true), name("dm:LVM-a", false)],
            mark: ImageMark::Of(0),
            checksum: None,
        },
        backing: Backing::Known(vec![DiskImage {
            file: "/images/base.raw".into(),
            storage: "nfs4".into(),
            names: vec![name("4e1f:12:1230", true)],
            checksum: Some(1),
            ..DiskImage::default()
        }]),
    };
    let medium = Disk {
        device: "cd".into(),
        bytes: None,
        read_only: true,
        kind: DiskKind::Removable,
        plan: DiskPlan::Same,
        image: DiskImage {
            checksum: Some(0x1234_5678),
            ..DiskImage::default()
        },
        backing: Backing::Unknown,
        ..copied.clone()
    };
    GuestDisks {
        mark: *b"0123456789abcdef",
        disks: vec![copied, medium],
    }
}

fn machine() -> Machine {
    Machine {
        devices: vec![Device {
            place: "pcie.0/02.0".into(),
            kind: "virtio-net-pci".into(),
            name: "net0".into(),
            pci: 0x1af4_1041,
        }],
        auxiliary: vec![AuxiliaryBlock {
            name: "0000:00:02.0/virtio-net-pci.rom".into(),
            bytes: 0x4_0000,
            most: 0x8_0000,
        }],
    }
}

fn processors() -> Processors {
    let word = |leaf, register, bits| CpuidWord {
        leaf,
        subleaf: 1,
        register,
        bits,
    };
    let setting = |name: &str, value: &str| ProcessorSetting {
        name: name.into(),
        value: value.into(),
    };
    Processors {
        accelerator: "kvm".into(),
        tsc_scaling: true,
        topology: Topology {
            sockets: 2,
            dies: 1,
            modules: 3,
            cores: 4,
            threads: 5,
            most: 120,
        },
        kinds: vec![ProcessorKind {
            features: vec![
                word(7, CpuidRegister::Ebx, 0x218d_07a9),
                word(0x8000_0001, CpuidRegister::Edx, 0x2193_fbfd),
            ],
            filtered: vec![word(1, CpuidRegister::Ecx, 1 << 20)],
            settings: vec![setting("model-id", "QEMU TCG CPU"), setting("pmu", "on")],
        }],
        processors: vec![Processor {
            index: 300,
            kind: 0,
            apic_id: 0x8000,
            tsc_hz: 2_596_120_000,
            place: ProcessorPlace {
                socket: 1,
                die: 0,
                module: 2,
                core: 3,
                thread: 4,
                node: Some(1),
            },
        }],
    }
}

fn summary(us: u64) -> RequestSummary {
    RequestSummary {
        count: 1498,
        mean_ns: us * 1000,
        p50_ns: us * 900,
        p99_ns: us * 3000,
        max_ns: us * 20_000,
        buckets: vec![0, us, 1498 - us],
    }
}

fn to_source() -> Vec<ToSource> {
    let reason = || "no space".to_owned();
    vec![
        ToSource::Accept {
            host_pages: vec![4096, 2 << 20],
            marks_holes: true,
        },
        ToSource::Refuse { reason: reason() },
        ToSource::Discarded,
        ToSource::Ready,
        ToSource::Failed { reason: reason() },
        ToSource::GuestResumed,
        ToSource::Cancel { reason: reason() },
        ToSource::Complete {
            requests: RequestSummary {
                count: 1500,
                mean_ns: 310_000,
                p50_ns: 250_000,
                p99_ns: 900_000,
                max_ns: 1_200_000,
                buckets: vec![0, 0, 0, 0, 0, 0, 0, 20, 700, 700, 79, 1],
            },
            faults: Box::new(FaultMeasures {
                stages: StageSummary {
                    fault_to_request: summary(3),
                    request_to_page: summary(60),
                    page_to_installed: summary(11),
                },
                unmeasured: 2,
                threads: vec![
                    ThreadFaults {
                        thread: "CPU 0/KVM".into(),
                        kind: FaultKind::Vcpu(0),
                        count: 1400,
                    },
                    ThreadFaults {
                        thread: "qemu-system-x86".into(),
                        kind: FaultKind::Other,
                        count: 100,
                    },
                    ThreadFaults {
                        thread: "kernel workers".into(),
                        kind: FaultKind::Asynchronous,
                        count: 90,
                    },
                ],
            }),
        },
        ToSource::ResumeReply {
            stage: DestinationStage::Running,
            host_pages: vec![4096, 2 << 20],
            background_links: 4,
        },
        ToSource::Missing { ranges: ranges() },
        ToSource::MissingEnd { pages: 524_801 },
        ToSource::Declined { reason: reason() },
        ToSource::GuestLost { reason: reason() },
        ToSource::Warning {
            what: "the destination's processors lack sse4.2, avx2".into(),
        },
        ToSource::ShutDown,
        ToSource::FramesDelivered {
            delivered: 17,
            dropped: 2,
        },
        ToSource::Obstacle {
            reason: reason(),
            postcopy_only: true,
        },
        ToSource::Compared {
            host_pages: vec![4096, 2 << 20],
        },
        ToSource::ProbeReady {
            bytes: 1 << 30,
            millis: 10_000,
        },
        ToSource::Echoed,
        ToSource::LeftToDo {
            what: "the domain guest was not made persistent: no space left on device".into(),
        },
        ToSource::ResumeTime { micros: 12_345 },
    ]
}

/// The name of a message's file. A new message makes this fail to compile: give it
/// a name here, add it to the list above, and increase `COUNT`.
fn destination_name(message: &ToDestination) -> &'static str {
    match message {
        ToDestination::Offer { .. } => "to-destination-offer",
        ToDestination::Discard { .. } => "to-destination-discard",
        ToDestination::DiscardEnd => "to-destination-discard-end",
        ToDestination::DeviceStateChunk { .. } => "to-destination-device-state-chunk",
        ToDestination::Switch { .. } => "to-destination-switch",
        ToDestination::Commit => "to-destination-commit",
        ToDestination::Cancel { .. } => "to-destination-cancel",
        ToDestination::Goodbye => "to-destination-goodbye",
        ToDestination::ResumeRequest { .. } => "to-destination-resume-request",
        ToDestination::Owed { .. } => "to-destination-owed",
        ToDestination::OwedEnd { .. } => "to-destination-owed-end",
        ToDestination::Frames { .. } => "to-destination-frames",
        ToDestination::FramesEnd => "to-destination-frames-end",
        ToDestination::MemoryLost { .. } => "to-destination-memory-lost",
        ToDestination::Compare { .. } => "to-destination-compare",
        ToDestination::Probe { .. } => "to-destination-probe",
        ToDestination::Echo => "to-destination-echo",
    }
}

fn source_name(message: &ToSource) -> &'static str {
    match message {
        ToSource::Accept { .. } => "to-source-accept",
        ToSource::Refuse { .. } => "to-source-refuse",
        ToSource::Discarded => "to-source-discarded",
        ToSource::Ready => "to-source-ready",
        ToSource::Failed { .. } => "to-source-failed",
        ToSource::GuestResumed => "to-source-guest-resumed",
        ToSource::Cancel { .. } => "to-source-cancel",
        ToSource::Complete { .. } => "to-source-complete",
        ToSource::ResumeReply { .. } => "to-source-resume-reply",
        ToSource::Missing { .. } => "to-source-missing",
        ToSource::MissingEnd { .. } => "to-source-missing-end",
        ToSource::Declined { .. } => "to-source-declined",
        ToSource::GuestLost { .. } => "to-source-guest-lost",
        ToSource::Warning { .. } => "to-source-warning",
        ToSource::ShutDown => "to-source-shut-down",
        ToSource::FramesDelivered { .. } => "to-source-frames-delivered",
        ToSource::Obstacle { .. } => "to-source-obstacle",
        ToSource::Compared { .. } => "to-source-compared",
        ToSource::ProbeReady { .. } => "to-source-probe-ready",
        ToSource::Echoed => "to-source-echoed",
        ToSource::LeftToDo { .. } => "to-source-left-to-do",
        ToSource::ResumeTime { .. } => "to-source-resume-time",
    }
}

fn control_frame<T: ControlMessage>(message: &T) -> Vec<u8> {
    let payload = encode_control(message).unwrap();
    let len = u32::try_from(payload.len()).unwrap();
    [&Frame::Control { len }.encode()[..], &payload].concat()
}

fn streams() -> BTreeMap<&'static str, Vec<u8>> {
    let mut streams = BTreeMap::new();
    for message in to_destination() {
        streams.insert(destination_name(&message), control_frame(&message));
    }
    for message in to_source() {
        streams.insert(source_name(&message), control_frame(&message));
    }
    let mut pages = Frame::Pages { range: range(9, 1) }.encode().to_vec();
    pages.extend([0x5a; 4096]);
    streams.insert("frame-pages", pages);
    for (name, method) in [
        ("frame-lz4", CompressionMethod::Lz4),
        ("frame-zstd", CompressionMethod::Zstd),
    ] {
        let (range, len) = (range(9, 2), 3);
        let header = Frame::Compressed { range, method, len }.encode();
        streams.insert(name, [&header[..], b"abc"].concat());
    }
    let mut disk = Frame::Disk { len: 5 }.encode().to_vec();
    disk.extend(b"NBDMA");
    streams.insert("frame-disk", disk);
    for frame in [
        Frame::Zeros {
            range: range(512, 1024),
        },
        Frame::Request {
            range: range(0x1234, 1),
        },
        Frame::Ack { bytes: 123 << 20 },
    ] {
        let name = match frame {
            Frame::Zeros { .. } => "frame-zeros",
            Frame::Request { .. } => "frame-request",
            Frame::Ack { .. } => "frame-ack",
            Frame::Control { .. }
            | Frame::Pages { .. }
            | Frame::Compressed { .. }
            | Frame::Disk { .. } => {
                panic!("this frame has a payload")
            }
        };
        streams.insert(name, frame.encode().to_vec());
    }
    let none = Features::default();
    let some = Features::COMPRESSED_PAGES;
    for (name, role, features) in [
        ("hello-control", Role::Control, none),
        ("hello-urgent", Role::Urgent, none),
        ("hello-background", Role::Background { index: 1 }, none),
        ("hello-frames", Role::Frames, none),
        ("hello-disk", Role::Disk { index: 3 }, none),
        ("hello-compressed", Role::Background { index: 0 }, some),
    ] {
        let hello = Hello {
            versions: Versions::new(1, 1).unwrap(),
            features,
            role,
            id: MigrationId::from_bytes(*b"0123456789abcdef"),
        };
        streams.insert(name, hello.encode().to_vec());
    }
    streams
}

#[test]
fn the_encoding_of_every_message_is_unchanged() {
    let kept = hikkoshi_fuzz_replay::inputs("wire_stream").unwrap();
    let mut new = Vec::new();
    for (name, bytes) in streams() {
        match kept.get(name) {
            Some(kept) => assert_eq!(
                kept, &bytes,
                "the encoding of {name} changed: other builds cannot decode it"
            ),
            None => new.push((name, bytes)),
        }
    }
    if std::env::var_os("HIKKOSHI_WRITE_GOLDEN").is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/found/wire_stream");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in &new {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let names: Vec<_> = new.iter().map(|(name, _)| name).collect();
    assert!(
        new.is_empty(),
        "not kept yet: {names:?}. See the head of this file."
    );
}

#[test]
fn each_message_has_its_number_and_is_in_the_list() {
    fn numbers<T: ControlMessage>(messages: &[T]) -> Vec<u8> {
        assert_eq!(messages.len(), T::COUNT as usize, "COUNT is out of date");
        let payloads = messages
            .iter()
            .map(|message| hikkoshi_wire::encode_control(message).unwrap());
        payloads.map(|payload| payload[0]).collect()
    }
    assert_eq!(numbers(&to_destination()), (0..17).collect::<Vec<u8>>());
    assert_eq!(numbers(&to_source()), (0..22).collect::<Vec<u8>>());
}
