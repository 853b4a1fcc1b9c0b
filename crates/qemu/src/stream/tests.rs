//! Properties of the bytes; `tests/qemu/streams/` compares them with real QEMUs.

use proptest::prelude::*;

use super::*;

type Device = (u32, String, u32, u32, Vec<u8>);

/// What `xen-save-devices-state` writes for these devices.
pub(crate) fn saved(devices: &[Device]) -> Vec<u8> {
    let mut bytes = b"QEVM\0\0\0\x03".to_vec();
    for (id, name, instance, version, payload) in devices {
        bytes.push(4);
        bytes.extend(id.to_be_bytes());
        bytes.push(u8::try_from(name.len()).unwrap());
        bytes.extend(name.as_bytes());
        bytes.extend(instance.to_be_bytes());
        bytes.extend(version.to_be_bytes());
        bytes.extend(payload);
        bytes.push(0x7e);
        bytes.extend(id.to_be_bytes());
    }
    bytes.push(0);
    bytes
}

fn device() -> impl Strategy<Value = Device> {
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    let name = "[ -~]{1,255}";
    // No payload contains such a number by chance.
    let id = 0x7177_0000..0x7177_ffffu32;
    (id, name, any::<u32>(), any::<u32>(), payload)
}

fn devices() -> impl Strategy<Value = Vec<Device>> {
    prop::collection::vec(device(), 1..8)
}

fn block(name: &str, used: u64) -> StreamBlock {
    StreamBlock {
        name: name.to_owned(),
        used,
    }
}

proptest! {
    #[test]
    fn sections_are_read_as_they_were_written(devices in devices()) {
        let bytes = saved(&devices);
        let parsed = SavedDevices::parse(&bytes).unwrap();
        let sections = parsed.sections().unwrap();
        let found: Vec<Device> = sections
            .iter()
            .map(|s| (s.id, s.name.to_owned(), s.instance, s.version, s.payload.to_vec()))
            .collect();
        prop_assert_eq!(found, devices);
        prop_assert_eq!(parsed.as_bytes(), &bytes[8..bytes.len() - 1]);
    }

    #[test]
    fn a_truncated_state_is_an_error(devices in devices(), at in any::<prop::sample::Index>()) {
        let bytes = saved(&devices);
        let truncated = &bytes[..at.index(bytes.len())];
        if let Ok(parsed) = SavedDevices::parse(truncated) {
            // Payload and header can look like the end. Then a section is incomplete.
            prop_assert!(parsed.sections().is_err() || truncated.ends_with(&[0]));
        }
    }

    #[test]
    fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let refused = SavedDevices::parse(&bytes).is_err();
        prop_assert!(refused || bytes.starts_with(b"QEVM"));
    }

    #[test]
    fn the_frame_surrounds_the_sections_unchanged(devices in devices(), machine in "[a-z0-9.-]{1,64}") {
        let bytes = saved(&devices);
        let parsed = SavedDevices::parse(&bytes).unwrap();
        let blocks = [block("pc.ram", 1 << 30), block("vga.vram", 16 << 20)];
        let stream = whole(&machine, &blocks, &parsed).unwrap();
        let head = head(&machine, &blocks).unwrap();
        prop_assert_eq!(&stream[..head.len()], &head[..]);
        prop_assert_eq!(&stream[head.len()..stream.len() - tail().len()], parsed.as_bytes());
        prop_assert!(stream.ends_with(&tail()));
    }
}

#[test]
fn the_frame_is_byte_for_byte_what_qemu_reads() {
    let blocks = [block("pc.ram", 0x800_0000), block("/rom@x", 0x1000)];
    let expected: Vec<&[u8]> = vec![
        b"QEVM\0\0\0\x03",
        b"\x07\0\0\0\x0dpc-i440fx-7.2",
        // Mark, number, name, instance, version.
        b"\x04\xff\xff\xff\xff\x03ram\0\0\0\0\0\0\0\x04",
        // The sum of the lengths, and MEM_SIZE.
        b"\0\0\0\0\x08\0\x10\x04",
        b"\x06pc.ram\0\0\0\0\x08\0\0\0",
        b"\x06/rom@x\0\0\0\0\0\0\x10\0",
        b"\0\0\0\0\0\0\0\x10",
        b"\x7e\xff\xff\xff\xff",
    ];
    assert_eq!(head("pc-i440fx-7.2", &blocks).unwrap(), expected.concat());
    assert_eq!(&tail(), b"\0\x06\0\0\0\x02{}");
}

#[test]
fn what_the_format_cannot_hold_is_an_error() {
    let long = "x".repeat(256);
    for (machine, blocks, expected) in [
        (long.as_str(), vec![], "machine type"),
        ("pc", vec![block(&long, 0)], "RAM block"),
        ("pc", vec![block("odd", 4097)], "multiple of 4 KiB"),
        (
            "pc",
            vec![block("a", 1 << 63), block("b", 1 << 63)],
            "too long",
        ),
    ] {
        let error = head(machine, &blocks).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn each_way_of_being_wrong_has_its_error() {
    let good = saved(&[(1, "timer".to_owned(), 0, 2, vec![1, 2, 3])]);
    let changed = |at: usize, byte| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let end = good.len() - 1;
    for (bytes, expected) in [
        (
            good[..5].to_vec(),
            "ends after 5 bytes, in the middle of its header",
        ),
        (changed(0, b'X'), "begins with 0x5845564d, version 3"),
        (changed(7, 4), "version 4"),
        (b"QEVM\0\0\0\x03\0".to_vec(), "no section at byte 8"),
        (changed(14, 7), "no section at byte 9"),
        (changed(end, 4), "does not end with a section's footer"),
        (changed(end - 5, 0), "machine types before 2.4"),
        (good[..end].to_vec(), "does not end with"),
    ] {
        let error = SavedDevices::parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let long = vec![0; usize::try_from(hikkoshi_wire::MAX_DEVICE_STATE).unwrap() + 1];
    let error = SavedDevices::parse(&long).unwrap_err();
    assert!(matches!(error, StreamError::TooLong { .. }), "{error}");
}

proptest! {
    /// What a machine with a pipe gets apart: the beginning, the sections, the end.
    #[test]
    fn a_stream_consists_of_its_parts(devices in devices(), used in 1u64..1000) {
        let bytes = saved(&devices);
        let blocks = [block("pc.ram", used * 4096)];
        let stream = whole("pc-q35-7.2", &blocks, &SavedDevices::parse(&bytes).unwrap()).unwrap();
        let parts = [
            &beginning("pc-q35-7.2").unwrap()[..],
            sections(&stream).unwrap(),
            &tail(),
        ];
        prop_assert_eq!(parts.concat(), stream);
    }

    #[test]
    fn any_bytes_have_sections_or_not(bytes: Vec<u8>) {
        let _ = sections(&bytes);
    }

    #[test]
    fn a_truncated_stream_has_no_sections(devices in devices(), left in 0usize..200) {
        let bytes = saved(&devices);
        let blocks = [block("pc.ram", 4096)];
        let stream = whole("pc", &blocks, &SavedDevices::parse(&bytes).unwrap()).unwrap();
        if let Some(part) = stream.get(..left.min(stream.len() - 1)) {
            // (A part that happens to end like the whole is one.)
            prop_assert!(sections(part).is_err() || part.ends_with(&tail()));
        }
    }

}

/// By `loadvm_process_command` in QEMU's `migration/savevm.c`.
#[test]
fn a_filler_is_a_package_whose_stream_ends_at_once() {
    let filler = filler(70_000);
    assert_eq!(filler[..9], [8, 0, 7, 0, 4, 0, 1, 0x11, 0x70]);
    assert_eq!(filler.len(), 9 + 70_000);
    assert_eq!(filler[9], 0, "the end mark");
}

#[test]
fn the_virtual_clock_is_found() {
    let timer = |clock: u64| {
        let payload = [&[1; 16][..], &clock.to_be_bytes(), &[5, 1, b'x']].concat();
        (0x7177_0002, "timer".to_owned(), 0, 2, payload)
    };
    let other = (0x7177_0001, "other".to_owned(), 0, 1, vec![9; 40]);
    let all = saved(&[other.clone(), timer(7), other.clone()]);
    let clock = |bytes: &[u8]| virtual_clock(SavedDevices::parse(bytes).unwrap().as_bytes());
    assert_eq!(clock(&all), Some(7));
    assert_eq!(clock(&saved(&[other])), None);
    let mut short = timer(7);
    short.4.truncate(20);
    assert_eq!(clock(&saved(&[short])), None);
}
