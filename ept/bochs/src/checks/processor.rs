//! The rules of the processor that the crate relies on, tested with hand-made tables (SDM vol. 3C,
//! "Accessed and Dirty Flags for EPT" and "Page-Modification Logging").
//!
//! These checks do not use the crate. So if a later check fails, it is clear whether the processor
//! or the crate is wrong.

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
/// Number of page tables: the guest's first 6 MiB use 4 KiB pages, the rest 2 MiB pages.
const PAGE_TABLES: usize = 3;
/// Number of 4 KiB pages that the guest may write to.
const PAGES: u64 = 700;
/// The first 2 MiB page.
const LARGE: u64 = 0x60_0000;

/// Hand-made tables, a vCPU that uses them, and its log.
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

    /// Returns the table and the index of the entry that maps an address.
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

    /// Clears all dirty flags and empties the log; the next entry is written at `index`.
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

    /// Prepares the guest to access `count` addresses, from `first` on.
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

    /// Returns `count` entries of the log, from `start` down.
    fn logged(&self, start: usize, count: usize) -> Vec<u64> {
        (0..count).map(|at| get(self.log, start - at)).collect()
    }
}

fn set(table: Frame, index: usize, value: u64) {
    assert!(index < 512);
    // SAFETY: inside a frame of these tables; the guest does not run meanwhile.
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

/// Returns the addresses of the first pages of the write area.
fn pages(count: u64) -> Vec<u64> {
    (0..count).map(|page| WRITE_AREA + page * 4096).collect()
}

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    report.part("the processor's rules, with hand-made tables");
    let mut bench = HandmadeTables::new(host);
    order_and_capacity(report, &mut bench);
    full(report, &mut bench);
    what_is_not_logged(report, &mut bench);
}

fn order_and_capacity(report: &mut Report, bench: &mut HandmadeTables) {
    bench.reset(511);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, 10);
    report.equal(
        "10 pages written: no exit except the guest's VMCALL",
        exit,
        Exit::Vmcall,
    );
    report.equal(
        "10 pages written: index 511 - 10",
        bench.vcpu.pml_index(),
        501,
    );
    report.equal(
        "the entries are the pages in order, from entry 511 down",
        bench.logged(511, 10),
        pages(10),
    );
    report.check(
        "the dirty flags of the pages are set",
        pages(10).iter().all(|page| bench.is_dirty(*page)),
    );
    report.check(
        "the dirty flag of the next page is not set",
        !bench.is_dirty(WRITE_AREA + 10 * 4096),
    );

    bench.reset(511);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, 512);
    report.equal(
        "512 pages written: no exit except the guest's VMCALL",
        exit,
        Exit::Vmcall,
    );
    report.equal(
        "512 pages written: the index wraps from 0 to ffff",
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
        "88 of 600 writes are left at this exit",
        bench.vcpu.registers.rcx & 0xffff_ffff,
        BEYOND,
    );
    report.check(
        "the dirty flag of the 513th page is not set",
        !bench.is_dirty(first_beyond),
    );
    report.check(
        "the 513th write did not happen",
        guest_program::read_word(first_beyond) != 0x5eed,
    );
    report.check(
        "the 512th write happened",
        guest_program::read_word(first_beyond - 4096) == 0x5eed
            && bench.is_dirty(first_beyond - 4096),
    );
    bench.vcpu.set_pml_index(511);
    let exit = bench.vcpu.run();
    report.equal(
        "after the index is set to 511, the guest continues with the same write",
        exit,
        Exit::Vmcall,
    );
    report.check(
        "the 513th write happened",
        guest_program::read_word(first_beyond) == 0x5eed,
    );
    report.equal("88 new entries", bench.vcpu.pml_index(), 511 - 88);
    let rest: Vec<u64> = (0..BEYOND).map(|page| first_beyond + page * 4096).collect();
    report.equal(
        "the new entries are the remaining pages in order, from the 513th",
        bench.logged(511, 88),
        rest,
    );

    bench.reset(9);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, PAGES - 512);
    report.equal(
        "starting at index 9, the 11th page exits",
        exit,
        Exit::PmlFull,
    );
    report.equal(
        "178 of 188 writes are left at this exit",
        bench.vcpu.registers.rcx & 0xffff_ffff,
        PAGES - 512 - 10,
    );
    bench.reset(512);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, 1);
    report.equal("with index 512, the first page exits", exit, Exit::PmlFull);
    report.check(
        "index 512: no entry is written",
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
        "one page written 1,000 times: one entry",
        bench.vcpu.pml_index(),
        510,
    );
    let entry = get(bench.log, 511);
    report.equal(
        "a write inside a page: the entry is the page",
        entry & !0xfff,
        WRITE_AREA,
    );
    if entry & 0xfff != 0 {
        report.note("bits 11 to 0 of the entry are those of the write; the SDM says they are 0");
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
        report.note(
            "with a full log, any walk exits; the SDM says only a walk that has to set a flag",
        );
    }
    bench.vcpu.set_pml_index(511);
    bench.run(Program::WriteStride, WRITE_AREA, 4096, 5);
    report.equal(
        "pages written after they were read are logged",
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
        "700 pages that are already dirty: no exit",
        exit,
        Exit::Vmcall,
    );
    report.equal(
        "700 pages that are already dirty: no entry",
        bench.vcpu.pml_index(),
        511,
    );

    bench.reset(511);
    let exit = bench.run(Program::WriteStride, LARGE + 0x3000, 4096, 500);
    report.equal("500 pages of a 2 MiB page: no exit", exit, Exit::Vmcall);
    report.equal(
        "500 pages of a 2 MiB page: one entry, because there is one dirty flag",
        bench.vcpu.pml_index(),
        510,
    );
    report.equal(
        "500 pages of a 2 MiB page: the entry is the first 4 KiB page written",
        get(bench.log, 511),
        LARGE + 0x3000,
    );

    bench.reset(511);
    bench.vcpu.set_pml_log(None);
    let exit = bench.run(Program::WriteStride, WRITE_AREA, 4096, PAGES);
    report.equal("logging off: 700 pages, no exit", exit, Exit::Vmcall);
    report.check(
        "logging off: dirty flags are still set",
        pages(PAGES).iter().all(|page| bench.is_dirty(*page)),
    );
}
