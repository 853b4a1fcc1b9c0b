//! Finds the guest's memory: RAM blocks, guest addresses, host addresses, what holds them.
//!
//! | what | from |
//! | --- | --- |
//! | the blocks, their sizes | `info ramblock` by QMP (see `blocks.rs`) |
//! | guest addresses | `info mtree -f -o` by QMP (see `mtree.rs`) |
//! | host addresses | `info ramblock` from QEMU 8.0 on; see `addresses` |
//! | files and private memory | QEMU's mappings (see `file.rs`, `reopen.rs`) |
//!
//! A block with a name is migrated: main memory and DIMMs, and the auxiliary blocks of
//! devices and firmware (video memory, flash, ROMs, tables). Each must be found, and
//! together they must contain all of the machine's memory: a block that is overlooked would
//! be lost.

mod addresses;
pub(crate) mod backend;
pub(crate) mod blocks;
pub(crate) mod enough_memory;
mod error;
pub(crate) mod file;
pub(crate) mod huge_tmpfs;
#[cfg(test)]
mod installed_qemu_tests;
pub(crate) mod mtree;
pub(crate) mod not_enough_memory;
pub(crate) mod overview;
pub(crate) mod sharing;

use std::collections::BTreeMap;
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;
use hikkoshi_pages::{GuestRange, RamBlock, RamLayout};
use serde_json::{Value, json};

use self::backend::Backend;
use self::blocks::RamBlockInfo;
pub use self::error::RamError;
pub(crate) use self::error::RamErrors;
use self::file::BlockMemory;
use self::mtree::FlatRange;
use self::not_enough_memory::NotEnoughMemory;
use crate::process;
use crate::process::reopen::FileAccess;
use crate::qmp::Client;
use crate::qmp::human_monitor::human;

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Ram {
    /// Layout and memory: main memory by guest address, then auxiliary blocks by name.
    pub(crate) memory: GuestRam,
    /// Where each block begins in QEMU's address space, in layout order.
    pub(crate) addresses: Vec<u64>,
    /// What is remarkable about it, for people.
    pub(crate) warnings: Vec<String>,
    /// At the destination: there is too little free memory for it.
    pub(crate) shortage: Option<NotEnoughMemory>,
}

/// A block that was found.
struct FoundRam {
    block: RamBlockInfo,
    guest: Vec<GuestRange>,
    address: u64,
    memory: BlockMemory,
    /// Whether its huge pages are reserved.
    reserved: bool,
}

/// Finds all of the guest's memory.
///
/// At the destination ([`FileAccess::Write`]), also checks the free space for it:
/// [`Ram::shortage`].
pub(crate) fn find(
    client: &mut Client,
    process: &Arc<Process>,
    access: FileAccess,
) -> Result<Ram, RamErrors> {
    let found = find_blocks(client, process, access)?;
    let (mut shortage, mut warnings) = (None, Vec::new());
    if access == FileAccess::Write {
        let all = found.iter();
        let blocks = all.map(|found| (&found.block, &found.memory, found.reserved));
        shortage = enough_memory::check(process, blocks, &mut warnings).err();
    }
    Ok(Ram {
        shortage,
        ..arrange(found, warnings)?
    })
}

fn arrange(mut found: Vec<FoundRam>, mut warnings: Vec<String>) -> Result<Ram, RamError> {
    // The same order on both sides, independent of the order of the options. A device's
    // memory has no guest address before the guest has configured it.
    found.sort_by_key(|found| {
        let gpa = found.guest.first().map(|range| range.gpa);
        (gpa.is_none(), gpa, found.block.name.clone())
    });
    let mut blocks = Vec::with_capacity(found.len());
    let mut backings = Vec::with_capacity(found.len());
    let mut addresses = Vec::with_capacity(found.len());
    for found in found {
        warnings.extend(found.memory.exposed);
        blocks.push(RamBlock {
            id: found.block.name,
            bytes: found.block.total,
            host_page: found.block.page_size,
            guest: found.guest,
        });
        backings.push(found.memory.backing);
        addresses.push(found.address);
    }
    let layout = RamLayout::new(blocks)?;
    // There are as many backings as blocks.
    let memory = GuestRam::new(layout, backings).ok_or(RamError::None)?;
    Ok(Ram {
        memory,
        addresses,
        warnings,
        shortage: None,
    })
}

fn find_blocks(
    client: &mut Client,
    process: &Arc<Process>,
    access: FileAccess,
) -> Result<Vec<FoundRam>, RamErrors> {
    let blocks = blocks::list(client)?;
    let backends = backend::list(client)?;
    if blocks.is_empty() {
        return Err(RamError::None.into());
    }
    let mtree = human(client, "info mtree -f -o")?;
    let areas = process::areas(process)?;
    let addresses = addresses::find(client, process, &blocks, &areas, &mtree)?;
    let flat_ranges = mtree::parse(&mtree);
    let mut found = Vec::with_capacity(blocks.len());
    let mut errors = Vec::new();
    for (block, address) in blocks.into_iter().zip(addresses) {
        let backend = backends.iter().find(|backend| backend.is(&block.name));
        let guest = guest_ranges(backend, &block, &flat_ranges);
        let memory = file::open(process, &areas, &block, address, access);
        match (guest, memory) {
            (Ok(guest), Ok(memory)) => found.push(FoundRam {
                guest,
                memory,
                address,
                reserved: backend.is_none_or(|backend| backend.reserve),
                block,
            }),
            (guest, memory) => errors.extend(guest.err().into_iter().chain(memory.err())),
        }
    }
    if !errors.is_empty() {
        return Err(RamErrors(errors));
    }
    check_complete(client, &found)?;
    Ok(found)
}

/// Where a block is in the guest: that of a memory backend. A device's memory has no ranges:
/// the guest maps it anywhere, or not at all.
fn guest_ranges(
    backend: Option<&Backend>,
    block: &RamBlockInfo,
    flat_ranges: &BTreeMap<String, Vec<FlatRange>>,
) -> Result<Vec<GuestRange>, RamError> {
    let Some(flat_ranges) = backend.and_then(|backend| flat_ranges.get(&backend.qom_path())) else {
        return Ok(Vec::new());
    };
    mtree::ranges(flat_ranges, block.total).ok_or_else(|| RamError::Addresses {
        id: block.name.clone(),
        flat_ranges: format!("{flat_ranges:x?}"),
    })
}

/// Checks that the blocks contain all of the machine's memory.
fn check_complete(client: &mut Client, blocks: &[FoundRam]) -> Result<(), RamError> {
    let summary = client.execute("query-memory-size-summary", json!({}))?;
    let part = |key| summary.get(key).and_then(Value::as_u64).unwrap_or(0);
    let guest = part("base-memory").saturating_add(part("plugged-memory"));
    let found = blocks
        .iter()
        .filter(|found| !found.guest.is_empty())
        .fold(0u64, |sum, found| sum.saturating_add(found.block.total));
    if guest > found {
        return Err(RamError::Incomplete { guest, found });
    }
    Ok(())
}
