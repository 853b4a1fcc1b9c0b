//! The machine: memory, and one virtual processor that writes to it.

use std::error::Error;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_memory::{GuestRam, RamFile};
use hikkoshi_pages::{
    GuestRange, PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamBlock, RamLayout, usize_from,
};
use hikkoshi_wire::GuestDescription;
use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// 32 MiB.
const PAGES: u64 = 8192;

/// A memfd, and its mapping in this process.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapRegion,
    ram: Arc<GuestRam>,
}

impl Memory {
    /// Memory that was never touched.
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let layout = RamLayout::new(vec![RamBlock {
            id: "ram".to_owned(),
            bytes: PAGES * PAGE_BYTES,
            host_page: PAGE_BYTES,
            guest: vec![GuestRange {
                gpa: 0,
                offset: 0,
                bytes: PAGES * PAGE_BYTES,
            }],
        }])?;
        let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC)?);
        file.set_len(layout.bytes())?;
        let map = MmapRegion::from_file(
            FileOffset::new(file.try_clone()?, 0),
            usize_from(layout.bytes()),
        )?;
        let ram = GuestRam::new(layout, vec![RamFile::new(file, 0)]).ok_or("one file a block")?;
        Ok(Self {
            map,
            ram: Arc::new(ram),
        })
    }

    /// The memory as the engine reads and fills it.
    pub(crate) fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    /// Where the mapping begins in this process.
    pub(crate) fn host_address(&self) -> u64 {
        self.map.as_ptr() as u64
    }

    /// Reads a page as the guest does. Waits while the page is missing.
    fn load(&self, page: u64) -> io::Result<[u8; PAGE_SIZE]> {
        let mut content = [0; PAGE_SIZE];
        let memory = self.map.as_volatile_slice();
        memory
            .read_slice(&mut content, usize_from(page * PAGE_BYTES))
            .map_err(io::Error::other)?;
        Ok(content)
    }

    /// Writes a page as the guest does. Waits while the page is missing.
    fn store(&self, page: u64, content: &[u8; PAGE_SIZE]) -> io::Result<()> {
        let memory = self.map.as_volatile_slice();
        memory
            .write_slice(content, usize_from(page * PAGE_BYTES))
            .map_err(io::Error::other)
    }
}

/// What a page holds after write number `write`; zeros before the first.
fn stamp(page: u64, write: u64) -> [u8; PAGE_SIZE] {
    let mut content = [0; PAGE_SIZE];
    if write > 0 {
        for (word, place) in content.chunks_exact_mut(8).zip(0..) {
            word.copy_from_slice(&(page ^ write << 32 ^ place).to_le_bytes());
        }
    }
    content
}

/// What the virtual processor remembers. It is the machine's device state: it must arrive together
/// with the memory.
#[derive(Debug)]
pub(crate) struct Cpu {
    /// How many pages it has written.
    writes: u64,
    /// How many pages it has read that did not hold what it had written.
    wrong: u64,
    /// The number of the last write to each page, or 0.
    last: Vec<u64>,
}

impl Cpu {
    /// Reads a page, checks it, and writes it again. Half of the steps stay in an eighth of the
    /// memory.
    fn step(&mut self, memory: &Memory) -> io::Result<()> {
        let random = self.writes.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let range = if random.is_multiple_of(2) {
            PAGES
        } else {
            PAGES / 8
        };
        let page = random / 2 % range;
        if memory.load(page)? != stamp(page, self.last(page)) {
            self.wrong += 1;
        }
        self.write(memory, page)
    }

    fn write(&mut self, memory: &Memory, page: u64) -> io::Result<()> {
        self.writes += 1;
        self.last[usize_from(page)] = self.writes;
        memory.store(page, &stamp(page, self.writes))
    }

    fn last(&self, page: u64) -> u64 {
        self.last[usize_from(page)]
    }

    /// The device state.
    pub(crate) fn save(&self) -> Vec<u8> {
        let words = [self.writes, self.wrong]
            .into_iter()
            .chain(self.last.iter().copied());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// The processor that [`save`](Self::save) has saved.
    pub(crate) fn load(state: &[u8]) -> Option<Self> {
        let (words, rest) = state.as_chunks();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (writes, wrong) = (words.next()?, words.next()?);
        let last: Vec<u64> = words.collect();
        (rest.is_empty() && last.len() as u64 == PAGES).then_some(Self {
            writes,
            wrong,
            last,
        })
    }
}

/// A processor that runs.
#[derive(Debug)]
struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Cpu>>,
}

/// The machine: paused, running, or without a guest yet.
#[derive(Debug)]
pub(crate) struct Machine {
    memory: Arc<Memory>,
    cpu: Option<Cpu>,
    running: Option<Running>,
}

/// What [`Machine::check`] has found.
#[derive(Debug)]
pub(crate) struct Checked {
    /// How many pages were compared.
    pub(crate) pages: u64,
    /// How many were wrong then, or when the guest read them.
    pub(crate) wrong: u64,
}

impl Machine {
    /// A machine with a running guest, which has written two of three pages.
    pub(crate) fn boot(memory: Memory) -> Result<Self, Box<dyn Error>> {
        let mut machine = Self::empty(memory);
        let mut cpu = Cpu {
            writes: 0,
            wrong: 0,
            last: vec![0; usize_from(PAGES)],
        };
        for page in (0..PAGES).filter(|page| page % 3 != 0) {
            cpu.write(&machine.memory, page)?;
        }
        machine.cpu = Some(cpu);
        machine.run()?;
        Ok(machine)
    }

    /// A machine that waits for a guest.
    pub(crate) fn empty(memory: Memory) -> Self {
        Self {
            memory: Arc::new(memory),
            cpu: None,
            running: None,
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The paused processor, if there is one.
    pub(crate) fn cpu(&self) -> Option<&Cpu> {
        self.cpu.as_ref()
    }

    /// Gives the machine its processor.
    pub(crate) fn set_cpu(&mut self, cpu: Cpu) {
        self.cpu = Some(cpu);
    }

    /// Resumes the guest, if there is one and it is paused.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let Some(mut cpu) = self.cpu.take() else {
            return Ok(());
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (memory, stopped) = (Arc::clone(&self.memory), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("cpu".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    cpu.step(&memory)?;
                    // Some MiB a second: the link is faster, so that pre-copy converges.
                    thread::sleep(Duration::from_micros(100));
                }
                Ok(cpu)
            })?;
        self.running = Some(Running { stop, thread });
        Ok(())
    }

    /// Pauses the guest, if it runs.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        running.stop.store(true, Ordering::Relaxed);
        let cpu = running
            .thread
            .join()
            .map_err(|_| io::Error::other("the processor panicked"))?;
        self.cpu = Some(cpu?);
        Ok(())
    }

    /// The machine as the other side must have it.
    pub(crate) fn describe(&self, running: bool) -> GuestDescription {
        GuestDescription {
            machine: "example-1".to_owned(),
            architecture: "x86_64".to_owned(),
            cpus: 1,
            cpu_model: "thread".to_owned(),
            hypervisor: "in-memory-guest".to_owned(),
            running,
            blocks: GuestDescription::describe_blocks(self.memory.ram.layout()),
        }
    }

    /// Pauses the guest and compares every page with what its processor remembers.
    pub(crate) fn check(mut self) -> Result<Checked, Box<dyn Error>> {
        self.pause()?;
        let cpu = self.cpu.ok_or("there is no guest")?;
        let mut wrong = cpu.wrong;
        let mut content = [0; PAGE_SIZE];
        for (page, last) in (0..).zip(&cpu.last) {
            self.memory
                .ram
                .read(PageRange::one(Page::new(page)), &mut content)?;
            wrong += u64::from(content != stamp(page, *last));
        }
        Ok(Checked {
            pages: PAGES,
            wrong,
        })
    }
}
