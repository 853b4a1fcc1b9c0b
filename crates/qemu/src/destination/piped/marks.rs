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

/// The marks of a guest's RAM blocks.
#[derive(Debug)]
pub(super) struct Marks {
    names: Vec<String>,
    /// The page at the beginning of each block.
    pages: Vec<Box<[u8; PAGE]>>,
}

impl Marks {
    pub(super) fn new(description: &GuestDescription) -> Result<Self, PipedError> {
        let blocks = description.blocks.iter();
        let names: Vec<_> = blocks.map(|block| block.id.clone()).collect();
        let mut pages = Vec::with_capacity(names.len());
        for _ in &names {
            let mut page = Box::new([0; PAGE]);
            getrandom::fill(&mut page[..]).map_err(io::Error::other)?;
            pages.push(page);
        }
        Ok(Self { names, pages })
    }

    /// The section of the stream that writes the marks.
    pub(super) fn section(&self) -> Result<Vec<u8>, StreamError> {
        let names = self.names.iter().map(String::as_str);
        stream::first_pages(names.zip(self.pages.iter().map(|page| &page[..])))
    }

    /// Where the blocks begin; `None` if a mark is not there yet.
    pub(super) fn find(&self, process: &Arc<Process>) -> Result<Option<Vec<u64>>, PipedError> {
        let areas = process::areas(process)?;
        let mut found = vec![None; self.names.len()];
        let by_page: HashMap<_, _> = self.pages.iter().zip(0..).collect();
        let failed = |source| process::explain(process, "searching the memory", source);
        let memory = process.open_memory(false).map_err(failed)?;
        let pagemap = Pagemap::open(Some(process)).map_err(failed)?;
        let mut page = Box::new([0; PAGE]);
        for area in areas.iter().filter(|area| is_memory(area)) {
            let range = HostRange::new(HostAddr(area.start), area.bytes());
            // It may be unmapped meanwhile.
            let mut look = |address: u64| {
                memory.read_exact_at(&mut page[..], address).ok()?;
                by_page.get(&page).copied()
            };
            let mut at = Vec::new();
            let walked = pagemap.pages(range, |run| {
                let addresses = (run.addr.0..run.addr.0 + run.len).step_by(PAGE);
                at.extend(addresses.filter_map(|address| Some((look(address)?, address))));
                Ok(ControlFlow::Continue(()))
            });
            walked.map_err(failed)?;
            for (number, address) in at {
                let number: usize = number;
                if found[number].replace(address).is_some() {
                    return Err(PipedError::Twice {
                        id: self.names[number].clone(),
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
