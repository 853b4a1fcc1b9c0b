//! Rebuilds huge pages in the shared memory of a real process.

#![allow(missing_docs)]
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod common;

use std::os::fd::AsRawFd;

use common::{Target, as_nobody, map_shared, memory_file};
use error_reporter::Report;
use hikkoshi_linux::{COLLAPSE_BYTES, CollapseError, HostAddr, HostRange, Process};

const HUGE: u64 = COLLAPSE_BYTES;
const BYTES: u64 = 8 * HUGE;

/// Maps memory at an address aligned like the file, writes every page, reports the address, and
/// checks the content again on request. Exits with 0 if nothing has changed.
fn target() -> Target {
    let target = Target::spawn(|shared| {
        let file = memory_file(BYTES, false);
        // An address that is free.
        let place = map_shared(usize::try_from(BYTES + HUGE).unwrap(), -1) as u64;
        let base = place.next_multiple_of(HUGE);
        let mapped = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(usize::try_from(base).unwrap()),
                usize::try_from(BYTES).unwrap(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_eq!(mapped as u64, base);
        let words = mapped.cast::<u64>();
        let page = |page: u64| unsafe { words.add(usize::try_from(page * 512).unwrap()) };
        for number in 0..BYTES / 4096 {
            unsafe { page(number).write_volatile(number + 1) };
        }
        shared.set(0, base);
        shared.wait(1, 1);
        let changed = |number: &u64| unsafe { page(*number).read_volatile() } != number + 1;
        i32::from((0..BYTES / 4096).any(|number| changed(&number)))
    });
    target.shared.wait(0, 1);
    target
}

fn huge_page(target: &Target, number: u64) -> HostRange {
    HostRange::new(HostAddr(target.shared.get(0) + number * HUGE), HUGE)
}

/// Retries while other users of the pages make the kernel report busy.
fn collapse(process: &Process, range: HostRange) -> Result<(), CollapseError> {
    let mut result = Err(CollapseError::Busy);
    common::eventually("the pages to be left alone", || {
        result = process.collapse(range);
        result != Err(CollapseError::Busy)
    });
    result
}

/// KiB of shared memory that the process maps with huge pages at `address`.
fn huge_kib(pid: u32, address: u64) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let start = format!("{address:x}-");
    let mapping = text.split_once(&start).unwrap().1;
    let value = mapping.split_once("ShmemPmdMapped:").unwrap().1;
    let value = value.split_once(" kB").unwrap().0;
    value.trim().parse().unwrap()
}

#[test]
fn huge_pages_are_rebuilt_with_the_same_content() {
    let target = target();
    let process = Process::open(target.pid).unwrap();
    let base = target.shared.get(0);
    assert_eq!(huge_kib(target.pid, base), 0, "nothing is huge yet");
    for number in 0..5 {
        assert_eq!(collapse(&process, huge_page(&target, number)), Ok(()));
    }
    // Again: it is a huge page already.
    assert_eq!(collapse(&process, huge_page(&target, 0)), Ok(()));
    assert_eq!(huge_kib(target.pid, base), 5 * 2048);
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0, "the content has changed");
}

#[test]
fn a_range_that_cannot_be_rebuilt_is_an_error() {
    let target = target();
    let process = Process::open(target.pid).unwrap();
    let base = target.shared.get(0);
    let unaligned = HostRange::new(HostAddr(base + 4096), 4096);
    assert_eq!(process.collapse(unaligned), Err(CollapseError::Impossible));
    let nowhere = HostRange::new(HostAddr(0x1000_0000_0000), HUGE);
    assert_eq!(process.collapse(nowhere), Err(CollapseError::NoMemory));
    let pid = target.pid;
    let range = huge_page(&target, 0);
    let error = as_nobody(move || {
        let process = Process::open(pid).unwrap();
        Report::new(process.collapse(range).unwrap_err()).to_string()
    });
    assert!(
        error.starts_with("not permitted: needs CAP_SYS_NICE"),
        "{error}"
    );
    target.kill(libc::SIGKILL);
    assert_eq!(target.join(), -libc::SIGKILL);
    assert_eq!(process.collapse(range), Err(CollapseError::Gone));
}
