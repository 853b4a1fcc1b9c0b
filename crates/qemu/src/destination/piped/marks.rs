//! Finds the RAM blocks of a QEMU whose monitor is not ours: a page of random bytes at the
//! beginning of each, which QEMU's incoming stream wrote there.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hikkoshi_linux::{HostAddr, HostRange, Pagemap, Process};
use hikkoshi_wire::GuestDescription;

use super::error::PipedError;
use crate::attach::maps::Area;
use crate::attach::process;
use crate::stream::{self, StreamError};

const PAGE: usize = 4096;
/// Random bytes that tell the marks of this move from everything else.
const RANDOM: usize = 32;

/// The marks of a guest's RAM blocks.
#[derive(Debug)]
pub(super) struct Marks {
    blocks: Vec<(String, u64)>,
    pages: Vec<Box<[u8; PAGE]>>,
    /// The number of the block with the page that begins with these bytes.
    numbers: HashMap<[u8; RANDOM], usize>,
}

impl Marks {
    pub(super) fn new(description: &GuestDescription) -> Result<Self, PipedError> {
        let blocks = description.blocks.iter();
        let blocks: Vec<_> = blocks
            .map(|block| (block.id.clone(), block.bytes))
            .collect();
        let mut pages = Vec::new();
        let mut numbers = HashMap::new();
        for number in 0..blocks.len() {
            let mut random = [0; RANDOM];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            let mut page = Box::new([0; PAGE]);
            for piece in page.chunks_exact_mut(RANDOM) {
                piece.copy_from_slice(&random);
            }
            pages.push(page);
            numbers.insert(random, number);
        }
        Ok(Self {
            blocks,
            pages,
            numbers,
        })
    }

    /// The section of the stream that writes the marks.
    pub(super) fn section(&self) -> Result<Vec<u8>, StreamError> {
        let names = self.blocks.iter().map(|(name, _)| name.as_str());
        stream::first_pages(names.zip(self.pages.iter().map(|page| &page[..])))
    }

    /// Where the blocks begin; `None` if a mark is not there yet.
    pub(super) fn find(&self, process: &Arc<Process>) -> Result<Option<Vec<u64>>, PipedError> {
        let areas = process::areas(process)?;
        let mut found = vec![None; self.blocks.len()];
        let failed = |source| process::explain(process, "searching the memory", source);
        let memory = process.open_memory(false).map_err(failed)?;
        let pagemap = Pagemap::open(Some(process)).map_err(failed)?;
        let mut page = Box::new([0; PAGE]);
        for area in areas.iter().filter(|area| is_memory(area)) {
            let range = HostRange::new(HostAddr(area.start), area.bytes());
            let mut look = |address: u64| {
                // It may be unmapped meanwhile.
                if memory.read_exact_at(&mut page[..], address).is_err() {
                    return None;
                }
                let random = page.first_chunk::<RANDOM>()?;
                let number = *self.numbers.get(random)?;
                (self.pages[number] == page).then_some(number)
            };
            let mut at = Vec::new();
            let walked = pagemap.pages(range, |run| {
                let pages = (0..run.len / PAGE as u64).map(|page| run.addr.0 + page * PAGE as u64);
                at.extend(pages.filter_map(|address| Some((look(address)?, address))));
                Ok(ControlFlow::Continue(()))
            });
            walked.map_err(failed)?;
            for (number, address) in at {
                if found[number].replace(address).is_some() {
                    return Err(PipedError::Twice {
                        id: self.blocks[number].0.clone(),
                        pid: process.pid(),
                    });
                }
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// Whether a RAM block can be there.
fn is_memory(area: &Area) -> bool {
    area.readable && area.writable && !area.path.starts_with('[')
}
