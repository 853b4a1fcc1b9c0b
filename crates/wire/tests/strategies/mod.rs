//! Strategies for every type of the protocol: any value within its bounds.

use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{
    AuxiliaryBlock, Backing, BlockDescription, CompressionMethod, CpuidRegister, CpuidWord,
    DestinationStage, Device, Disk, DiskImage, DiskKind, DiskPlan, Domain, DomainSnapshot,
    FaultKind, FaultMeasures, Features, Frame, GuestDescription, GuestDisks, GuestRangeDescription,
    Hello, ImageMark, ImageName, MAX_DISK_BYTES, MAX_PAGES_PER_FRAME, MAX_PAGES_PER_REQUEST,
    MAX_PAGES_PER_ZEROS, Machine, MigrationId, Mode, NetworkFrame, OFFLOAD_LEN, OfferedGuest,
    PageRanges, Processor, ProcessorKind, ProcessorPlace, ProcessorSetting, Processors,
    RequestSummary, Role, SourceStage, StageSummary, ThreadFaults, ToDestination, ToSource,
    Topology, Versions,
};
use proptest::prelude::*;

use crate::properties::{LIMITS, Message};

pub(crate) fn hello() -> impl Strategy<Value = Hello> {
    let role = prop_oneof![
        Just(Role::Control),
        Just(Role::Urgent),
        Just(Role::Frames),
        any::<u16>().prop_map(|index| Role::Background { index }),
        any::<u16>().prop_map(|index| Role::Disk { index }),
    ];
    (
        1..=u16::MAX,
        any::<u16>(),
        any::<u64>(),
        role,
        any::<[u8; 16]>(),
    )
        .prop_map(|(min, more, bits, role, id)| Hello {
            versions: Versions::new(min, min.saturating_add(more)).unwrap(),
            features: Features(bits),
            role,
            id: MigrationId::from_bytes(id),
        })
}

fn range(max: u64) -> impl Strategy<Value = PageRange> {
    (1..=max).prop_flat_map(|pages| {
        (0..=LIMITS.pages - pages)
            .prop_map(move |start| PageRange::from_len(Page::new(start), pages))
    })
}

/// Any frame without a payload.
pub(crate) fn bare() -> impl Strategy<Value = Frame> {
    prop_oneof![
        range(MAX_PAGES_PER_ZEROS).prop_map(|range| Frame::Zeros { range }),
        range(MAX_PAGES_PER_REQUEST).prop_map(|range| Frame::Request { range }),
        any::<u64>().prop_map(|bytes| Frame::Ack { bytes }),
    ]
}

/// Compressed pages: at most so many.
fn compressed(max: u64) -> impl Strategy<Value = Frame> {
    let method = prop::sample::select(CompressionMethod::ALL.to_vec());
    (range(max), method).prop_flat_map(|(range, method)| {
        let most = u32::try_from(range.bytes()).unwrap() - 1;
        (1..=most).prop_map(move |len| Frame::Compressed { range, method, len })
    })
}

pub(crate) fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        bare(),
        range(MAX_PAGES_PER_FRAME).prop_map(|range| Frame::Pages { range }),
        compressed(MAX_PAGES_PER_FRAME),
        (1..=1u32 << 20).prop_map(|len| Frame::Control { len }),
        (0..=u32::try_from(MAX_DISK_BYTES).unwrap()).prop_map(|len| Frame::Disk { len }),
    ]
}

fn text() -> impl Strategy<Value = String> {
    // Printable characters only: decoding replaces the others.
    let text = "[\\PC&&[^\\u{61c}\\u{200e}\\u{200f}\\u{2028}-\\u{202e}\\u{2066}-\\u{2069}]]{0,20}";
    prop_oneof!["[a-z0-9.-]{0,12}", text, "[é月]{1000,1300}"]
}

pub(crate) fn description() -> impl Strategy<Value = GuestDescription> {
    let piece = (any::<u64>(), any::<u64>(), any::<u64>())
        .prop_map(|(gpa, offset, bytes)| GuestRangeDescription { gpa, offset, bytes });
    let block = (
        text(),
        any::<u64>(),
        any::<u64>(),
        prop::collection::vec(piece, 0..4),
    )
        .prop_map(|(id, bytes, host_page, guest)| BlockDescription {
            id,
            bytes,
            host_page,
            guest,
        });
    (
        (text(), text(), text(), text()),
        any::<u32>(),
        any::<bool>(),
        prop::collection::vec(block, 0..5),
    )
        .prop_map(
            |((machine, architecture, cpu_model, hypervisor), cpus, running, blocks)| {
                GuestDescription {
                    machine,
                    architecture,
                    cpus,
                    cpu_model,
                    hypervisor,
                    running,
                    blocks,
                }
            },
        )
}

pub(crate) fn machine() -> impl Strategy<Value = Machine> {
    let device =
        (text(), text(), text(), any::<u32>()).prop_map(|(place, kind, name, pci)| Device {
            place: place.into(),
            kind: kind.into(),
            name: name.into(),
            pci,
        });
    let piece =
        (text(), any::<u64>(), any::<u64>()).prop_map(|(name, bytes, most)| AuxiliaryBlock {
            name: name.into(),
            bytes,
            most,
        });
    (
        prop::collection::vec(device, 0..4),
        prop::collection::vec(piece, 0..4),
    )
        .prop_map(|(devices, auxiliary)| Machine { devices, auxiliary })
}

pub(crate) fn processors() -> impl Strategy<Value = Processors> {
    let register = prop_oneof![
        Just(CpuidRegister::Eax),
        Just(CpuidRegister::Ebx),
        Just(CpuidRegister::Ecx),
        Just(CpuidRegister::Edx)
    ];
    let word = (any::<u32>(), any::<u32>(), register, any::<u32>()).prop_map(
        |(leaf, subleaf, register, bits)| CpuidWord {
            leaf,
            subleaf,
            register,
            bits,
        },
    );
    let words = || prop::collection::vec(word.clone(), 0..4);
    let setting = (text(), text()).prop_map(|(name, value)| ProcessorSetting {
        name: name.into(),
        value: value.into(),
    });
    let kind = (words(), words(), prop::collection::vec(setting, 0..4)).prop_map(
        |(features, filtered, settings)| ProcessorKind {
            features,
            filtered,
            settings,
        },
    );
    let place = (any::<[u32; 5]>(), any::<Option<u32>>()).prop_map(
        |([socket, die, module, core, thread], node)| ProcessorPlace {
            socket,
            die,
            module,
            core,
            thread,
            node,
        },
    );
    let processor = (
        any::<u32>(),
        any::<u16>(),
        any::<u32>(),
        any::<u64>(),
        place,
    )
        .prop_map(|(index, kind, apic_id, tsc_hz, place)| Processor {
            index,
            kind,
            apic_id,
            tsc_hz,
            place,
        });
    (
        text(),
        any::<bool>(),
        any::<[u32; 6]>(),
        prop::collection::vec(kind, 0..3),
        prop::collection::vec(processor, 0..4),
    )
        .prop_map(|(accelerator, tsc_scaling, topology, kinds, processors)| {
            let [sockets, dies, modules, cores, threads, most] = topology;
            Processors {
                accelerator: accelerator.into(),
                tsc_scaling,
                topology: Topology {
                    sockets,
                    dies,
                    modules,
                    cores,
                    threads,
                    most,
                },
                kinds,
                processors,
            }
        })
}

pub(crate) fn ranges() -> impl Strategy<Value = PageRanges> {
    prop::collection::vec((0..200u64, 1..200u64), 1..60).prop_map(|pairs| {
        let mut end = 0;
        let runs = pairs.into_iter().map(|(gap, pages)| {
            let run = PageRange::from_len(Page::new(end + gap), pages);
            end += gap + pages;
            run
        });
        PageRanges::batches(runs).next().unwrap()
    })
}

pub(crate) fn to_destination() -> impl Strategy<Value = ToDestination> {
    let mode = prop_oneof![
        Just(Mode::Precopy),
        Just(Mode::Postcopy),
        Just(Mode::Hybrid)
    ];
    prop_oneof![
        (guest(), mode, any::<bool>(), any::<u16>(), any::<bool>()).prop_map(
            |(guest, mode, may_postcopy, background_links, keeps_frames)| {
                ToDestination::Offer {
                    guest: Box::new(guest),
                    mode,
                    may_postcopy,
                    background_links,
                    keeps_frames,
                }
            }
        ),
        ranges().prop_map(|ranges| ToDestination::Discard { ranges }),
        Just(ToDestination::DiscardEnd),
        prop::collection::vec(any::<u8>(), 0..600)
            .prop_map(|bytes| ToDestination::DeviceStateChunk { bytes }),
        (
            any::<u64>(),
            any::<u32>(),
            any::<u64>(),
            any::<bool>(),
            any::<bool>()
        )
            .prop_map(
                |(device_bytes, device_crc32c, owed_pages, postcopy, running)| {
                    ToDestination::Switch {
                        device_bytes,
                        device_crc32c,
                        owed_pages,
                        postcopy,
                        running,
                    }
                }
            ),
        Just(ToDestination::Commit),
        text().prop_map(|reason| ToDestination::Cancel { reason }),
        Just(ToDestination::Goodbye),
        prop_oneof![
            Just(SourceStage::Owned),
            Just(SourceStage::Committed),
            Just(SourceStage::HandedOver),
            Just(SourceStage::Done)
        ]
        .prop_map(|stage| ToDestination::ResumeRequest { stage }),
        ranges().prop_map(|ranges| ToDestination::Owed { ranges }),
        (any::<u64>(), any::<u16>()).prop_map(|(pages, background_links)| {
            ToDestination::OwedEnd {
                pages,
                background_links,
            }
        }),
        (
            any::<[u8; 6]>(),
            prop::collection::vec(network_frame(), 0..20)
        )
            .prop_map(|(card, frames)| ToDestination::Frames { card, frames }),
        Just(ToDestination::FramesEnd),
        text().prop_map(|reason| ToDestination::MemoryLost { reason }),
        guest().prop_map(|guest| ToDestination::Compare {
            guest: Box::new(guest)
        }),
        any::<u16>().prop_map(|background_links| ToDestination::Probe { background_links }),
        Just(ToDestination::Echo),
    ]
}

fn guest() -> impl Strategy<Value = OfferedGuest> {
    let domain = prop::option::of(domain());
    let allowed = any::<bool>();
    (
        domain,
        description(),
        machine(),
        processors(),
        allowed,
        disks(),
    )
        .prop_map(
            |(domain, description, machine, processors, allow_cpu_mismatch, disks)| OfferedGuest {
                domain,
                description,
                machine,
                processors,
                allow_cpu_mismatch,
                disks,
            },
        )
}

fn disks() -> impl Strategy<Value = GuestDisks> {
    (any::<[u8; 16]>(), prop::collection::vec(disk(), 0..4))
        .prop_map(|(mark, disks)| GuestDisks { mark, disks })
}

fn disk() -> impl Strategy<Value = Disk> {
    let kind = prop_oneof![
        Just(DiskKind::Fixed),
        Just(DiskKind::Removable),
        Just(DiskKind::Flash),
    ];
    let plan = prop_oneof![
        Just(DiskPlan::Same),
        Just(DiskPlan::Shared),
        any::<bool>().prop_map(|encrypted| DiskPlan::Copied { encrypted }),
    ];
    (
        (text(), text(), text()),
        any::<Option<u64>>(),
        any::<bool>(),
        kind,
        plan,
        disk_image(),
        backing(),
    )
        .prop_map(
            |((device, drive, place), bytes, read_only, kind, plan, image, backing)| Disk {
                device: device.into(),
                drive: drive.into(),
                place: place.into(),
                bytes,
                read_only,
                kind,
                plan,
                image,
                backing,
            },
        )
}

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        Just(Backing::Unknown),
        prop::collection::vec(disk_image(), 0..3).prop_map(Backing::Known),
    ]
}

fn disk_image() -> impl Strategy<Value = DiskImage> {
    let name = (text(), any::<bool>()).prop_map(|(name, unique)| ImageName {
        name: name.into(),
        unique,
    });
    let mark = prop_oneof![
        Just(ImageMark::Unknown),
        Just(ImageMark::Absent),
        any::<u32>().prop_map(ImageMark::Of),
    ];
    (
        (text(), text(), text()),
        any::<bool>(),
        prop::collection::vec(name, 0..4),
        mark,
        any::<Option<u32>>(),
    )
        .prop_map(
            |((file, format, storage), encrypted, names, mark, checksum)| DiskImage {
                file: file.into(),
                format: format.into(),
                storage: storage.into(),
                encrypted,
                names,
                mark,
                checksum,
            },
        )
}

fn network_frame() -> impl Strategy<Value = NetworkFrame> {
    (
        any::<[u8; OFFLOAD_LEN]>(),
        prop::collection::vec(any::<u8>(), 0..100),
    )
        .prop_map(|(offload, bytes)| NetworkFrame { offload, bytes })
}

fn summary() -> impl Strategy<Value = RequestSummary> {
    (
        any::<[u64; 5]>(),
        prop::collection::vec(any::<u64>(), 0..=64),
    )
        .prop_map(
            |([count, mean_ns, p50_ns, p99_ns, max_ns], buckets)| RequestSummary {
                count,
                mean_ns,
                p50_ns,
                p99_ns,
                max_ns,
                buckets,
            },
        )
}

fn fault_kind() -> impl Strategy<Value = FaultKind> {
    prop_oneof![
        Just(FaultKind::Other),
        any::<u32>().prop_map(FaultKind::Vcpu),
        Just(FaultKind::Asynchronous),
    ]
}

fn measures() -> impl Strategy<Value = FaultMeasures> {
    let stages = (summary(), summary(), summary()).prop_map(|(one, two, three)| StageSummary {
        fault_to_request: one,
        request_to_page: two,
        page_to_installed: three,
    });
    let thread =
        (text(), fault_kind(), any::<u64>()).prop_map(|(thread, kind, count)| ThreadFaults {
            thread: thread.chars().take(1000).collect(),
            kind,
            count,
        });
    let threads = prop::collection::vec(thread, 0..20);
    (stages, any::<u64>(), threads).prop_map(|(stages, unmeasured, threads)| FaultMeasures {
        stages,
        unmeasured,
        threads,
    })
}

fn destination_stage() -> impl Strategy<Value = DestinationStage> {
    prop_oneof![
        Just(DestinationStage::Receiving),
        Just(DestinationStage::Ready),
        Just(DestinationStage::Running),
        Just(DestinationStage::Complete),
        Just(DestinationStage::Declined)
    ]
}

pub(crate) fn to_source() -> impl Strategy<Value = ToSource> {
    prop_oneof![
        (prop::collection::vec(any::<u64>(), 0..1024), any::<bool>()).prop_map(
            |(host_pages, marks_holes)| ToSource::Accept {
                host_pages,
                marks_holes,
            }
        ),
        text().prop_map(|reason| ToSource::Refuse { reason }),
        Just(ToSource::Discarded),
        Just(ToSource::Ready),
        text().prop_map(|reason| ToSource::Failed { reason }),
        Just(ToSource::GuestResumed),
        text().prop_map(|reason| ToSource::Cancel { reason }),
        (summary(), measures()).prop_map(|(requests, faults)| ToSource::Complete {
            requests,
            faults: Box::new(faults),
        }),
        (
            destination_stage(),
            prop::collection::vec(any::<u64>(), 0..1024),
            any::<u16>()
        )
            .prop_map(
                |(stage, host_pages, background_links)| ToSource::ResumeReply {
                    stage,
                    host_pages,
                    background_links
                }
            ),
        ranges().prop_map(|ranges| ToSource::Missing { ranges }),
        any::<u64>().prop_map(|pages| ToSource::MissingEnd { pages }),
        text().prop_map(|reason| ToSource::Declined { reason }),
        text().prop_map(|reason| ToSource::GuestLost { reason }),
        text().prop_map(|what| ToSource::Warning { what }),
        Just(ToSource::ShutDown),
        (any::<u64>(), any::<u64>())
            .prop_map(|(delivered, dropped)| ToSource::FramesDelivered { delivered, dropped }),
        (text(), any::<bool>()).prop_map(|(reason, postcopy_only)| ToSource::Obstacle {
            reason,
            postcopy_only,
        }),
        prop::collection::vec(any::<u64>(), 0..=8)
            .prop_map(|host_pages| ToSource::Compared { host_pages }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(bytes, millis)| ToSource::ProbeReady { bytes, millis }),
        Just(ToSource::Echoed),
        text().prop_map(|what| ToSource::LeftToDo { what }),
        any::<u64>().prop_map(|micros| ToSource::ResumeTime { micros }),
    ]
}

/// Anything that can be on a link, with the control messages of one direction.
pub(crate) fn message<T: std::fmt::Debug>(
    control: impl Strategy<Value = T>,
) -> impl Strategy<Value = Message<T>> {
    let pages = (range(3), any::<u8>()).prop_map(|(range, byte)| {
        let frame = Frame::Pages { range };
        Message::Frame(frame, vec![byte; frame.payload_len()])
    });
    let compressed = (compressed(3), any::<u8>())
        .prop_map(|(frame, byte)| Message::Frame(frame, vec![byte; frame.payload_len()]));
    let disk = prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| {
        let len = u32::try_from(bytes.len()).unwrap();
        Message::Frame(Frame::Disk { len }, bytes)
    });
    prop_oneof![
        control.prop_map(Message::Control),
        pages,
        compressed,
        bare().prop_map(|frame| Message::Frame(frame, Vec::new())),
        disk,
    ]
}

fn domain() -> impl Strategy<Value = Domain> {
    let xml = || prop::collection::vec(any::<u8>(), 0..200);
    let snapshot = (xml(), any::<bool>());
    let snapshot = snapshot.prop_map(|(xml, current)| DomainSnapshot { xml, current });
    let snapshots = prop::collection::vec(snapshot, 0..4);
    (text(), text(), xml(), xml(), any::<bool>(), snapshots).prop_map(
        |(name, uuid, xml, persistent, autostart, snapshots)| Domain {
            name,
            uuid,
            xml,
            persistent,
            autostart,
            snapshots,
        },
    )
}
