//! The processor's own rules, with tables made by hand: what the crate builds upon (SDM vol. 3C,
//! "Accessed and Dirty Flags for EPT" and "Page-Modification Logging").
//!
//! Without the crate, so that a later failure can be told: either the rule is another one here, or
//! the crate breaks it.

use crate::guest_program::{self, Program, WRITE_AREA};
use crate::memory::{FRAME, Frame, GUEST};
use crate::report::Report;
use crate::vmx::operation;
use crate::vmx::vcpu::{Exit, Host, Registers, Vcpu};
use alloc::vec::Vec;

const READ_WRITE_EXECUTE: u64 = 7;
const WRITE_BACK: u64 = 6 << 3;
const LEAF: u64 = 1 << 7;
const DIRTY: u64 = 1 << 9;
/// Page tables: the guest's first 6 MiB in 4 KiB pages, all else in 2 MiB pages.
const PAGE_TABLES: usize = 3;
/// Pages that the guest may write to one by one.
const PAGES: u64 = 700;
/// The first 2 MiB page.
const LARGE: u64 = 0x60_0000;

/// Tables made by hand, a vCPU under them, and its log.
struct HandmadeTables {
    directory: Frame,
    page_tables: [Frame; PAGE_TABLES],
    pointer: u64,
    vcpu: Vcpu,
    log: Frame,
}

impl HandmadeTables {
    fn new(host: Host) -> HandmadeTables {
        let [root, upper, directory] = core::array::from_fn(|_| Frame::zeroed());
        let page_tables = core::array::from_fn(|_| Frame::zeroed());
        set(root, 0, upper.address() | READ_WRITE_EXECUTE);
        set(upper, 0, directory.address() | READ_WRITE_EXECUTE);
        for index in 0..GUEST.len() / (FRAME << 9) {
            let address = (GUEST.start + (index << 21)) as u64;
            set(
                directory,
                index,
                address | READ_WRITE_EXECUTE | WRITE_BACK | LEAF,
            );
        }
        for (number, table) in page_tables.iter().enumerate() {
            set(directory, number, table.address() | READ_WRITE_EXECUTE);
            for index in 0..512 {
                let address = (GUEST.start + ((number * 512 + index) << 12)) as u64;
                set(*table, index, address | READ_WRITE_EXECUTE | WRITE_BACK);
            }
        }
        const FOUR_LEVELS: u64 = 3 << 3;
        const TABLES_WRITE_BACK: u64 = 6;
        const ACCESSED_DIRTY: u64 = 1 << 6;
        let pointer = root.address() | FOUR_LEVELS | TABLES_WRITE_BACK | ACCESSED_DIRTY;
        let vcpu = Vcpu::new(host, pointer);
        HandmadeTables {
            directory,
            page_tables,
            pointer,
            vcpu,
            log: Frame::zeroed(),
        }
    }

    /// The entry that maps an address: where it is.
    fn entry(&self, address: u64) -> (Frame, usize) {
        let page = usize::try_from(address >> 12).unwrap_or(0);
        match self.page_tables.get(page >> 9) {
            Some(table) => (*table, page & 511),
            None => (self.directory, page >> 9),
        }
    }

    fn is_dirty(&self, address: u64) -> bool {
        let (table, index) = self.entry(address);
        get(table, index) & DIRTY != 0
    }

    fn set_dirty(&self, address: u64, dirty: bool) {
        let (table, index) = self.entry(address);
        let rest = get(table, index) & !DIRTY;
        set(table, index, if dirty { rest | DIRTY } else { rest });
    }

    /// Everything clean, the log empty from this index down.
    fn reset(&self, index: u16) {
        for page in 0..PAGE_TABLES as u64 * 512 {
            self.set_dirty(page << 12, false);
        }
        self.set_dirty(LARGE, false);
        operation::invalidate(self.pointer);
        for at in 0..512 {
            set(self.log, at, u64::MAX);
        }
        self.vcpu.set_pml_log(Some((self.log.address(), index)));
    }

    /// Sets the guest up to go from `first` on.
    fn prepare(&mut self, program: Program, first: u64, step: u64, count: u64) {
        self.vcpu.set_rip(program.address());
        self.vcpu.registers = Registers {
            rax: 1,
            rcx: count,
            rdx: step,
            rdi: first,
            ..Registers::default()
        };
    }

    fn run(&mut self, program: Program, first: u64, step: u64, count: u64) -> Exit {
        self.prepare(program, first, step, count);
        self.vcpu.run()
    }

    /// The log's entries from `start` down, `count` of them.
    fn logged(&self, start: usize, count: usize) -> Vec<u64> {
        (0..count).map(|at| get(self.log, start - at)).collect()
    }
}

fn set(table: Frame, index: usize, value: u64) {
    assert!(index < 512);
    // SAFETY: a frame of this bench, inside it; the guest does not run meanwhile.
    unsafe {
        table
            .pointer()
            .cast::<u64>()
            .add(index)
            .write_volatile(value)
    };
}

fn get(table: Frame, index: usize) -> u64 {
    assert!(index < 512);
    // SAFETY: as above.
    unsafe { table.pointer().cast::<u64>().add(index).read_volatile() }
}

/// The pages from the playground's start on.
fn pages(count: u64) -> Vec<u64> {
    (0..count).map(|page| WRITE_AREA + page * 4096).collect()
}

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    report.part("the processor's rules, with tables made by hand");
    let mut bench = HandmadeTables::new(host);
    order_and_capacity(report, &mut bench);
    full(report, &mut bench);
    what_is_not_logged(report, &mut bench);
}

fn order_and_capacity(report: &mut Report, bench: &mut HandmadeTables) {
    bench.reset(511);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, 10);
    report.equal(
        "ten pages written: no exit but the guest's own",
        exit,
        Exit::Vmcall,
    );
    report.equal(
        "ten pages written: index 511 - 10",
        bench.vcpu.pml_index(),
        501,
    );
    report.equal(
        "entries are the pages in order, from 511 down",
        bench.logged(511, 10),
        pages(10),
    );
    report.check(
        "their dirty flags are set",
        pages(10).iter().all(|page| bench.is_dirty(*page)),
    );
    report.check(
        "the next page's is not",
        !bench.is_dirty(WRITE_AREA + 10 * 4096),
    );

    bench.reset(511);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, 512);
    report.equal(
        "512 pages written: no exit but the guest's own",
        exit,
        Exit::Vmcall,
    );
    report.equal(
        "512 pages written: the index went from 0 to ffff",
        bench.vcpu.pml_index(),
        0xffff,
    );
    report.equal(
        "512 pages written: 512 entries",
        bench.logged(511, 512),
        pages(512),
    );
}

fn full(report: &mut Report, bench: &mut HandmadeTables) {
    const BEYOND: u64 = 88;
    let first_beyond = WRITE_AREA + 512 * 4096;
    bench.reset(511);
    bench.prepare(Program::WriteStride, WRITE_AREA, 4096, 512 + BEYOND);
    bench.vcpu.registers.rax = 0x5eed;
    let exit = bench.vcpu.run();
    report.equal("the 513th page exits with reason 62", exit, Exit::PmlFull);
    report.equal(
        "it is the 513th: 88 of 600 are left",
        bench.vcpu.registers.rcx & 0xffff_ffff,
        BEYOND,
    );
    report.check("its dirty flag was not set", !bench.is_dirty(first_beyond));
    report.check(
        "its write did not happen",
        guest_program::read_word(first_beyond) != 0x5eed,
    );
    report.check(
        "the 512th write did",
        guest_program::read_word(first_beyond - 4096) == 0x5eed
            && bench.is_dirty(first_beyond - 4096),
    );
    bench.vcpu.set_pml_index(511);
    let exit = bench.vcpu.run();
    report.equal(
        "with the index at 511 again, the same write goes on",
        exit,
        Exit::Vmcall,
    );
    report.check(
        "and happened",
        guest_program::read_word(first_beyond) == 0x5eed,
    );
    report.equal(
        "88 entries more, the 513th page first",
        bench.vcpu.pml_index(),
        511 - 88,
    );
    let rest: Vec<u64> = (0..BEYOND).map(|page| first_beyond + page * 4096).collect();
    report.equal("they are the rest", bench.logged(511, 88), rest);

    bench.reset(9);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, PAGES - 512);
    report.equal("from index 9, the 11th page exits", exit, Exit::PmlFull);
    report.equal(
        "with 178 of 188 left",
        bench.vcpu.registers.rcx & 0xffff_ffff,
        PAGES - 512 - 10,
    );
    bench.reset(512);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, 1);
    report.equal("with index 512, the first exits", exit, Exit::PmlFull);
    report.check(
        "and no entry was written",
        bench
            .logged(511, 512)
            .iter()
            .all(|entry| *entry == u64::MAX),
    );
}

fn what_is_not_logged(report: &mut Report, bench: &mut HandmadeTables) {
    bench.reset(511);
    bench.run(Program::WriteStride, WRITE_AREA + 0x7fc, 0, 1000);
    report.equal(
        "one page written a thousand times: one entry",
        bench.vcpu.pml_index(),
        510,
    );
    let entry = get(bench.log, 511);
    report.equal(
        "a write inside a page: its entry names the page",
        entry & !0xfff,
        WRITE_AREA,
    );
    if entry & 0xfff != 0 {
        report.note("the entry's bits 11 to 0 are the write's; the SDM says they are 0");
    }

    bench.reset(511);
    bench.run(Program::ReadStride, WRITE_AREA, 4096, PAGES);
    report.equal("700 pages read: no entry", bench.vcpu.pml_index(), 511);
    report.check(
        "700 pages read: no dirty flag",
        pages(PAGES).iter().all(|page| !bench.is_dirty(*page)),
    );
    bench.vcpu.set_pml_index(0xffff);
    operation::invalidate(bench.pointer);
    let exit = bench.run(Program::ReadStride, WRITE_AREA, 4096, PAGES);
    if exit == Exit::PmlFull {
        report.note("log full, any walk exits; the SDM says only one that has to set a flag");
    }
    bench.vcpu.set_pml_index(511);
    bench.run(Program::WriteStride, WRITE_AREA, 4096, 5);
    report.equal(
        "written after being read: logged",
        bench.logged(511, 5),
        pages(5),
    );

    bench.reset(511);
    for page in pages(PAGES) {
        bench.set_dirty(page, true);
    }
    operation::invalidate(bench.pointer);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, PAGES);
    report.equal(
        "700 pages that were dirty already: no exit",
        exit,
        Exit::Vmcall,
    );
    report.equal("and no entry", bench.vcpu.pml_index(), 511);

    bench.reset(511);
    let exit = bench.run(Program::WriteStride, LARGE + 0x3000, 4096, 500);
    report.equal("500 pages of a 2 MiB page: no exit", exit, Exit::Vmcall);
    report.equal(
        "one entry, for it has one dirty flag",
        bench.vcpu.pml_index(),
        510,
    );
    report.equal(
        "the entry is the 4 KiB page first written",
        get(bench.log, 511),
        LARGE + 0x3000,
    );

    bench.reset(511);
    bench.vcpu.set_pml_log(None);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, PAGES);
    report.equal("logging off: 700 pages, no exit", exit, Exit::Vmcall);
    report.check(
        "logging off: dirty flags all the same",
        pages(PAGES).iter().all(|page| bench.is_dirty(*page)),
    );
}
