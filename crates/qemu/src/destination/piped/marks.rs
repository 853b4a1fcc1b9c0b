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
//!
//! A block that is not in the heap is mapped by itself, so its page is where a mapping begins. All
//! mappings are searched only if that does not find each block, and without what is inside a block
//! that was found: main memory can be large, and preallocated.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// A search of all mappings may take this part of the time until main memory is found: QEMU has to
/// load the section meanwhile.
const WHOLE_SHARE: u32 = 10;

/// How long QEMU may take to load a section before main memory is searched in all mappings.
const FIRST_WHOLE: Duration = Duration::from_millis(200);

/// How many pages are compared before it is checked whether to continue.
const CHECK_PAGES: usize = 4096;

/// The search for a guest's RAM blocks.
#[derive(Debug)]
pub(super) struct Marks {
    /// The blocks, the one that is written last at the end.
    names: Vec<String>,
    /// The length of each.
    lengths: Vec<u64>,
    /// The place of each block of the guest's description in `names`.
    order: Vec<usize>,
    /// The page that is written to the beginning of each block.
    pages: Vec<Box<[u8; PAGE]>>,
    /// The addresses at which each page of a block was found; `None` before the first section.
    found: Option<Vec<Vec<u64>>>,
    sections: u32,
    /// When all mappings may be searched for main memory.
    next_whole: Instant,
}

/// Whether to continue.
type Check<'a> = &'a mut dyn FnMut() -> Result<(), PipedError>;

impl Marks {
    /// `last` is the name of a block of main memory.
    pub(super) fn new(description: &GuestDescription, last: &str) -> Self {
        let is_last = |number: &usize| description.blocks[*number].id == last;
        let numbers = 0..description.blocks.len();
        let mut written: Vec<usize> = numbers.clone().filter(|number| !is_last(number)).collect();
        written.extend(numbers.clone().filter(is_last));
        let mut order = vec![0; written.len()];
        for (place, number) in written.iter().enumerate() {
            order[*number] = place;
        }
        let blocks = written.iter().map(|number| &description.blocks[*number]);
        Self {
            names: blocks.clone().map(|block| block.id.clone()).collect(),
            lengths: blocks.map(|block| block.bytes).collect(),
            order,
            pages: Vec::new(),
            found: None,
            sections: 0,
            next_whole: Instant::now(),
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
        self.next_whole = Instant::now() + FIRST_WHOLE;
        let names = self.names.iter().map(String::as_str);
        let pages = self.pages.iter().map(|page| &page[..]);
        Ok(stream::first_pages(names.zip(pages))?)
    }

    /// Looks for the pages of the last section. Whether QEMU has written all of them.
    pub(super) fn look(
        &mut self,
        process: &Arc<Process>,
        check: Check<'_>,
    ) -> Result<bool, PipedError> {
        let is_written = |hits: &Hits| {
            let last = hits.last().into_iter().flatten();
            last.clone().any(|(_, in_heap)| !in_heap)
        };
        let memory = Memory::open(process)?;
        if !is_written(&self.at_beginnings(&memory)?) {
            // Main memory may be behind another mapping that the kernel has joined with it.
            if Instant::now() < self.next_whole {
                return Ok(false);
            }
            let began = Instant::now();
            let hits = self.whole(&memory, &[], check)?;
            self.next_whole = Instant::now() + began.elapsed().max(MIN_WHOLE) * WHOLE_SHARE;
            if !is_written(&hits) {
                return Ok(false);
            }
        }
        // Those before it were perhaps written after they were looked for, and mapped after the
        // list of mappings was read.
        let memory = Memory::open(process)?;
        let mut hits = self.at_beginnings(&memory)?;
        if hits.iter().any(Vec::is_empty) {
            let inside: Vec<_> = hits.iter().zip(&self.lengths).filter_map(inside).collect();
            hits = self.whole(&memory, &inside, check)?;
        }
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

    /// The pages that are where a mapping begins.
    fn at_beginnings(&self, memory: &Memory) -> Result<Hits, PipedError> {
        let by_page = self.by_page();
        let mut found = vec![Vec::new(); self.names.len()];
        for area in memory.areas.iter().filter(|area| !is_heap(area)) {
            let first = HostRange::new(HostAddr(area.start), PAGE as u64);
            memory.pages(first, &mut |address| {
                if let Some(number) = memory.find(address, &by_page) {
                    found[number].push((address, false));
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// The pages in all mappings, except inside of these ranges.
    fn whole(
        &self,
        memory: &Memory,
        inside: &[Range<u64>],
        check: Check<'_>,
    ) -> Result<Hits, PipedError> {
        let by_page = self.by_page();
        let mut found = vec![Vec::new(); self.names.len()];
        let mut compared = 0;
        for area in &memory.areas {
            for part in without(area.start..area.end, inside) {
                let range = HostRange::new(HostAddr(part.start), part.end - part.start);
                memory.pages(range, &mut |address| {
                    compared += 1;
                    if compared % CHECK_PAGES == 0 {
                        check()?;
                    }
                    if let Some(number) = memory.find(address, &by_page) {
                        found[number].push((address, is_heap(area)));
                    }
                    Ok(())
                })?;
            }
        }
        Ok(found)
    }

    fn by_page(&self) -> ByPage<'_> {
        self.pages.iter().map(|page| &**page).zip(0..).collect()
    }
}

/// The number of the block for which each page was written.
type ByPage<'a> = HashMap<&'a [u8; PAGE], usize>;

/// The least time that a search of all mappings counts.
const MIN_WHOLE: Duration = Duration::from_millis(5);

/// The memory of QEMU in which a block can be.
struct Memory {
    process: Arc<Process>,
    areas: Vec<Area>,
    memory: File,
    pagemap: Pagemap,
}

impl Memory {
    fn open(process: &Arc<Process>) -> Result<Self, PipedError> {
        let failed = |source| process::explain(process, SEARCHING, source);
        let mut areas = process::areas(process)?;
        areas.retain(is_memory);
        Ok(Self {
            areas,
            memory: process.open_memory(false).map_err(failed)?,
            pagemap: Pagemap::open(Some(process)).map_err(failed)?,
            process: Arc::clone(process),
        })
    }

    /// Passes on the address of each page that the process has in the range: to read another one
    /// would make it.
    fn pages(
        &self,
        range: HostRange,
        visit: &mut dyn FnMut(u64) -> Result<(), PipedError>,
    ) -> Result<(), PipedError> {
        let mut stopped = Ok(());
        let walked = self.pagemap.pages(range, |run| {
            for address in (run.addr.0..run.addr.0 + run.len).step_by(PAGE) {
                if let Err(error) = visit(address) {
                    stopped = Err(error);
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        });
        stopped?;
        walked.map_err(|source| process::explain(&self.process, SEARCHING, source))?;
        Ok(())
    }

    /// Which of the pages is at this address. It may be unmapped meanwhile.
    fn find(&self, address: u64, by_page: &ByPage<'_>) -> Option<usize> {
        let mut page = [0; PAGE];
        self.memory.read_exact_at(&mut page, address).ok()?;
        by_page.get(&page).copied()
    }
}

const SEARCHING: &str = "searching the memory";

/// The rest of a block that was found once, in which no other block begins.
fn inside((hits, length): (&Vec<(u64, bool)>, &u64)) -> Option<Range<u64>> {
    match hits[..] {
        [(address, _)] => Some(address + PAGE as u64..address.saturating_add(*length)),
        _ => None,
    }
}

/// The parts of a range that are in none of the others.
fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = vec![range];
    for other in others {
        let split = |part: Range<u64>| {
            let before = part.start..part.end.min(other.start.max(part.start));
            let behind = part.start.max(other.end.min(part.end))..part.end;
            [before, behind]
        };
        let overlaps = |part: &Range<u64>| part.start < other.end && other.start < part.end;
        parts = parts
            .into_iter()
            .flat_map(|part| match overlaps(&part) {
                true => split(part).to_vec(),
                false => vec![part],
            })
            .filter(|part| !part.is_empty())
            .collect();
    }
    parts
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
            lengths: vec![0x1000, 0x4000],
            order: vec![1, 0],
            pages: Vec::new(),
            found: None,
            sections: sections.len().try_into().unwrap(),
            next_whole: Instant::now(),
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
    fn the_inside_of_a_block_that_was_found_is_not_searched() {
        let found = (&vec![(0x3000, false)], &0x4000);
        let rest = inside(found).unwrap();
        assert_eq!(rest, 0x4000..0x7000);
        assert_eq!(
            inside((&vec![(0x3000, false), (0x8000, true)], &0x4000)),
            None
        );
        let others = [rest, 0x9000..0xa000];
        let parts = |range| {
            let parts = without(range, &others).into_iter();
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0x3000..0x7000), [(0x3000, 0x4000)]);
        assert_eq!(
            parts(0x1000..0xb000),
            [(0x1000, 0x4000), (0x7000, 0x9000), (0xa000, 0xb000)]
        );
        assert_eq!(parts(0x5000..0x6000), []);
        assert_eq!(parts(0x5000..0x8000), [(0x7000, 0x8000)]);
        assert_eq!(parts(0x8000..0x9000), [(0x8000, 0x9000)]);
    }

    /// In this process, whose allocator joins what it maps.
    #[test]
    fn a_block_within_a_mapping_is_found_unless_the_search_is_cancelled() {
        let own = Arc::new(Process::open(std::process::id()).unwrap());
        let mut marks = search(&[]);
        marks.names.remove(0);
        marks.lengths.remove(0);
        marks.order = vec![0];
        marks.section().unwrap();
        marks.next_whole = Instant::now();
        let mut memory = vec![1; 2 * CHECK_PAGES * PAGE];
        let at = memory.as_ptr() as usize;
        let aligned = at.next_multiple_of(PAGE) + 7 * PAGE;
        memory[aligned - at..][..PAGE].copy_from_slice(&marks.pages[0][..]);
        let cancelled = || Err(PipedError::Cancelled { part: "a test" });
        let error = marks.look(&own, &mut { cancelled }).unwrap_err();
        assert!(error.to_string().contains("cancelled"), "{error}");
        assert!(marks.look(&own, &mut || Ok(())).unwrap());
        let found = &marks.found.as_ref().unwrap()[0];
        assert!(found.contains(&(aligned as u64)), "{found:x?}");
        drop(memory);
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
