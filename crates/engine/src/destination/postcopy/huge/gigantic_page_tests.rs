//! A host page of 1 GiB, really: it is put together from pieces in any order
//! while a thread waits for it.

// A test that is skipped says so.
#![allow(clippy::print_stderr)]

use std::fs::File;
use std::sync::Arc;
use std::thread;

use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamBlock};
use hikkoshi_userfault::{Features, Userfault};
use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::destination::postcopy::installer::tests::in_file;
use crate::destination::postcopy::installer::{FaultAction, Installer};

const GIB: u64 = 1 << 30;
const PAGES: u64 = GIB / 4096;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";

/// One page of 1 GiB in the system's pool, given back at the end.
struct Pool(u64);

impl Pool {
    fn read() -> u64 {
        let text = std::fs::read_to_string(POOL).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn reserve() -> Option<Self> {
        let before = Self::read();
        let _ = std::fs::write(POOL, (before + 1).to_string());
        if Self::read() > before {
            return Some(Self(before));
        }
        eprintln!(
            "SKIPPED: no huge page of 1 GiB to be had (it needs root, a processor with 1 GiB \
             pages, and a contiguous gigabyte of memory); host pages of 1 GiB are NOT tested"
        );
        None
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::write(POOL, self.0.to_string());
    }
}

#[test]
fn a_page_of_a_gigabyte() {
    let Some(_pool) = Pool::reserve() else {
        return;
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB;
    let file = File::from(memfd_create("ram", flags).unwrap());
    file.set_len(GIB).unwrap();
    let bytes = usize::try_from(GIB).unwrap();
    let block = RamBlock::new("ram", GIB, GIB);
    let ram = in_file(&file, vec![block]);
    let map: MmapRegion = MmapRegion::from_file(FileOffset::new(file, 0), bytes).unwrap();
    let userfault = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let hosts = [map.as_ptr() as u64];
    let installer = Installer::new(Arc::new(userfault), ram, &hosts, 2, Arc::default()).unwrap();
    let whole = PageRange::from_len(Page::new(0), PAGES);
    installer.missing.add(whole);
    installer.copier.register().unwrap();
    let place = |page: u64| usize::try_from(page).unwrap() * PAGE_SIZE;
    let value = |page: u64| u8::try_from(page % 251).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            map.as_volatile_slice()
                .read_obj::<u8>(place(77_777))
                .unwrap()
        });
        let addr = HostAddr(hosts[0] + 77_777 * 4096);
        assert_eq!(installer.decide(addr, 0), FaultAction::Request(whole));
        assert_eq!(installer.decide(addr, 0), FaultAction::Nothing);
        let mut requested = Vec::new();
        installer
            .requests
            .ranges(whole, |range| requested.push(range));
        assert_eq!(requested, [whole]);
        let requests = &installer.requests;
        requests.sent(whole, requests.now(), requests.now(), &installer.missing);
        // Two links bring a half each, from the far end of it; one of them the
        // last piece.
        let last: Vec<bool> = thread::scope(|scope| {
            let halves = [0, PAGES / 2].map(|from| PageRange::from_len(Page::new(from), PAGES / 2));
            let links = halves.into_iter().map(|half| {
                let installer = &installer;
                scope.spawn(move || {
                    let pieces: Vec<_> = half.chunks(192).collect();
                    let mut content = Vec::new();
                    let mut last = false;
                    for piece in pieces.into_iter().rev() {
                        content.clear();
                        for page in piece.iter() {
                            content.extend([value(page.index()); PAGE_SIZE]);
                        }
                        let now = installer.requests.now();
                        last |= installer.install(piece, &content, now).unwrap();
                    }
                    last
                })
            });
            let links: Vec<_> = links.collect();
            links.into_iter().map(|link| link.join().unwrap()).collect()
        });
        assert_eq!(last.iter().filter(|&&last| last).count(), 1);
        assert_eq!(waiting.join().unwrap(), value(77_777));
        assert_eq!(installer.latencies.total().count, 1);
    });
    assert_eq!(installer.missing.count(), 0);
    for page in 0..PAGES {
        for at in [0, PAGE_SIZE - 1] {
            let byte: u8 = map.as_volatile_slice().read_obj(place(page) + at).unwrap();
            assert_eq!(byte, value(page), "page {page}");
        }
    }
    installer.copier.unregister().unwrap();
}
