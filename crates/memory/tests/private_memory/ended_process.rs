//! The memory of a process that has ended, or is killed.

use hikkoshi_memory::{MemoryLost, RamWriter};
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};

use crate::guest_process::{GuestProcess, Kind, PAGES};

use super::{data, range};

#[test]
fn memory_of_a_process_that_has_ended_is_an_error() {
    let guest = GuestProcess::new(Kind::Anonymous);
    guest.write(range(0, 10), 7);
    let (ram, sent) = (guest.ram(), guest.ram());
    sent.backings()[0].private().unwrap().set_sent();
    guest.finish();
    // What the destination has is not needed any more.
    assert_eq!(data(&sent), []);
    let mut content = [0; PAGE_SIZE];
    let all = ram.layout().all();
    let errors = [
        ram.read(range(3, 4), &mut content).unwrap_err(),
        ram.has_data(all).unwrap_err(),
        ram.next_data(all).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            error.to_string(),
            "the process that holds the memory has ended"
        );
    }
    let memory = RamWriter::open(ram).unwrap();
    assert!(memory.write(range(0, 1), &content).is_err());
    assert!(memory.drop_all().is_err());
}

/// An exiting process gives its memory up some time before it counts as ended. Its pages must not
/// be taken for holes then.
#[test]
fn no_page_of_a_process_that_is_killed_reads_as_zeros() {
    for kind in [Kind::Anonymous, Kind::EmptyFile] {
        eprintln!("{kind:?}");
        for _ in 0..20 {
            let guest = GuestProcess::new(kind);
            let all = range(0, PAGES);
            guest.write(all, 1 << 50);
            let ram = guest.ram();
            let pid = rustix::process::Pid::from_raw(guest.target.pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let mut content = [0; PAGE_SIZE];
            let mut page = 0;
            let lost = loop {
                page = (page + 997) % PAGES;
                let one = PageRange::one(Page::new(page));
                match ram.read(one, &mut content) {
                    Ok(()) => assert_eq!(
                        u64::from_le_bytes(content[..8].try_into().unwrap()),
                        page ^ 1 << 50
                    ),
                    Err(error) => break error,
                }
                match ram.next_data(range(page, PAGES)) {
                    Ok(run) => assert_eq!(run.map(PageRange::start), Some(Page::new(page))),
                    Err(error) => break error,
                }
            };
            assert!(MemoryLost::is_in(&lost), "{lost}");
            assert_eq!(ram.lost_blocks(), ["ram"]);
        }
    }
}
