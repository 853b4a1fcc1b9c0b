//! Tests for each kind of memory that a RAM block can have.

#![allow(missing_docs)]
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod charged;
#[path = "../../../linux/tests/common/mod.rs"]
mod common;
mod ended_process;
mod guest_process;
mod installing;
mod missing;
mod reading;
mod swap;
mod writing;

use hikkoshi_memory::GuestRam;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};

use common::HugePages;
use guest_process::{Kind, PAGES};

fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

/// Runs a test for each kind; hugetlb needs a pool.
fn for_each(kinds: &[Kind], test: impl Fn(Kind)) {
    for &kind in kinds {
        let _pool = match kind {
            Kind::Hugetlb => match HugePages::reserve(PAGES / 512 + 2) {
                Some(pool) => Some(pool),
                None => continue,
            },
            _ => None,
        };
        eprintln!("{kind:?}");
        test(kind);
    }
}

/// The runs of pages that are not holes.
fn data(ram: &GuestRam) -> Vec<PageRange> {
    let mut found: Vec<PageRange> = Vec::new();
    let mut rest = ram.layout().all();
    while let Some(run) = ram.next_data(rest).unwrap() {
        assert!(!run.is_empty() && ram.has_data(run).unwrap());
        match found.last_mut() {
            Some(last) if last.end() == run.start() => {
                *last = range(last.start().index(), run.end().index())
            }
            _ => found.push(run),
        }
        rest = PageRange::new(run.end(), rest.end());
    }
    found
}

/// The first word of a page.
fn word(ram: &GuestRam, page: u64) -> u64 {
    let mut content = [0xff; PAGE_SIZE];
    ram.read(range(page, page + 1), &mut content).unwrap();
    u64::from_le_bytes(content[..8].try_into().unwrap())
}
