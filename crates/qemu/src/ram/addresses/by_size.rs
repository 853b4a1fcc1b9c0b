//! Which areas of QEMU's process can be a RAM block of a certain size.
//!
//! QEMU maps a block's memory with `qemu_ram_mmap`: at a multiple of 2 MiB (a file: of its
//! page size), with exactly the block's total length, and with a page without rights behind
//! it. The kernel can divide a block into several areas (a memory policy, a dirty log), and an area
//! that ends at the block's beginning has other properties, so it is not merged with it.

use crate::process::maps::Area;
use crate::ram::RamError;
use crate::ram::blocks::RamBlockInfo;

/// `QEMU_VMALLOC_ALIGN`, for anonymous memory.
const ALIGNMENT: u64 = 2 << 20;

/// Whether a block with the length of `block` can begin at this address.
pub(super) fn is_block(areas: &[Area], address: u64, block: &RamBlockInfo) -> bool {
    let Some(end) = address.checked_add(block.total) else {
        return false;
    };
    let first = areas.partition_point(|area| area.start < address);
    let Some(mut last) = areas
        .get(first)
        .filter(|area| area.start == address && area.readable && area.writable && !area.executable)
    else {
        return false;
    };
    let mut rest = areas[first + 1..].iter();
    while last.end < end {
        match rest.next() {
            Some(next) if last.is_continued_by(next) => last = next,
            _ => return false,
        }
    }
    let is_guard = |area: &Area| {
        area.start == end && !(area.readable || area.writable || area.executable || area.is_file())
    };
    let alignment = if last.is_file() {
        block.page_size
    } else {
        ALIGNMENT
    };
    address.is_multiple_of(alignment) && last.end == end && rest.next().is_some_and(is_guard)
}

/// Whether the pages of `block` can be a part of an area, as memory that was allocated in the
/// heap is.
pub(super) fn is_in_area(areas: &[Area], address: u64, block: &RamBlockInfo) -> bool {
    let Some(end) = address.checked_add(block.total) else {
        return false;
    };
    let next = areas.partition_point(|area| area.start <= address);
    let area = next.checked_sub(1).and_then(|at| areas.get(at));
    address.is_multiple_of(block.page_size)
        && area.is_some_and(|area| {
            end <= area.end
                && area.readable
                && area.writable
                && !(area.executable || area.is_file())
        })
}

/// The address of the only area that can be `block` and is not another block's (`found`, in
/// the order of `blocks`).
pub(super) fn only_one(
    areas: &[Area],
    blocks: &[RamBlockInfo],
    found: &[Option<u64>],
    block: &RamBlockInfo,
) -> Result<u64, RamError> {
    let is_taken = |address: u64| {
        let end = address.saturating_add(block.total);
        blocks.iter().zip(found).any(|(other, at)| {
            at.is_some_and(|at| at < end && address < at.saturating_add(other.total))
        })
    };
    let mut candidates: Vec<u64> = areas
        .iter()
        .map(|area| area.start)
        .filter(|&at| is_block(areas, at, block) && !is_taken(at))
        .collect();
    let others = blocks
        .iter()
        .zip(found)
        .filter(|(other, at)| at.is_none() && other.total == block.total && other != &block)
        .count();
    match (candidates.pop(), candidates.len(), others) {
        (Some(address), 0, 0) => Ok(address),
        (None, ..) => Err(RamError::AddressUnknown {
            id: block.name.clone(),
        }),
        (Some(_), more, others) => Err(RamError::AddressAmbiguous {
            id: block.name.clone(),
            areas: more + 1,
            blocks: others + 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::maps;

    const MIB: u64 = 1 << 20;

    fn block(name: &str, total: u64) -> RamBlockInfo {
        RamBlockInfo {
            name: name.to_owned(),
            page_size: 4096,
            offset: 0,
            used: total,
            total,
            host: None,
            read_only: None,
        }
    }

    /// Of a QEMU 7.2: video memory, a ROM that follows another area directly, a heap of a
    /// thread, a block that a dirty log has divided, and a stack.
    const AREAS: &str = "\
7f3b5ac00000-7f3b5bc00000 rw-p 00000000 00:00 0 
7f3b5bc00000-7f3b5bc01000 ---p 00000000 00:00 0 
7f3b6c000000-7f3b6c021000 rw-p 00000000 00:00 0 
7f3b6c021000-7f3b70000000 ---p 00000000 00:00 0 
7f3bb8d37000-7f3bb9000000 rw-p 00000000 00:00 0 
7f3bb9000000-7f3bb9040000 rw-p 00000000 00:00 0 
7f3bb9040000-7f3bb9041000 ---p 00000000 00:00 0 
7f3bb9800000-7f3bb9a00000 rw-p 00000000 00:00 0 
7f3bb9a00000-7f3bba000000 rw-p 00000000 00:00 0 
7f3bba000000-7f3bba001000 ---p 00000000 00:00 0 
7f3bba200000-7f3bbaa00000 rw-p 00000000 00:00 0 
";

    #[test]
    fn a_block_has_its_size_and_a_guard_page() {
        let areas = maps::areas(AREAS.as_bytes()).unwrap();
        for (address, bytes, expected) in [
            (0x7f3b_5ac0_0000, 16 * MIB, true),
            (0x7f3b_5ac0_0000, 8 * MIB, false),
            (0x7f3b_5ac0_0000, 16 * MIB + 4096, false),
            (0x7f3b_5ac0_1000, 16 * MIB - 4096, false),
            (0x7f3b_b900_0000, 0x4_0000, true),
            (0x7f3b_b8d3_7000, 0x2c_9000, false),
            (0x7f3b_b980_0000, 8 * MIB, true),
            (0x7f3b_b980_0000, 2 * MIB, false),
            // Without a guard page.
            (0x7f3b_ba20_0000, 8 * MIB, false),
            (0, u64::MAX, false),
            (u64::MAX, 2, false),
        ] {
            let found = is_block(&areas, address, &block("", bytes));
            assert_eq!(found, expected, "{address:#x} {bytes:#x}");
        }
    }

    #[test]
    fn a_block_in_the_heap_has_whole_pages_of_an_area() {
        let areas = maps::areas(AREAS.as_bytes()).unwrap();
        for (address, bytes, expected) in [
            (0x7f3b_6c00_3000, 4096, true),
            (0x7f3b_6c02_0000, 4096, true),
            (0x7f3b_6c02_0000, 2 * 4096, false),
            (0x7f3b_6c00_3400, 4096, false),
            // Without rights, and between two areas.
            (0x7f3b_6c02_1000, 4096, false),
            (0x7f3b_5bc0_1000, 4096, false),
            (0, 4096, false),
            (u64::MAX - 4095, 4096, false),
        ] {
            let found = is_in_area(&areas, address, &block("tpm-ppi", bytes));
            assert_eq!(found, expected, "{address:#x} {bytes:#x}");
        }
    }

    #[test]
    fn an_address_is_never_guessed() {
        let mut areas = maps::areas(AREAS.as_bytes()).unwrap();
        let blocks = [block("vram", 16 * MIB), block("a.rom", 0x4_0000)];
        let find = |areas: &[Area], blocks: &[RamBlockInfo], found: &[Option<u64>]| {
            only_one(areas, blocks, found, &blocks[1])
        };
        let none = [None, None, None];
        assert_eq!(find(&areas, &blocks, &none).unwrap(), 0x7f3b_b900_0000);
        // Another block of this size.
        let three = [
            block("vram", 16 * MIB),
            block("a.rom", 0x4_0000),
            block("b.rom", 0x4_0000),
        ];
        let error = find(&areas, &three, &none).unwrap_err();
        assert!(
            matches!(
                error,
                RamError::AddressAmbiguous {
                    areas: 1,
                    blocks: 2,
                    ..
                }
            ),
            "{error}"
        );
        let taken = [None, None, Some(0x7f3b_b900_0000)];
        let error = find(&areas, &three, &taken).unwrap_err();
        assert!(matches!(error, RamError::AddressUnknown { .. }), "{error}");
        // Another area of this size.
        let more = "7f3bc0000000-7f3bc0040000 rw-p 00000000 00:00 0 \n\
                    7f3bc0040000-7f3bc0041000 ---p 00000000 00:00 0 \n";
        areas.extend(maps::areas(more.as_bytes()).unwrap());
        let error = find(&areas, &blocks, &none).unwrap_err();
        assert!(
            matches!(
                error,
                RamError::AddressAmbiguous {
                    areas: 2,
                    blocks: 1,
                    ..
                }
            ),
            "{error}"
        );
        let second = Some(0x7f3b_c000_0000);
        let found = find(&areas, &three, &[None, None, second]).unwrap();
        assert_eq!(found, 0x7f3b_b900_0000);
    }
}
