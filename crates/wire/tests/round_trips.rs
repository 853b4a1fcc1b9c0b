//! Encoded values decode to the same values, and what is too long is refused by
//! sender and receiver.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's failure is its message"
)]

#[allow(dead_code, reason = "shared with other tests")]
mod properties;
#[allow(dead_code, reason = "shared with other tests")]
mod strategies;

use hikkoshi_pages::{GuestRange, Page, PageRange, RamBlock, RamLayout};
use hikkoshi_wire::{
    Backing, BlockDescription, ControlError, Device, Disk, DiskImage, DiskKind, DiskPlan, Domain,
    DomainSnapshot, EncodeError, Frame, GuestDescription, GuestDisks, GuestRangeDescription, Hello,
    HelloError, ImageName, Limits, MAX_CONTROL, MAX_DEVICE_CHUNK, MAX_DISKS, MAX_OFFER, MAX_RANGES,
    MAX_SNAPSHOTS, MAX_TEXT, Machine, Mode, OfferedGuest, PageRanges, ProcessorKind,
    ProcessorSetting, Processors, RequestSummary, Subject, ToDestination, ToSource, decode_control,
    encode_control, negotiate,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn hellos_decode_to_the_same(hello in strategies::hello()) {
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn a_damaged_hello_is_refused(hello in strategies::hello(), at in 0..44usize, bit in 0..8u8) {
        let mut bytes = hello.encode();
        bytes[at] ^= 1 << bit;
        prop_assert!(Hello::decode(&bytes).is_err());
    }

    #[test]
    fn both_sides_agree_on_the_same_result(one in strategies::hello(), two in strategies::hello()) {
        let two = Hello { id: one.id, role: one.role, ..two };
        prop_assert_eq!(negotiate(&one, &two).ok(), negotiate(&two, &one).ok());
    }

    #[test]
    fn frames_decode_to_the_same(frame in strategies::frame()) {
        let header = frame.encode();
        prop_assert_eq!(Frame::decode(&header, &properties::LIMITS), Ok(frame));
        if let Frame::Pages { range }
        | Frame::Compressed { range, .. }
        | Frame::Zeros { range }
        | Frame::Request { range } = frame
        {
            let decode = |pages| Frame::decode(&header, &Limits { pages });
            prop_assert!(decode(range.end().index()).is_ok());
            prop_assert!(decode(range.end().index() - 1).is_err());
        }
    }

    #[test]
    fn messages_to_the_destination_decode_to_the_same(message in strategies::to_destination()) {
        let payload = encode_control(&message).unwrap();
        prop_assert_eq!(decode_control::<ToDestination>(&payload), Ok(message.clone()));
    }

    #[test]
    fn messages_to_the_source_decode_to_the_same(message in strategies::to_source()) {
        let payload = encode_control(&message).unwrap();
        prop_assert_eq!(decode_control::<ToSource>(&payload), Ok(message));
    }

    #[test]
    fn a_truncated_or_extended_message_is_refused(message in strategies::to_destination(), cut in any::<prop::sample::Index>()) {
        let mut payload = encode_control(&message).unwrap();
        let cut = cut.index(payload.len());
        prop_assert_eq!(decode_control::<ToDestination>(&payload[..cut]), Err(ControlError::Truncated));
        payload.push(0);
        let number = u32::from(payload[0]);
        prop_assert_eq!(
            decode_control::<ToDestination>(&payload),
            Err(ControlError::Trailing { number, bytes: 1 })
        );
    }

    #[test]
    fn sets_of_pages_decode_to_the_same(pages in prop::collection::btree_set(0..5000u64, 0..300)) {
        // From a bitmap, as in the engine.
        let bitmap = hikkoshi_pages::PageBitmap::empty(5000);
        for page in &pages {
            bitmap.set(Page::new(*page));
        }
        let limits = Limits { pages: 5000 };
        let mut got = Vec::new();
        for ranges in PageRanges::batches(bitmap.runs(bitmap.all())) {
            let payload = encode_control(&ToDestination::Discard { ranges }).unwrap();
            let ToDestination::Discard { ranges } = decode_control(&payload).unwrap() else {
                panic!("another message was decoded");
            };
            got.extend(ranges.within(&limits).unwrap().iter().flat_map(|range| range.iter()));
        }
        prop_assert_eq!(got, pages.into_iter().map(Page::new).collect::<Vec<_>>());
    }
}

fn description() -> GuestDescription {
    let layout = RamLayout::new(vec![
        RamBlock {
            id: "ram0".into(),
            bytes: 4 << 30,
            host_page: 2 << 20,
            guest: vec![
                GuestRange {
                    gpa: 0,
                    offset: 0,
                    bytes: 2 << 30,
                },
                GuestRange {
                    gpa: 4 << 30,
                    offset: 2 << 30,
                    bytes: 2 << 30,
                },
            ],
        },
        RamBlock::new("dimm", 1 << 20, 4096),
    ])
    .unwrap();
    let description = GuestDescription {
        machine: "pc-q35-7.2".into(),
        architecture: "x86_64".into(),
        cpus: 4,
        cpu_model: "qemu64".into(),
        hypervisor: "QEMU 7.2.22".into(),
        running: true,
        blocks: GuestDescription::describe_blocks(&layout),
    };
    assert_eq!(description.layout(), Ok(layout));
    description
}

fn guest() -> OfferedGuest {
    OfferedGuest {
        domain: None,
        description: description(),
        machine: Machine::default(),
        processors: Processors::default(),
        allow_cpu_mismatch: false,
        disks: GuestDisks::default(),
    }
}

fn offer(guest: OfferedGuest) -> ToDestination {
    ToDestination::Offer {
        guest: Box::new(guest),
        mode: Mode::Hybrid,
        may_postcopy: true,
        background_links: 2,
        keeps_frames: false,
    }
}

fn described(description: GuestDescription) -> ToDestination {
    offer(OfferedGuest {
        description,
        ..guest()
    })
}

/// The fields of a guest's description before the blocks, behind a domain that is not there.
type Forged<B> = (
    u8,
    (
        &'static str,
        &'static str,
        u32,
        &'static str,
        &'static str,
        bool,
        B,
    ),
);

fn forge_offer<B: serde::Serialize>(blocks: B) -> Vec<u8> {
    let fields: Forged<B> = (0, ("m", "a", 1, "c", "h", true, blocks));
    forge(0, fields)
}

#[test]
fn a_layout_decodes_to_the_same() {
    let sent = description();
    let payload = encode_control(&described(sent.clone())).unwrap();
    let ToDestination::Offer { guest, .. } = decode_control(&payload).unwrap() else {
        panic!("another message was decoded");
    };
    assert_eq!(guest.description.layout(), sent.layout());
}

/// Checks the bound of a list or text. `fits` is at the bound, `too_long` is one
/// longer, and `forged` is the encoding of `too_long` that a faulty peer would
/// send: it must be refused.
fn check_bound(fits: &ToDestination, too_long: &ToDestination, forged: &[u8]) {
    let payload = encode_control(fits).unwrap();
    assert_eq!(decode_control::<ToDestination>(&payload).as_ref(), Ok(fits));
    let error = encode_control(too_long).unwrap_err();
    assert!(matches!(error, EncodeError::OutOfBounds { .. }), "{error}");
    let error = decode_control::<ToDestination>(forged).unwrap_err();
    assert_eq!(
        error,
        ControlError::Malformed {
            number: u32::from(forged[0])
        }
    );
}

/// Returns the payload of a message from its number and fields.
fn forge<F: serde::Serialize>(number: u32, fields: F) -> Vec<u8> {
    postcard::to_allocvec(&(number, fields)).unwrap()
}

#[test]
fn names_are_bounded() {
    let named = |len: usize| {
        described(GuestDescription {
            machine: "m".repeat(len),
            ..description()
        })
    };
    let mut forged = forge(0, (0u8, "m".repeat(MAX_TEXT + 1)));
    forged.extend([0; 64]);
    check_bound(&named(MAX_TEXT), &named(MAX_TEXT + 1), &forged);
}

#[test]
fn blocks_are_bounded() {
    let with = |blocks: usize| {
        let block = BlockDescription {
            id: "b".into(),
            bytes: 4096,
            host_page: 4096,
            guest: Vec::new(),
        };
        described(GuestDescription {
            blocks: vec![block; blocks],
            ..description()
        })
    };
    let block = ("b", 4096u64, 4096u64, Vec::<u64>::new());
    let forged = forge_offer(vec![block; 1025]);
    check_bound(&with(1024), &with(1025), &forged);
}

#[test]
fn guest_ranges_are_bounded() {
    let with = |pieces: usize| {
        let mut description = description();
        let piece = GuestRangeDescription {
            gpa: 0,
            offset: 0,
            bytes: 4096,
        };
        description.blocks[0].guest = vec![piece; pieces];
        described(description)
    };
    let block = ("b", 4096u64, 4096u64, vec![(0u64, 0u64, 4096u64); 1025]);
    let forged = forge_offer(vec![block]);
    check_bound(&with(1024), &with(1025), &forged);
}

#[test]
fn device_state_chunks_are_bounded() {
    let with = |len: usize| ToDestination::DeviceStateChunk {
        bytes: vec![0x5a; len],
    };
    let forged = forge(3, vec![0x5au8; MAX_DEVICE_CHUNK + 1]);
    check_bound(
        &with(MAX_DEVICE_CHUNK),
        &with(MAX_DEVICE_CHUNK + 1),
        &forged,
    );
}

#[test]
fn host_page_lists_are_bounded() {
    let with = |len: usize| ToSource::Accept {
        host_pages: vec![4096; len],
        marks_holes: true,
    };
    assert!(encode_control(&with(1024)).is_ok());
    let error = encode_control(&with(1025)).unwrap_err();
    let subject = Subject::Other;
    assert_eq!(error, EncodeError::OutOfBounds { subject });
    let error = decode_control::<ToSource>(&forge(0, (vec![4096u64; 1025], false))).unwrap_err();
    assert_eq!(error, ControlError::Malformed { number: 0 });
}

#[test]
fn the_longest_list_of_ranges_fits_in_a_message() {
    // As far apart as possible: each takes the most bytes.
    let largest = hikkoshi_pages::MAX_PAGES / MAX_RANGES as u64;
    let runs = (0..MAX_RANGES as u64)
        .map(|n| PageRange::from_len(Page::new(n * largest + largest / 2), largest / 2));
    let ranges = PageRanges::batches(runs).next().unwrap();
    let payload = encode_control(&ToDestination::Discard { ranges }).unwrap();
    assert!(payload.len() <= MAX_CONTROL);
    // One more than a list may have, as a faulty peer would send it.
    let forged = forge(1, vec![(0u64, 1u64); MAX_RANGES + 1]);
    let error = decode_control::<ToDestination>(&forged).unwrap_err();
    assert_eq!(error, ControlError::Malformed { number: 1 });
}

/// A thousand disks with usual names fit. Of longer ones it is said what to shorten.
#[test]
fn the_disks_of_a_guest_fit_in_a_message_or_their_names_are_too_long() {
    let disks = |path: usize, backing: usize| {
        let image = DiskImage {
            file: "/".repeat(path).into(),
            format: "qcow2".into(),
            storage: "nfs4".into(),
            names: vec![
                ImageName {
                    name: "x".repeat(60).into(),
                    unique: true,
                };
                2
            ],
            ..DiskImage::default()
        };
        let disk = Disk {
            device: "/machine/peripheral/virtio-disk1000/virtio-backend".into(),
            drive: "drive-virtio-disk1000".into(),
            place: "pcie.0/02.0/03.0/0:0:100".into(),
            bytes: Some(u64::MAX),
            read_only: false,
            kind: DiskKind::Fixed,
            plan: DiskPlan::Same,
            backing: Backing::Known(vec![image.clone(); backing]),
            image,
        };
        let disks = GuestDisks {
            mark: [1; 16],
            disks: vec![disk; MAX_DISKS],
        };
        encode_control(&offer(OfferedGuest { disks, ..guest() }))
    };
    assert!(disks(100, 1).is_ok());
    let error = disks(2000, 1).unwrap_err();
    let subject = Subject::Disks;
    assert!(matches!(error, EncodeError::TooLong { subject: found, .. } if found == subject));
    let text = error.to_string();
    for part in [
        "the largest part is the description of the guest's disks; ",
        "shorten the paths of the guest's disks and of their backing files",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_message_that_is_too_long_is_refused() {
    let mut long = description();
    long.blocks = (0..1024)
        .map(|n| BlockDescription {
            id: format!("{n:04096}"),
            bytes: 4096,
            host_page: 4096,
            guest: Vec::new(),
        })
        .collect();
    let error = encode_control(&described(long)).unwrap_err();
    assert!(matches!(error, EncodeError::TooLong { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("the largest part is the description of the guest's memory; "),
        "{text}"
    );
    let payload = vec![0; MAX_OFFER + 1];
    let error = decode_control::<ToSource>(&payload).unwrap_err();
    assert_eq!(
        error,
        ControlError::TooLong {
            bytes: MAX_OFFER + 1
        }
    );
}

/// The error names the largest part, and what to do about it.
#[test]
fn the_error_names_the_part_of_an_offer_that_is_too_long() {
    let long = |n: usize| format!("{n:04096}").into_boxed_str();
    let settings: Vec<_> = (0..400)
        .map(|n| ProcessorSetting {
            name: long(n),
            value: "on".into(),
        })
        .collect();
    let kind = ProcessorKind {
        settings,
        ..ProcessorKind::default()
    };
    let processors = Processors {
        kinds: vec![kind; 3],
        ..Processors::default()
    };
    let devices = (0..1100)
        .map(|n| Device {
            place: "".into(),
            kind: "x".into(),
            name: long(n),
            pci: 0,
        })
        .collect();
    let machine = Machine {
        devices,
        auxiliary: Vec::new(),
    };
    let domain = Domain {
        name: "d".into(),
        uuid: "u".into(),
        xml: Vec::new(),
        persistent: Vec::new(),
        autostart: false,
        snapshots: vec![
            DomainSnapshot {
                xml: vec![b'x'; 40 << 10],
                current: false,
            };
            MAX_SNAPSHOTS
        ],
    };
    for (guest, what, advice) in [
        (
            OfferedGuest {
                processors,
                ..guest()
            },
            "guest's processors;",
            "fewer virtual CPUs",
        ),
        (
            OfferedGuest { machine, ..guest() },
            "guest's devices;",
            "names of the guest's devices",
        ),
        (
            OfferedGuest {
                domain: Some(domain),
                ..guest()
            },
            "guest's domain;",
            "snapshot-delete --metadata",
        ),
    ] {
        let text = encode_control(&offer(guest)).unwrap_err().to_string();
        assert!(text.contains(what) && text.contains(advice), "{text}");
    }
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let reason = format!("x{}", "é".repeat(MAX_TEXT));
    let payload = encode_control(&ToSource::Failed { reason }).unwrap();
    let ToSource::Failed { reason } = decode_control(&payload).unwrap() else {
        panic!("another message was decoded");
    };
    assert_eq!(reason.len(), MAX_TEXT - 1);
    assert!(reason.starts_with("xé") && reason.ends_with('é'));
}

#[test]
fn messages_of_a_later_version_have_their_own_error() {
    for payload in [&[127][..], &[0x80, 0x01]] {
        let error = decode_control::<ToDestination>(payload).unwrap_err();
        assert!(matches!(error, ControlError::Unknown { .. }), "{error}");
        let error = decode_control::<ToSource>(payload).unwrap_err();
        assert!(matches!(error, ControlError::Unknown { .. }), "{error}");
    }
    assert_eq!(
        decode_control::<ToSource>(&[127]).unwrap_err().to_string(),
        "reading a control message: number 127 is unknown to this version; close the link, and use \
         the same version of hikkoshi on both sides"
    );
    assert_eq!(
        decode_control::<ToSource>(&[]),
        Err(ControlError::Truncated)
    );
}

#[test]
fn a_peer_with_another_protocol_has_its_own_error() {
    let mut bytes = *b"GET / HTTP/1.1\r\nHost: example.net\r\n\r\n.......";
    assert_eq!(bytes.len(), hikkoshi_wire::HELLO_LEN);
    assert_eq!(Hello::decode(&bytes), Err(HelloError::NotHikkoshi));
    // A well-formed hello with invalid contents.
    let mut forged = |at: usize, value: u16| {
        bytes = [0; 44];
        bytes[..8].copy_from_slice(b"hikkoshi");
        bytes[8..12].copy_from_slice(&[1, 0, 1, 0]);
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        Hello::decode(&bytes)
    };
    assert_eq!(forged(8, 0), Err(HelloError::Versions { min: 0, max: 1 }));
    assert_eq!(forged(8, 2), Err(HelloError::Versions { min: 2, max: 1 }));
    assert_eq!(forged(12, 5), Err(HelloError::Role { role: 5, index: 0 }));
    assert_eq!(forged(14, 1), Err(HelloError::Role { role: 0, index: 1 }));
    assert!(forged(10, 7).is_ok());
}

#[test]
fn histograms_are_bounded() {
    let with = |buckets: usize| ToSource::Complete {
        requests: RequestSummary {
            buckets: vec![1; buckets],
            ..RequestSummary::default()
        },
        faults: Box::default(),
    };
    let payload = encode_control(&with(64)).unwrap();
    assert_eq!(decode_control::<ToSource>(&payload), Ok(with(64)));
    let error = encode_control(&with(65)).unwrap_err();
    let subject = Subject::Other;
    assert_eq!(error, EncodeError::OutOfBounds { subject });
    let forged = forge(7, (0u64, 0u64, 0u64, 0u64, 0u64, vec![1u64; 65]));
    let error = decode_control::<ToSource>(&forged).unwrap_err();
    assert_eq!(error, ControlError::Malformed { number: 7 });
}
