//! Finds QEMU 7.2's own records of its RAM blocks: `struct RAMBlock`, in its heap.
//!
//! Several network cards have ROMs of the same size that are not mapped in the guest, so
//! neither `gpa2hva` nor the sizes tell them apart. QEMU's record of a block contains, in
//! this order, the host address, the offset, the used and the total length, and the name
//! (`include/exec/ramblock.h` of QEMU 7.2):
//!
//! ```c
//! struct RAMBlock {
//!     struct rcu_head rcu;            //   0
//!     struct MemoryRegion *mr;        //  16
//!     uint8_t *host;                  //  24
//!     uint8_t *colo_cache;            //  32
//!     ram_addr_t offset;              //  40
//!     ram_addr_t used_length;         //  48
//!     ram_addr_t max_length;          //  56
//!     void (*resized)(…);             //  64
//!     uint32_t flags;                 //  72
//!     char idstr[256];                //  76
//! ```
//!
//! All but the address are known from `info ramblock`, so a record is found by its content:
//! name, offset and both lengths must be equal. What is not a record does not have all four
//! in these places. A guest could leave a copy of a record in QEMU's buffers; two records
//! with different addresses are not an answer.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;

use hikkoshi_linux::Process;

use super::by_size::is_block;
use crate::process::maps::Area;
use crate::ram::blocks::RamBlockInfo;

/// Where the name begins in a record, and where it ends at the latest.
const NAME: usize = 76;
const END: usize = NAME + 256;

/// Heap objects begin at multiples of this (`malloc(3)`).
const ALIGNMENT: usize = 16;

/// The most bytes that are searched. A QEMU's heap has some tens of MiB.
const MAX_BYTES: u64 = 1 << 30;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// The address in the record of each block, in their order; `None` where there is no
/// record, or more than one.
pub(super) fn find(process: &Process, blocks: &[RamBlockInfo], areas: &[Area]) -> Vec<Option<u64>> {
    let mut found = vec![BTreeSet::new(); blocks.len()];
    if let Ok(memory) = process.open_memory(false) {
        let heap = areas.iter().filter(|area| area.path == "[heap]");
        search(&memory, heap, blocks, &mut found);
        if found.iter().any(BTreeSet::is_empty) {
            // Another `malloc`, or a heap that could not grow.
            let others = areas.iter().filter(|area| {
                !area.is_file()
                    && area.path.is_empty()
                    && (area.readable, area.writable, area.executable) == (true, true, false)
                    && !is_guest_memory(areas, blocks, area)
            });
            search(&memory, others, blocks, &mut found);
        }
    }
    found
        .into_iter()
        .map(|addresses| {
            let mut addresses = addresses.into_iter();
            addresses.next().filter(|_| addresses.next().is_none())
        })
        .collect()
}

/// Whether an area can be a RAM block or a part of one. The guest's memory is not searched:
/// reading populates it, and the guest could have written a record there.
fn is_guest_memory(areas: &[Area], blocks: &[RamBlockInfo], area: &Area) -> bool {
    let candidates = areas.iter().filter(|first| first.start <= area.start);
    let contains = |first: &Area, block: &RamBlockInfo| {
        first
            .start
            .checked_add(block.total)
            .is_some_and(|end| area.start < end)
    };
    candidates.into_iter().any(|first| {
        blocks
            .iter()
            .any(|block| contains(first, block) && is_block(areas, first.start, block))
    })
}

fn search<'a>(
    memory: &File,
    areas: impl Iterator<Item = &'a Area>,
    blocks: &[RamBlockInfo],
    found: &mut [BTreeSet<u64>],
) {
    let records = Records::new(blocks);
    let mut left = MAX_BYTES;
    let mut buffer = vec![0; CHUNK + END];
    for area in areas {
        if area.bytes() > left {
            continue;
        }
        left -= area.bytes();
        let mut at = area.start;
        while at < area.end {
            let bytes = usize::try_from(area.end - at).unwrap_or(usize::MAX);
            let bytes = bytes.min(buffer.len());
            let chunk = &mut buffer[..bytes];
            if memory.read_exact_at(chunk, at).is_ok() {
                records.search(chunk, found);
            }
            // With the beginning of a record at the end of this chunk.
            at += CHUNK as u64;
        }
    }
}

/// What to search for.
struct Records<'a> {
    /// The index of each block, by its offset and lengths.
    numbers: HashMap<[u64; 3], Vec<(usize, &'a str)>>,
}

impl<'a> Records<'a> {
    fn new(blocks: &'a [RamBlockInfo]) -> Self {
        let mut numbers: HashMap<_, Vec<_>> = HashMap::new();
        for (index, block) in blocks.iter().enumerate() {
            let key = [block.offset, block.used, block.total];
            numbers.entry(key).or_default().push((index, &*block.name));
        }
        Self { numbers }
    }

    /// Adds the addresses of the records in `memory`, which begins at a multiple of
    /// [`ALIGNMENT`].
    fn search(&self, memory: &[u8], found: &mut [BTreeSet<u64>]) {
        for at in (0..memory.len()).step_by(ALIGNMENT) {
            let Some(record) = memory.get(at..).filter(|rest| rest.len() > NAME) else {
                return;
            };
            // Most memory is not a record: pages and small lengths only.
            let [offset, used, total] = [40, 48, 56].map(|field| number(record, field));
            if total == 0 || used > total || !total.is_multiple_of(4096) {
                continue;
            }
            for &(index, name) in self
                .numbers
                .get(&[offset, used, total])
                .into_iter()
                .flatten()
            {
                let text = record.get(NAME..NAME + name.len());
                let end = record.get(NAME + name.len());
                if text == Some(name.as_bytes()) && end == Some(&0) {
                    found[index].insert(number(record, 24));
                }
            }
        }
    }
}

fn number(record: &[u8], at: usize) -> u64 {
    let bytes = record
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str, offset: u64) -> RamBlockInfo {
        RamBlockInfo {
            name: name.to_owned(),
            page_size: 4096,
            offset,
            used: 0x1000,
            total: 0x4_0000,
            host: None,
            read_only: None,
        }
    }

    fn record(block: &RamBlockInfo, host: u64) -> Vec<u8> {
        let mut bytes = vec![0xaa; 512];
        for (at, value) in [
            (24, host),
            (40, block.offset),
            (48, block.used),
            (56, block.total),
        ] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let name = block.name.as_bytes();
        bytes[NAME..NAME + name.len()].copy_from_slice(name);
        bytes[NAME + name.len()] = 0;
        bytes
    }

    fn search(memory: &[u8], blocks: &[RamBlockInfo]) -> Vec<Vec<u64>> {
        let mut found = vec![BTreeSet::new(); blocks.len()];
        Records::new(blocks).search(memory, &mut found);
        found
            .into_iter()
            .map(|set| set.into_iter().collect())
            .collect()
    }

    #[test]
    fn a_record_must_have_name_offset_and_lengths() {
        let blocks = [
            block("0000:00:05.0/a.rom", 0x1000),
            block("0000:00:06.0/a.rom", 0x2000),
        ];
        let mut memory = vec![0; 64];
        memory.extend(record(&blocks[1], 0x7f00_0020_0000));
        memory.extend(record(&blocks[0], 0x7f00_0000_0000));
        // The same numbers with another name, and the name with another offset.
        memory.extend(record(&block("0000:00:05.0/a.ro", 0x1000), 1));
        memory.extend(record(&block("0000:00:05.0/a.romx", 0x1000), 2));
        memory.extend(record(&block("0000:00:05.0/a.rom", 0x3000), 3));
        assert_eq!(
            search(&memory, &blocks),
            [[0x7f00_0000_0000], [0x7f00_0020_0000]]
        );
        // A copy with another address is not an answer.
        memory.extend(record(&blocks[0], 0x7f00_0040_0000));
        assert_eq!(search(&memory, &blocks)[0].len(), 2);
        // Cut off within the name.
        assert_eq!(search(&memory[..64 + 80], &blocks), [[0; 0], [0; 0]]);
    }

    #[test]
    fn records_in_the_memory_of_a_process_are_found() {
        let blocks = [block("in the heap", 0x1000), block("not there", 0x2000)];
        // Aligned as `malloc` does.
        let mut memory = vec![0u128; 64];
        for (word, bytes) in memory
            .iter_mut()
            .zip(record(&blocks[0], 0x1234_0000).chunks(16))
        {
            *word = u128::from_le_bytes(bytes.try_into().unwrap());
        }
        let own = Process::open(std::process::id()).unwrap();
        let areas = crate::process::areas(&own).unwrap();
        assert_eq!(find(&own, &blocks, &areas), [Some(0x1234_0000), None]);
        drop(memory);
    }
}
