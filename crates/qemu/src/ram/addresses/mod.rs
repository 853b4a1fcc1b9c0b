//! Finds where each RAM block begins in QEMU's address space.
//!
//! QEMU prints it from 8.0 on ([`RamBlockInfo::host`]). In QEMU 7.2 it is found, for each
//! block, by the first of these that has an answer:
//!
//! 1. `gpa2hva`, where the block is mapped in the guest ([`by_guest_address`]);
//! 2. QEMU's own record of the block in its heap ([`records`]);
//! 3. the only area of the process that has the block's size and a guard page
//!    ([`by_size`]).
//!
//! An address of QEMU 7.2 must also satisfy the rule of the third: QEMU maps each block as
//! an area of its own, with a page without rights behind it (`qemu_ram_mmap`). A block that a
//! device has allocated in the heap (`tpm-ppi`) does not, and is found if the first two
//! methods have the same answer. If two areas remain for a block, it is refused: nothing is
//! guessed.

mod by_guest_address;
mod by_size;
mod records;

use hikkoshi_linux::Process;

use super::RamError;
use super::blocks::RamBlockInfo;
use crate::process::maps::Area;
use crate::qmp::Client;

/// Where the blocks begin, in their order. Each address has the block's length of the
/// process's memory behind it, which is not part of another block.
///
/// `mtree` is the answer to `info mtree -f -o`.
pub(crate) fn find(
    client: &mut Client,
    process: &Process,
    blocks: &[RamBlockInfo],
    areas: &[Area],
    mtree: &str,
) -> Result<Vec<u64>, RamError> {
    let printed: Option<Vec<u64>> = blocks.iter().map(|block| block.host).collect();
    let found = match printed {
        Some(printed) => printed,
        None => find_unprinted(client, process, blocks, areas, mtree)?,
    };
    check_distinct(blocks, &found)?;
    Ok(found)
}

/// The method for QEMU 7.2.
pub(crate) fn find_unprinted(
    client: &mut Client,
    process: &Process,
    blocks: &[RamBlockInfo],
    areas: &[Area],
    mtree: &str,
) -> Result<Vec<u64>, RamError> {
    let mapped = by_guest_address::find(client, blocks, mtree)?;
    let mut found: Vec<Option<u64>> = mapped
        .iter()
        .zip(blocks)
        .map(|(address, block)| address.filter(|&at| by_size::is_block(areas, at, block)))
        .collect();
    if found.contains(&None) {
        let records = records::find(process, blocks, areas);
        for (index, record) in records.into_iter().enumerate() {
            let is_found = |&at: &u64| {
                by_size::is_block(areas, at, &blocks[index])
                    || (mapped[index] == Some(at) && by_size::is_in_area(areas, at, &blocks[index]))
            };
            found[index] = found[index].or(record.filter(is_found));
        }
    }
    if let Some(first) = blocks.first()
        && found.iter().all(Option::is_none)
    {
        // It is another program that has QEMU's monitor.
        return Err(RamError::NotMapped {
            id: first.name.clone(),
            pid: process.pid(),
            name: crate::process::name(process),
        });
    }
    let mut addresses = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        let address = match found[index] {
            Some(address) => address,
            None => by_size::only_one(areas, blocks, &found, block)?,
        };
        addresses.push(address);
    }
    Ok(addresses)
}

fn check_distinct(blocks: &[RamBlockInfo], addresses: &[u64]) -> Result<(), RamError> {
    let mut ranges: Vec<(u64, u64, &str)> = blocks
        .iter()
        .zip(addresses)
        .map(|(block, &at)| (at, at.saturating_add(block.total), block.name.as_str()))
        .collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        None => Ok(()),
        Some(pair) => Err(RamError::Overlap {
            first: pair[0].2.to_owned(),
            second: pair[1].2.to_owned(),
        }),
    }
}
