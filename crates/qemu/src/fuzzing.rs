//! The functions of the fuzz targets `qemu_*` (`fuzz/fuzz_targets`): properties of all text that
//! QEMU or the kernel can return. Both are trusted, but a QEMU can be broken, and a guest's owner
//! chooses names and paths.
//!
//! The property tests below run them on random and damaged input, and on the kept fuzz inputs.

use crate::process::{self, maps};
use crate::qmp::fuzzing::{Lines, MAX_LINE, Message};
use crate::ram::{blocks, mtree};
use crate::stream::{SavedDevices, StreamBlock, head, tail, whole};

/// QMP: splits bytes into lines, independent of how they arrive, and parses the lines.
pub fn qmp(bytes: &[u8]) {
    let whole = lines(bytes, usize::MAX);
    let piece = 1 + usize::from(bytes.last().copied().unwrap_or_default());
    assert_eq!(whole, lines(bytes, piece), "in pieces of {piece} bytes");
    for line in whole {
        assert!(!line.is_empty() && line.len() <= MAX_LINE);
        if let Err(text) = Message::parse(&line) {
            assert!(
                text.len() < 1024 && !text.contains(char::is_control),
                "{text}"
            );
        }
    }
}

fn lines(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let mut lines = Lines::default();
    let mut all = Vec::new();
    for piece in bytes.chunks(piece) {
        lines.push(piece);
        while let Ok(Some(line)) = lines.next_line() {
            all.push(line);
        }
    }
    all
}

/// `/proc/PID/maps`: every result is a valid range of a file.
pub fn maps(bytes: &[u8]) {
    let Ok(found) = maps::read(bytes) else {
        panic!("reading from memory does not fail")
    };
    for mapping in found {
        assert!(
            mapping.start < mapping.end && mapping.inode != 0,
            "{mapping:?}"
        );
        for (offset, bytes) in [
            (mapping.offset, mapping.bytes()),
            (mapping.offset, u64::MAX),
            (u64::MAX, 1),
            (0, 0),
        ] {
            if let Some(address) = mapping.address_of(offset, bytes) {
                assert!(
                    address >= mapping.start
                        && address
                            .checked_add(bytes)
                            .is_some_and(|end| end <= mapping.end),
                    "{mapping:?}: {offset} {bytes}"
                );
            }
        }
    }
}

/// `info mtree -f -o`: the ranges cover a block completely and without gaps, or there are
/// none.
pub fn mtree(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for flat_ranges in mtree::parse(&text).values() {
        for bytes in [0, 4096, 1 << 32, u64::MAX] {
            let Some(ranges) = mtree::ranges(flat_ranges, bytes) else {
                continue;
            };
            let mut end = 0;
            for range in &ranges {
                assert_eq!(range.offset, end, "{ranges:?}");
                end = range.offset.checked_add(range.bytes).unwrap_or_default();
            }
            assert!(end == bytes || ranges.is_empty(), "{ranges:?} of {bytes}");
        }
    }
}

/// `info ramblock`: every block has a name, a length and a valid range of addresses.
pub fn ramblock(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let found = match blocks::parse(&text) {
        Ok(found) => found,
        Err(what) => return assert!(!what.is_empty()),
    };
    for (index, block) in found.iter().enumerate() {
        assert!(!block.name.is_empty() && text.contains(&block.name));
        assert!(block.used <= block.total && block.total > 0, "{block:?}");
        assert!(block.page_size.is_power_of_two(), "{block:?}");
        assert_eq!(block.host.is_some(), block.read_only.is_some());
        let end = block.host.unwrap_or(0).checked_add(block.total);
        assert!(end.is_some(), "{block:?}");
        assert!(
            found[..index].iter().all(|other| other.name != block.name),
            "{block:?} twice"
        );
    }
}

/// `/proc/PID/stat`.
pub fn stat(bytes: &[u8]) {
    let _ = process::parse_start_time(&String::from_utf8_lossy(bytes));
}

/// What `xen-save-devices-state` writes: what is accepted is passed on unchanged, and its sections
/// make up all of it.
pub fn stream(bytes: &[u8]) {
    let Ok(devices) = SavedDevices::parse(bytes) else {
        return;
    };
    let _ = devices.asynchronous_faults();
    assert_eq!(bytes[8..bytes.len() - 1], *devices.as_bytes());
    let blocks = [("pc.ram", 1 << 27), ("", 0)].map(|(name, used)| StreamBlock {
        name: name.to_owned(),
        used,
    });
    let written = whole("pc-i440fx-7.2", &blocks, &devices);
    let head = head("pc-i440fx-7.2", &blocks);
    let expected = head.map(|head| [&head[..], devices.as_bytes(), &tail()].concat());
    assert_eq!(written, expected);
    if let Ok(sections) = devices.sections() {
        let mut all = Vec::new();
        for section in sections {
            assert!(!section.name.contains(char::is_control));
            all.push(4);
            all.extend(section.id.to_be_bytes());
            all.push(u8::try_from(section.name.len()).unwrap_or_default());
            all.extend(section.name.as_bytes());
            all.extend(section.instance.to_be_bytes());
            all.extend(section.version.to_be_bytes());
            all.extend(section.payload);
            all.push(0x7e);
            all.extend(section.id.to_be_bytes());
        }
        assert_eq!(all, devices.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TARGETS: [hikkoshi_fuzz_replay::Target; 6] = [
        ("stream", stream),
        ("qmp", qmp),
        ("maps", maps),
        ("mtree", mtree),
        ("ramblock", ramblock),
        ("stat", stat),
    ];

    fn all(bytes: &[u8]) {
        for (_, target) in TARGETS {
            target(bytes);
        }
    }

    /// Captured: a QMP session, a memory map, a memory tree, RAM blocks and a `stat` line.
    const REAL: [&str; 5] = [
        concat!(
            r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}}}"#,
            "\r\n",
            r#"{"timestamp": {"seconds": 1763755200, "microseconds": 3}, "event": "STOP"}"#,
            "\r\n",
            r#"{"return": {"status": "active"}, "id": 2}"#,
            "\r\n",
            r#"{"id": 4, "error": {"class": "GenericError", "desc": "no"}}"#,
            "\r\n"
        ),
        "7f682fffd000-7f683fffd000 rw-s 00000000 00:1b 74    /dev/shm/b\n\
         7f68bffff000-7f68ffffe000 rw-s 00000000 00:1b 72    /dev/shm/car ol-a (deleted)\n\
         7f68ffffe000-7f693ffff000 rw-s 3ffff000 00:1b 72    /dev/shm/car ol-a (deleted)\n",
        "FlatView #1\n AS \"memory\", root: system\n  \
         0000000000000000-00000000000c2fff (prio 0, ram): ram0 owner:{obj path=/objects/ram0}\n  \
         00000000000c3000-00000000000e7fff (prio 0, rom): ram0 @00000000000c3000 \
         owner:{obj path=/objects/ram0} KVM\n",
        "              Block Name    PSize              Offset               Used              \
         Total                HVA  RO\n                  pc.ram    4 KiB  \
         0x0000000000000000 0x0000000010000000 0x0000000010000000 0x00007fd6e3e00000  rw\n    \
         /rom@etc/acpi/tables    4 KiB  0x00000000119c0000 0x0000000000020000 \
         0x0000000000200000 0x00007fd6e1600000  ro\n",
        "4711 (qemu) (x) S 1 4711 4711 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 5 0 815 0 0\n",
    ];

    proptest! {
        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            all(&bytes);
        }

        #[test]
        fn damaged_text_is_harmless(
            text in prop::sample::select(&REAL[..]),
            times in 1..4usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = text.repeat(times).into_bytes();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            all(&bytes);
        }

        /// Extreme numbers in the place of others.
        #[test]
        fn extreme_numbers_are_harmless(
            text in prop::sample::select(&REAL[..]),
            at in any::<prop::sample::Index>(),
            number in prop::sample::select(&["0", "-1", "ffffffffffffffff", "fffffffffffffffff",
                "18446744073709551615", "1e400", "99999999999999999999999999"][..]),
        ) {
            let places: Vec<usize> = text
                .char_indices()
                .filter(|(_, c)| c.is_ascii_hexdigit())
                .map(|(at, _)| at)
                .collect();
            let start = places[at.index(places.len())];
            let rest = &text[start..];
            let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
            let bytes = [&text[..start], number, &rest[end..]].concat();
            all(bytes.as_bytes());
        }
    }

    #[test]
    fn the_kept_fuzz_inputs_pass() {
        hikkoshi_fuzz_replay::replay("qemu", &TARGETS);
    }
}
