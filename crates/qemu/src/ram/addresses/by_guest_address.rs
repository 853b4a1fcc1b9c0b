//! Where blocks are in QEMU's address space, by their guest addresses: QEMU's `gpa2hva`.
//!
//! `info mtree` names memory *regions*. A block has the name of its region, after the
//! address of the device that it belongs to: region `vga.vram` is in block
//! `0000:00:02.0/vga.vram`. Where more than one block or owner fits a region's name, the
//! blocks are left to the other methods.
//!
//! The guest can move a device's memory meanwhile. So the answer must name the region, and
//! the caller checks that the block begins and ends there.

use std::collections::{BTreeMap, BTreeSet};

use crate::qmp::human_monitor::human;
use crate::qmp::{Client, QmpError};
use crate::ram::blocks::RamBlockInfo;
use crate::ram::mtree::{self, NamedFlatRange};

/// The addresses of the blocks that are mapped in the guest under a unique name, in the
/// order of the blocks.
pub(super) fn find(
    client: &mut Client,
    blocks: &[RamBlockInfo],
    mtree: &str,
) -> Result<Vec<Option<u64>>, QmpError> {
    let flat_ranges = mtree::named(mtree);
    let mut found = vec![None; blocks.len()];
    for (block, flat_range) in unambiguous(blocks, &flat_ranges) {
        let answer = human(client, &format!("gpa2hva {:#x}", flat_range.gpa))?;
        let address = parse(&answer, flat_range).and_then(|at| at.checked_sub(flat_range.offset));
        found[block] = found[block].or(address);
    }
    Ok(found)
}

/// The flat ranges whose name fits one block only, with the index of that block.
fn unambiguous<'a>(
    blocks: &[RamBlockInfo],
    flat_ranges: &'a [NamedFlatRange],
) -> Vec<(usize, &'a NamedFlatRange)> {
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for flat_range in flat_ranges {
        owners
            .entry(&flat_range.name)
            .or_default()
            .insert(&flat_range.owner);
    }
    let fits = |block: &RamBlockInfo, region: &str| {
        block
            .name
            .strip_suffix(region)
            .is_some_and(|device| device.is_empty() || device.ends_with('/'))
    };
    let mut found = Vec::new();
    for flat_range in flat_ranges {
        let mut fitting = (0..blocks.len()).filter(|&at| fits(&blocks[at], &flat_range.name));
        if let (Some(block), None) = (fitting.next(), fitting.next())
            && owners
                .get(&*flat_range.name)
                .is_some_and(|all| all.len() == 1)
        {
            found.push((block, flat_range));
        }
    }
    found
}

/// `Host virtual address for 0xfffc0000 (pc.bios) is 0x7f3bb9400000`.
fn parse(answer: &str, flat_range: &NamedFlatRange) -> Option<u64> {
    let rest = answer
        .trim_end()
        .strip_prefix(&format!("Host virtual address for {:#x} (", flat_range.gpa))?
        .strip_prefix(&flat_range.name)?;
    let address = rest.strip_prefix(") is 0x")?;
    u64::from_str_radix(address, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::blocks;

    const BLOCKS: &str = include_str!("../../../tests/captured/ramblock-7.2-q35.txt");

    fn flat_range(name: &str, owner: &str) -> NamedFlatRange {
        NamedFlatRange {
            name: name.to_owned(),
            owner: owner.to_owned(),
            gpa: 0xfffc_0000,
            offset: 0,
        }
    }

    #[test]
    fn a_region_that_fits_two_blocks_is_left_out() {
        let blocks = blocks::parse(BLOCKS).unwrap();
        let flat_ranges = [
            flat_range("pc.bios", "a"),
            flat_range("vga.vram", "b"),
            // Two network cards, of which one is mapped.
            flat_range("virtio-net-pci.rom", "c"),
            // Two owners.
            flat_range("e1000e.rom", "d"),
            flat_range("e1000e.rom", "e"),
            flat_range("ram", "f"),
        ];
        let found: Vec<_> = unambiguous(&blocks, &flat_ranges)
            .into_iter()
            .map(|(block, flat_range)| (blocks[block].name.as_str(), flat_range.name.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("pc.bios", "pc.bios"),
                ("0000:00:01.0/vga.vram", "vga.vram")
            ]
        );
    }

    #[test]
    fn the_answer_names_the_region() {
        let bios = flat_range("pc.bios", "");
        let answer = "Host virtual address for 0xfffc0000 (pc.bios) is 0x7f3bb9400000\r\n";
        assert_eq!(parse(answer, &bios), Some(0x7f3b_b940_0000));
        for other in [
            "Host virtual address for 0xfffc0000 (pc.rom) is 0x7f3bb9400000",
            "Host virtual address for 0xfffc000 (pc.bios) is 0x7f3bb9400000",
            "Host virtual address for 0xfffc0000 (pc.bios) is 0x",
            "No memory is mapped at address 0xfffc0000",
            "",
        ] {
            assert_eq!(parse(other, &bios), None, "{other}");
        }
    }
}
