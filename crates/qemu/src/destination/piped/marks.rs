//! Finds the RAM blocks of a QEMU whose monitor is not ours: a page of random bytes at the
//! beginning of each, which QEMU's incoming stream wrote there.
//!
//! A block that a device has allocated in QEMU's heap (`tpm-ppi`) is searched there, too, and so is
//! a copy of its page in the buffer from which QEMU reads the stream. That copy is at the beginning
//! of a page now and then. What is certain is that the block has *each* page that the stream writes
//! to it. So if a page was found more than once, the stream writes another one, and only the
//! addresses that had both are left.
//!
//! The last page of each section is for main memory, which is never in the heap: when it is there,
//! QEMU has written those before it.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hikkoshi_linux::{HostAddr, HostRange, Pagemap, Process};
use hikkoshi_wire::GuestDescription;

use super::error::PipedError;
use crate::process;
use crate::process::maps::Area;
use crate::stream;

const PAGE: usize = 4096;

/// How often other pages are written before a block counts as mapped more than once. A copy has to
/// be at the same address of the buffer each time.
const MAX_SECTIONS: u32 = 8;

/// The search for a guest's RAM blocks.
#[derive(Debug)]
pub(super) struct Marks {
    /// The blocks, the one that is written last at the end.
    names: Vec<String>,
    /// The place of each block of the guest's description in `names`.
    order: Vec<usize>,
    /// The page that is written to the beginning of each block.
    pages: Vec<Box<[u8; PAGE]>>,
    /// The addresses at which each page of a block was found; `None` before the first section.
    found: Option<Vec<Vec<u64>>>,
    sections: u32,
}

impl Marks {
    /// `last` is the name of a block of main memory.
    pub(super) fn new(description: &GuestDescription, last: &str) -> Self {
        let blocks = description.blocks.iter().map(|block| &block.id);
        let (mut names, mut order): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        let others = blocks.clone().filter(|name| *name != last).count();
        for name in blocks {
            order.push(if name == last { others } else { names.len() });
            if name != last {
                names.push(name.clone());
            }
        }
        names.push(last.to_owned());
        Self {
            names,
            order,
            pages: Vec::new(),
            found: None,
            sections: 0,
        }
    }

    /// A section of the stream that writes other pages than before.
    pub(super) fn section(&mut self) -> Result<Vec<u8>, PipedError> {
        self.pages.clear();
        for _ in &self.names {
            let mut page = Box::new([0; PAGE]);
            getrandom::fill(&mut page[..]).map_err(io::Error::other)?;
            self.pages.push(page);
        }
        self.sections += 1;
        let names = self.names.iter().map(String::as_str);
        let pages = self.pages.iter().map(|page| &page[..]);
        Ok(stream::first_pages(names.zip(pages))?)
    }

    /// Looks for the pages of the last section. Whether QEMU has written all of them.
    pub(super) fn look(&mut self, process: &Arc<Process>) -> Result<bool, PipedError> {
        let is_written = |hits: &Hits| {
            let last = hits.last().into_iter().flatten();
            last.clone().any(|(_, in_heap)| !in_heap)
        };
        if !is_written(&self.hits(process)?) {
            return Ok(false);
        }
        // Those before it were perhaps written after they were looked for.
        let hits = self.hits(process)?;
        let found = self.found.get_or_insert_with(|| all(&hits));
        keep(found, &hits);
        Ok(true)
    }

    /// The number of sections so far.
    pub(super) fn sections(&self) -> u32 {
        self.sections
    }

    /// Where the blocks begin, in the order of the guest's description. `None`: another section is
    /// needed.
    pub(super) fn addresses(&self, process: &Process) -> Result<Option<Vec<u64>>, PipedError> {
        let Some(found) = &self.found else {
            return Ok(None);
        };
        let mut addresses = Vec::with_capacity(found.len());
        for (addresses_of, name) in found.iter().zip(&self.names) {
            match addresses_of[..] {
                [address] => addresses.push(address),
                [] => {
                    return Err(PipedError::NotFound {
                        id: name.clone(),
                        pid: process.pid(),
                    });
                }
                _ if self.sections < MAX_SECTIONS => return Ok(None),
                _ => {
                    return Err(PipedError::Twice {
                        id: name.clone(),
                        pid: process.pid(),
                    });
                }
            }
        }
        let in_order = self.order.iter().map(|at| addresses.get(*at).copied());
        Ok(in_order.collect())
    }

    fn hits(&self, process: &Arc<Process>) -> Result<Hits, PipedError> {
        let areas = process::areas(process)?;
        let mut found = vec![Vec::new(); self.names.len()];
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
                found[number].push((address, is_heap(area)));
            }
        }
        Ok(found)
    }
}

/// The addresses of each block's page, and whether each is in the heap.
type Hits = Vec<Vec<(u64, bool)>>;

fn all(hits: &Hits) -> Vec<Vec<u64>> {
    let addresses = |hits: &Vec<(u64, bool)>| hits.iter().map(|(address, _)| *address).collect();
    hits.iter().map(addresses).collect()
}

/// Keeps the addresses that were found again.
fn keep(found: &mut [Vec<u64>], hits: &Hits) {
    for (found, hits) in found.iter_mut().zip(hits) {
        found.retain(|address| hits.iter().any(|(again, _)| again == address));
    }
}

/// Whether a RAM block can be there.
fn is_memory(area: &Area) -> bool {
    let is_special = area.path.starts_with('[') && !area.path.starts_with("[anon");
    area.readable && area.writable && (!is_special || is_heap(area))
}

/// Whether it is a heap: that of QEMU's main thread, or one that the C library has named.
fn is_heap(area: &Area) -> bool {
    area.path == "[heap]" || area.path.contains("malloc")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a search finds of the blocks `tpm-ppi` and `pc.ram`.
    fn search(sections: &[[&[(u64, bool)]; 2]]) -> Marks {
        let mut marks = Marks {
            names: vec!["tpm-ppi".to_owned(), "pc.ram".to_owned()],
            order: vec![1, 0],
            pages: Vec::new(),
            found: None,
            sections: sections.len().try_into().unwrap(),
        };
        for hits in sections {
            let hits = hits.map(<[_]>::to_vec).to_vec();
            let found = marks.found.get_or_insert_with(|| all(&hits));
            keep(found, &hits);
        }
        marks
    }

    #[test]
    fn a_copy_of_a_page_is_told_from_the_block_by_another_page() {
        let own = Process::open(std::process::id()).unwrap();
        let ram: &[(u64, bool)] = &[(0x7000, false)];
        let addresses = |sections: &[[&[(u64, bool)]; 2]]| search(sections).addresses(&own);
        let once = [&[(0x1000, true)][..], ram];
        assert_eq!(addresses(&[once]).unwrap(), Some(vec![0x7000, 0x1000]));
        let twice = [&[(0x1000, true), (0x2000, true)][..], ram];
        assert_eq!(addresses(&[twice]).unwrap(), None);
        let other = [&[(0x2000, true), (0x3000, true)][..], ram];
        let found = addresses(&[twice, other]).unwrap();
        assert_eq!(found, Some(vec![0x7000, 0x2000]));
        let error = addresses(&[twice; 8]).unwrap_err();
        assert!(error.to_string().contains("tpm-ppi"), "{error}");
        assert!(matches!(error, PipedError::Twice { .. }), "{error}");
        let none = [&[][..], ram];
        let error = addresses(&[twice, none]).unwrap_err();
        assert!(matches!(error, PipedError::NotFound { .. }), "{error}");
    }

    #[test]
    fn the_heap_is_searched_and_the_stack_is_not() {
        let of = |name: &str| {
            let line = format!("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 {name}\n");
            let areas = crate::process::maps::areas(line.as_bytes()).unwrap();
            (is_memory(&areas[0]), is_heap(&areas[0]))
        };
        assert_eq!(of(""), (true, false));
        assert_eq!(of("[heap]"), (true, true));
        assert_eq!(of("[anon: glibc: malloc arena]"), (true, true));
        assert_eq!(of("[anon:ram]"), (true, false));
        assert_eq!(of("[stack]"), (false, false));
    }
}
