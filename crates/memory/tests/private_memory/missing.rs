//! Pages that are installed by a userfaultfd, and those that are missing.

use hikkoshi_linux::{COLLAPSE_BYTES, HostAddr, HostRange};
use hikkoshi_memory::{RamWriter, missing_pages};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, PageRange};
use hikkoshi_userfault::{Features, RegisterMode, RemoteUserfault};

use crate::guest_process::{GuestProcess, Kind, PAGES};

use super::{data, for_each, range, word};

/// Pages come through a userfaultfd only, and are present from then on.
#[test]
fn missing_pages_are_those_that_were_not_installed() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        guest.write(range(0, PAGES), 3);
        let ram = guest.ram();
        let memory = RamWriter::open(ram.clone()).unwrap();
        memory.drop_all().unwrap();
        let remote = RemoteUserfault::create_in(&guest.process, Features::FOR_MISSING).unwrap();
        let userfault = remote.userfault();
        let host = HostRange::new(HostAddr(guest.address()), PAGES * PAGE_BYTES);
        userfault.register(host, RegisterMode::MISSING).unwrap();
        let hosts = [guest.address()];
        let missing = || {
            let mut found: Vec<PageRange> = Vec::new();
            missing_pages(&ram, userfault, &hosts, |run| match found.last_mut() {
                Some(last) if last.end() == run.start() => {
                    *last = PageRange::new(last.start(), run.end());
                }
                _ if run.is_empty() => {}
                _ => found.push(run),
            })
            .unwrap();
            found
        };
        assert_eq!(missing(), [range(0, PAGES)], "{kind:?}");
        let (from, to) = match kind.host_page() {
            PAGE_BYTES => (700, 701),
            _ => (512, 1024),
        };
        let content = vec![9; usize::try_from(range(from, to).bytes()).unwrap()];
        let at = HostAddr(guest.address() + from * PAGE_BYTES);
        userfault.copy(at, &content).unwrap();
        let expected = [range(0, from), range(to, PAGES)];
        assert_eq!(missing(), expected, "{kind:?}");
        assert_eq!(guest.read(700), u64::from_le_bytes([9; 8]), "{kind:?}");
        // A page that is installed and dropped is missing again: a stale one, for instance.
        assert_eq!(word(&ram, 700), u64::from_le_bytes([9; 8]), "{kind:?}");
        memory.drop_stale(&[range(from, to)]).unwrap();
        assert_eq!(missing(), [range(0, PAGES)], "{kind:?}");
        userfault.unregister(host).unwrap();
        assert_eq!(guest.read(700), 0, "{kind:?}");
        remote.close_remote().unwrap();
        guest.finish();
    });
}

/// A huge page over missing pages would be present, with zeros. Neither the kernel's own thread nor
/// `--collapse` puts one there while the memory is registered.
#[test]
fn no_huge_page_covers_missing_pages() {
    let guest = GuestProcess::new(Kind::Transparent);
    let ram = guest.ram();
    let memory = RamWriter::open(ram.clone()).unwrap();
    let host = HostRange::new(HostAddr(guest.address()), PAGES * PAGE_BYTES);
    let start = guest.address().next_multiple_of(COLLAPSE_BYTES);
    let huge = HostRange::new(HostAddr(start), COLLAPSE_BYTES);
    let first = (start - guest.address()) / PAGE_BYTES;
    for registered in [true, false] {
        memory.drop_all().unwrap();
        let remote = RemoteUserfault::create_in(&guest.process, Features::FOR_MISSING).unwrap();
        let userfault = remote.userfault();
        userfault.register(host, RegisterMode::MISSING).unwrap();
        let page = vec![9; PAGE_SIZE];
        userfault
            .copy(HostAddr(start + 5 * PAGE_BYTES), &page)
            .unwrap();
        if !registered {
            userfault.unregister(host).unwrap();
        }
        let collapsed = guest.process.collapse(huge);
        assert_eq!(collapsed.is_err(), registered, "{collapsed:?}");
        let expected = match registered {
            true => range(first + 5, first + 6),
            false => range(first, first + 512),
        };
        assert_eq!(data(&ram), [expected]);
        if registered {
            userfault.unregister(host).unwrap();
        }
        remote.close_remote().unwrap();
    }
    guest.finish();
}
