//! Parses the guest addresses of memory backends from `info mtree -f -o`.
//!
//! QMP does not report the guest addresses of a backend (except for DIMMs). The human
//! monitor does: it prints the guest's flattened address space, with the owner of each
//! flat range:
//!
//! ```text
//! FlatView #1 AS "memory", root: system AS "cpu-memory-0", root: system Root memory region: system
//! 0000000000000000-00000000000c2fff (prio 0, ram): ram0 owner:{obj path=/objects/ram0} KVM
//! 00000000000c3000-00000000000e7fff (prio 0, rom): ram0 @00000000000c3000 owner:{obj
//! path=/objects/ram0} KVM
//! ```
//!
//! Flat ranges are identified by their owner, because a region's *name* is chosen by the
//! user and can be the name of another region. The owner's path cannot.
//!
//! # Independent of the guest's state
//!
//! The visible flat ranges depend on the guest's state: firmware write-protects its copy in
//! low memory, system-management memory hides the top of the memory below 4 GiB, the
//! VGA window hides a flat range at 640 KiB. The two sides of a migration are in different
//! states, so the ranges are made independent of it: flat ranges of a block with the same
//! distance between guest address and offset are one range, and hidden memory belongs
//! to the range before it.

use std::collections::BTreeMap;

use hikkoshi_pages::GuestRange;

/// The most lines that are parsed.
const MAX_FLAT_RANGES: usize = 1 << 16;

/// One line of the memory view: a flat range of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlatRange {
    /// Guest address.
    gpa: u64,
    /// Offset in the backend.
    offset: u64,
    /// Bytes.
    bytes: u64,
}

/// The flat ranges of each backend in the system's memory, by the backend's path
/// (`/objects/ID`).
pub(crate) fn parse(text: &str) -> BTreeMap<String, Vec<FlatRange>> {
    let mut found: BTreeMap<String, Vec<FlatRange>> = BTreeMap::new();
    for line in system_memory(text) {
        if let Some((owner, flat_range)) = flat_range(line) {
            found.entry(owner).or_default().push(flat_range);
        }
    }
    found
}

/// A flat range of any memory region that is RAM or ROM, also of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedFlatRange {
    /// The region's name, which several regions can have.
    pub(crate) name: String,
    /// The region's owner or parent, as QEMU prints it.
    pub(crate) owner: String,
    /// Guest address.
    pub(crate) gpa: u64,
    /// Offset in the region.
    pub(crate) offset: u64,
}

/// The flat ranges of all RAM and ROM in the system's memory.
pub(crate) fn named(text: &str) -> Vec<NamedFlatRange> {
    system_memory(text).filter_map(named_flat_range).collect()
}

/// The lines of the system's memory.
fn system_memory(text: &str) -> impl Iterator<Item = &str> {
    let mut in_memory = false;
    text.lines()
        .take(MAX_FLAT_RANGES)
        .map(str::trim)
        .filter(move |line| {
            if line.starts_with("FlatView") {
                in_memory = false;
            } else if line.starts_with("AS \"memory\",") {
                in_memory = true;
            }
            in_memory
        })
}

/// `START-END (prio N, KIND): NAME[ @OFFSET][ owner:{obj path=PATH}]…`.
fn flat_range(line: &str) -> Option<(String, FlatRange)> {
    const OWNER: &str = " owner:{obj path=";
    let (gpa, bytes, rest) = head(line)?;
    // From the right: a name can contain anything.
    let (name, owner) = rest.rsplit_once(OWNER)?;
    let (owner, _accelerator) = owner.split_once('}')?;
    let (_, offset) = name_and_offset(name)?;
    Some((owner.to_owned(), FlatRange { gpa, offset, bytes }))
}

/// A line of a flat range of any owner.
fn named_flat_range(line: &str) -> Option<NamedFlatRange> {
    let (gpa, _, rest) = head(line)?;
    let owner = [" owner:{", " parent:{"].map(|mark| rest.rfind(mark));
    let (name, owner) = rest.split_at(owner.into_iter().flatten().max()?);
    let (name, offset) = name_and_offset(name)?;
    Some(NamedFlatRange {
        name: name.to_owned(),
        owner: owner.to_owned(),
        gpa,
        offset,
    })
}

/// Guest address, length and the rest of a line with RAM or ROM.
fn head(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let (kind, rest) = rest.strip_prefix("(prio ")?.split_once("): ")?;
    let kind = kind.split_once(", ")?.1;
    if !matches!(kind, "ram" | "rom" | "romd" | "nv-ram" | "nv-rom" | "ramd") {
        return None;
    }
    // The end is the last byte, not the one after it.
    Some((start, end.checked_sub(start)?.checked_add(1)?, rest))
}

fn name_and_offset(text: &str) -> Option<(&str, u64)> {
    match text.rsplit_once(" @") {
        Some((name, offset)) if offset.len() == 16 => {
            Some((name, u64::from_str_radix(offset, 16).ok()?))
        }
        _ => Some((text, 0)),
    }
}

/// Converts the flat ranges of one block of `bytes` to ranges that do not depend on the
/// guest's state, ascending in the block. `None` if they do not fit the block, or
/// contradict each other.
pub(crate) fn ranges(flat_ranges: &[FlatRange], bytes: u64) -> Option<Vec<GuestRange>> {
    // By distance: the smallest and the greatest offset.
    let mut extents: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for flat_range in flat_ranges {
        let end = flat_range.offset.checked_add(flat_range.bytes)?;
        let distance = flat_range.gpa.checked_sub(flat_range.offset)?;
        if end > bytes {
            return None;
        }
        let extent = extents.entry(distance).or_insert((flat_range.offset, end));
        *extent = (extent.0.min(flat_range.offset), extent.1.max(end));
    }
    let mut ordered: Vec<(u64, u64, u64)> = extents
        .into_iter()
        .map(|(distance, (start, end))| (start, end, distance))
        .collect();
    ordered.sort_unstable();
    // Skip a window that shows a part which is also visible elsewhere.
    let mut kept: Vec<(u64, u64, u64)> = Vec::new();
    for next in ordered {
        match kept.last() {
            Some(last) if next.1 <= last.1 => {}
            Some(last) if next.0 == last.0 => {
                // The earlier one is the window.
                kept.pop();
                kept.push(next);
            }
            Some(last) if next.0 < last.1 => return None,
            _ => kept.push(next),
        }
    }
    let starts: Vec<u64> = kept.iter().skip(1).map(|range| range.0).collect();
    let mut result = Vec::with_capacity(kept.len());
    for (index, (start, _, distance)) in kept.into_iter().enumerate() {
        let offset = if index == 0 { 0 } else { start };
        let end = starts.get(index).copied().unwrap_or(bytes);
        result.push(GuestRange {
            gpa: distance.checked_add(offset)?,
            offset,
            bytes: end - offset,
        });
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = include_str!("../../tests/captured/mtree-7.2-numa.txt");
    const V10: &str = include_str!("../../tests/captured/mtree-10.0-numa.txt");
    const V7_HOLE: &str = include_str!("../../tests/captured/mtree-7.2-hole.txt");
    const V10_HOLE: &str = include_str!("../../tests/captured/mtree-10.0-hole.txt");

    fn of(text: &str, id: &str, bytes: u64) -> Vec<GuestRange> {
        let found = parse(text);
        ranges(&found[&format!("/objects/{id}")], bytes).unwrap()
    }

    fn range(gpa: u64, offset: u64, bytes: u64) -> GuestRange {
        GuestRange { gpa, offset, bytes }
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn numa_backends_and_a_dimm() {
        for text in [V7, V10] {
            assert_eq!(of(text, "ram0", 2 * GIB), [range(0, 0, 2 * GIB)]);
            assert_eq!(of(text, "ram1", 2 * GIB), [range(4 * GIB, 0, 2 * GIB)]);
            assert_eq!(of(text, "d0", GIB / 4), [range(6 * GIB, 0, GIB / 4)]);
            assert_eq!(parse(text).len(), 3, "nothing but backends");
        }
    }

    #[test]
    fn one_backend_on_both_sides_of_the_hole() {
        for text in [V7_HOLE, V10_HOLE] {
            assert_eq!(
                of(text, "ram", 4 * GIB),
                [range(0, 0, 2 * GIB), range(4 * GIB, 2 * GIB, 2 * GIB)]
            );
        }
    }

    #[test]
    fn hidden_memory_belongs_to_the_range_before_it() {
        let flat_range = |gpa, offset, bytes| FlatRange { gpa, offset, bytes };
        // The VGA window, system-management memory at the top, the hole.
        let flat_ranges = [
            flat_range(0, 0, 0xa0000),
            flat_range(0xc0000, 0xc0000, 2 * GIB - 0xc0000 - 0x80_0000),
            flat_range(4 * GIB, 2 * GIB, GIB),
        ];
        assert_eq!(
            ranges(&flat_ranges, 3 * GIB).unwrap(),
            [range(0, 0, 2 * GIB), range(4 * GIB, 2 * GIB, GIB)]
        );
        // A window that shows low memory a second time.
        let mut windowed = flat_ranges.to_vec();
        windowed.push(flat_range(0xfeda_0000, 0xa0000, 0x20000));
        assert_eq!(ranges(&windowed, 3 * GIB), ranges(&flat_ranges, 3 * GIB));
        let mut windowed = flat_ranges.to_vec();
        windowed.push(flat_range(0xfeda_0000, 0, 0x1000));
        assert_eq!(ranges(&windowed, 3 * GIB), ranges(&flat_ranges, 3 * GIB));
    }

    #[test]
    fn contradictory_pieces_are_refused() {
        let flat_range = |gpa, offset, bytes| FlatRange { gpa, offset, bytes };
        for (flat_ranges, why) in [
            (vec![flat_range(0, 0, 0x2000)], "beyond the block"),
            (vec![flat_range(0, 0x1000, 0x1000)], "below its own offset"),
            (
                vec![flat_range(0, 0, u64::MAX), flat_range(0, 1, u64::MAX)],
                "overflow",
            ),
        ] {
            assert_eq!(ranges(&flat_ranges, 0x1000), None, "{why}");
        }
        let overlapping = [flat_range(0, 0, 0x3000), flat_range(0x9000, 0x2000, 0x2000)];
        assert_eq!(ranges(&overlapping, 0x4000), None);
        assert_eq!(ranges(&[], 0x1000), Some(vec![]));
    }

    #[test]
    fn names_are_not_mistaken_for_owners() {
        let line = "0000000000000000-0000000000000fff (prio 0, ram): x owner:{obj path=/objects/a} @0 \
                    owner:{obj path=/objects/b} KVM";
        assert_eq!(flat_range(line).unwrap().0, "/objects/b");
        for bad in [
            "",
            "0-1",
            "0000-ffff (prio 0, ram): ram",
            "ffff-0000 (prio 0, ram): ram owner:{obj path=/objects/a}",
            "0000-ffff (prio 0, i/o): io owner:{obj path=/objects/a}",
            "0000-ffff (prio 0, ram): v owner:{dev path=/machine/q35}",
            "0000-ffff (prio 0, ram): v parent:{obj path=/machine/unattached}",
            "0000-ffff (prio 0, ram): ram owner:{obj path=/objects/a",
        ] {
            assert_eq!(flat_range(bad), None, "{bad}");
        }
    }
}
