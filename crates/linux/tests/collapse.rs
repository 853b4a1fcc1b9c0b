//! Rebuilds huge pages in the memory of a real process.

#![allow(missing_docs)]
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod common;

use std::os::fd::AsRawFd;

use common::{Target, as_nobody, map_shared, memory_file};
use error_reporter::Report;
use hikkoshi_linux::{COLLAPSE_BYTES, CollapseError, HostAddr, HostRange, Process};

const HUGE: u64 = COLLAPSE_BYTES;
const BYTES: u64 = 8 * HUGE;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A memfd.
    Shared,
    /// Anonymous memory.
    Private,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Shared, Self::Private];

    /// The line of `/proc/PID/smaps` with what is mapped with huge pages.
    fn field(self) -> &'static str {
        match self {
            Self::Shared => "ShmemPmdMapped:",
            Self::Private => "AnonHugePages:",
        }
    }
}

/// Maps memory at an address aligned like the file, writes every page, reports the address, and
/// checks the content again on request. Exits with 0 if nothing has changed.
fn target(kind: Kind) -> Target {
    let target = Target::spawn(move |shared| {
        let file = (kind == Kind::Shared).then(|| memory_file(BYTES, false));
        let flags = match kind {
            Kind::Shared => libc::MAP_SHARED,
            Kind::Private => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        // Whatever the host's setting, the pages are small at first.
        let small = |on: libc::c_ulong| unsafe {
            libc::prctl(
                libc::PR_SET_THP_DISABLE,
                on,
                0 as libc::c_ulong,
                0 as libc::c_ulong,
                0 as libc::c_ulong,
            )
        };
        assert_eq!(small(1), 0);
        // An address that is free.
        let place = map_shared(usize::try_from(BYTES + HUGE).unwrap(), -1) as u64;
        let base = place.next_multiple_of(HUGE);
        let mapped = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(usize::try_from(base).unwrap()),
                usize::try_from(BYTES).unwrap(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_FIXED,
                file.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                0,
            )
        };
        assert_eq!(mapped as u64, base);
        let words = mapped.cast::<u64>();
        let page = |page: u64| unsafe { words.add(usize::try_from(page * 512).unwrap()) };
        for number in 0..BYTES / 4096 {
            unsafe { page(number).write_volatile(number + 1) };
        }
        assert_eq!(small(0), 0);
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

/// KiB that the process maps with huge pages in the mapping at its address.
fn huge_kib(target: &Target, kind: Kind) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid)).unwrap();
    let start = format!("{:x}-", target.shared.get(0));
    let mapping = text.split_once(&start).unwrap().1;
    let value = mapping.split_once(kind.field()).unwrap().1;
    let value = value.split_once(" kB").unwrap().0;
    value.trim().parse().unwrap()
}

#[test]
fn huge_pages_are_rebuilt_with_the_same_content() {
    for kind in Kind::ALL {
        let target = target(kind);
        let process = Process::open(target.pid).unwrap();
        assert_eq!(huge_kib(&target, kind), 0, "{kind:?}: nothing is huge yet");
        for number in 0..5 {
            let collapsed = collapse(&process, huge_page(&target, number));
            assert_eq!(collapsed, Ok(()), "{kind:?}");
        }
        // Again: it is a huge page already.
        assert_eq!(collapse(&process, huge_page(&target, 0)), Ok(()));
        assert_eq!(huge_kib(&target, kind), 5 * 2048, "{kind:?}");
        target.shared.set(1, 1);
        assert_eq!(target.join(), 0, "{kind:?}: the content has changed");
    }
}

#[test]
fn a_range_that_cannot_be_rebuilt_is_an_error() {
    let target = target(Kind::Shared);
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
