use super::*;
use hikkoshi_linux::HostRange;
use hikkoshi_pages::{PAGE_SIZE, Page, RamBlock, RamLayout};
use hikkoshi_userfault::{EventBuffer, Features, RegisterMode};

use hikkoshi_memory::RamFile;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

const PAGES: u64 = 16;

/// These blocks, one after another in `file`.
pub(crate) fn in_file(file: &File, blocks: Vec<RamBlock>) -> Arc<GuestRam> {
    let layout = RamLayout::new(blocks).unwrap();
    let mut offset = 0;
    let files = layout.blocks().map(|(block, _)| {
        let at = offset;
        offset += block.bytes;
        RamFile::new(file.try_clone().unwrap(), at)
    });
    let files = files.collect();
    Arc::new(GuestRam::new(layout, files).unwrap())
}

/// 16 pages, mapped and registered; pages 4 to 11 are owed.
pub(crate) fn installer() -> (Installer, MmapRegion) {
    let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(PAGES * PAGE_BYTES).unwrap();
    let bytes = usize::try_from(PAGES * PAGE_BYTES).unwrap();
    let block = RamBlock::new("ram", PAGES * PAGE_BYTES, PAGE_BYTES);
    let ram = in_file(&file, vec![block]);
    let map = MmapRegion::from_file(FileOffset::new(file, 0), bytes).unwrap();
    let userfault = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let hosts = [map.as_ptr() as u64];
    let installer = Installer::new(Arc::new(userfault), ram, &hosts, 1, Arc::default()).unwrap();
    installer.missing.add(range(4, 12));
    installer.copier.register().unwrap();
    (installer, map)
}

/// The next huge page that may be requested.
fn next_admitted(installer: &Installer) -> Option<(PageRange, u64)> {
    let layout = installer.copier.layout();
    installer.requests.next_admitted(layout, &installer.missing)
}

pub(crate) fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

fn addr(map: &MmapRegion, page: u64) -> HostAddr {
    HostAddr(map.as_ptr() as u64 + page * PAGE_BYTES + 100)
}

#[test]
fn a_page_is_asked_for_once() {
    let (installer, map) = installer();
    let ask = |page| installer.decide(addr(&map, page), 0);
    assert_eq!(ask(5), FaultAction::Request(range(5, 6)));
    assert_eq!(ask(5), FaultAction::Nothing, "asked for already");
    assert_eq!(
        ask(2),
        FaultAction::Fill(range(2, 3)),
        "the source does not owe it"
    );
    installer.copier.fill(range(2, 3)).unwrap();
    let byte: u8 = map.as_volatile_slice().read_obj(2 * PAGE_SIZE).unwrap();
    assert_eq!(byte, 0);
    let nowhere = HostAddr(map.as_ptr() as u64 + PAGES * PAGE_BYTES);
    assert_eq!(installer.decide(nowhere, 0), FaultAction::Nothing);
    assert_eq!(installer.missing.count(), 8);

    let (read, sent) = (installer.requests.now(), installer.requests.now());
    installer
        .requests
        .sent(range(5, 6), read, sent, &installer.missing);
    let install = |range, content: &[u8]| {
        installer
            .install(range, content, installer.requests.now())
            .unwrap()
    };
    assert!(!install(range(5, 6), &[7; PAGE_SIZE]));
    assert!(!install(range(5, 6), &[8; PAGE_SIZE]), "again");
    assert_eq!(ask(5), FaultAction::Fill(range(5, 6)), "it is there");
    installer.copier.fill(range(5, 6)).unwrap();
    assert_eq!(installer.latencies.total().count, 1);
    let byte: u8 = map.as_volatile_slice().read_obj(5 * PAGE_SIZE + 9).unwrap();
    assert_eq!(byte, 7);
    installer.copier.unregister().unwrap();
}

#[test]
fn the_last_page_is_told_once_and_a_second_copy_is_left_alone() {
    let (installer, map) = installer();
    let install = |range, content: &[u8]| {
        installer
            .install(range, content, installer.requests.now())
            .unwrap()
    };
    let zeros = installer.install_zeros(range(4, 8), installer.requests.now());
    assert!(!zeros.unwrap());
    assert!(!install(range(4, 5), &[9; PAGE_SIZE]));
    let byte: u8 = map.as_volatile_slice().read_obj(4 * PAGE_SIZE).unwrap();
    assert_eq!(byte, 0, "the first content stays");
    assert_eq!(installer.missing.count(), 4);
    let content = vec![3; 4 * PAGE_SIZE];
    assert!(install(range(8, 12), &content), "the last");
    assert!(!install(range(8, 12), &content), "again");
    assert_eq!(installer.missing.count(), 0);
    assert_eq!(installer.latencies.total().count, 0, "it was not requested");
    installer.copier.unregister().unwrap();
    installer.copier.unregister().unwrap();
}

/// The wait of a huge page for its turn is a part of its latency.
#[test]
fn a_turn_brings_the_time_of_its_fault() {
    const HUGE: u64 = 2 << 20;
    let block = RamBlock::new("ram", 40 * HUGE, HUGE);
    let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    let ram = in_file(&file, vec![block]);
    let userfault = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    // Nothing is installed here, so that nothing needs to be there.
    let base = 1 << 40;
    let installer = Installer::new(Arc::new(userfault), ram, &[base], 1, Arc::default()).unwrap();
    installer.missing.add(range(0, 40 * 512));
    let huge = |number: u64| range(number * 512, (number + 1) * 512);
    for number in 0..34 {
        let wanted = installer.decide(HostAddr(base + number * HUGE + 5000), 100 + number);
        if number < 32 {
            assert_eq!(wanted, FaultAction::Request(huge(number)));
        } else {
            assert_eq!(wanted, FaultAction::Nothing, "it waits");
        }
    }
    assert_eq!(next_admitted(&installer), None);
    installer
        .requests
        .huge()
        .sizes()
        .next()
        .unwrap()
        .admission
        .end(Page::new(0));
    assert_eq!(next_admitted(&installer), Some((huge(32), 132)));
    assert_eq!(next_admitted(&installer), None);
}

/// The content of a page that another process has filled is kept. It is an error if
/// that is not what was to come.
#[test]
fn an_owed_page_that_is_there_already_must_hold_what_is_to_come() {
    let (installer, map) = installer();
    let install = |range, content: &[u8]| {
        let now = installer.requests.now();
        installer.install(range, content, now)
    };
    let file = map.file_offset().unwrap().file();
    file.write_all_at(&[9; PAGE_SIZE], 5 * PAGE_BYTES).unwrap();
    file.write_all_at(&[8; PAGE_SIZE], 10 * PAGE_BYTES).unwrap();
    // The same.
    let content = [[7; PAGE_SIZE], [9; PAGE_SIZE], [7; PAGE_SIZE]].concat();
    assert!(!install(range(4, 7), &content).unwrap());
    assert_eq!(
        (installer.filled_before(), installer.missing.count()),
        (1, 5)
    );
    // A page that arrives twice does not count, whatever was written since.
    file.write_all_at(&[6; PAGE_SIZE], 4 * PAGE_BYTES).unwrap();
    assert!(!install(range(4, 8), &[7; 4 * PAGE_SIZE]).unwrap());
    assert_eq!(
        (installer.filled_before(), installer.missing.count()),
        (1, 4)
    );
    // Something was written since to what is zeros anyway.
    file.write_all_at(&[5; PAGE_SIZE], 8 * PAGE_BYTES).unwrap();
    assert!(!install(range(8, 9), &[0; PAGE_SIZE]).unwrap());
    assert_eq!(
        (installer.filled_before(), installer.missing.count()),
        (2, 3)
    );
    // Something else.
    let error = install(range(9, 12), &[7; 3 * PAGE_SIZE]).unwrap_err();
    let is_it =
        matches!(&error, InstallError::Filled { range: filled } if *filled == range(10, 11));
    assert!(is_it, "{error}");
    assert_eq!(installer.missing.count(), 3, "it is not taken for received");
    let byte = |page: usize| -> u8 { map.as_volatile_slice().read_obj(page * PAGE_SIZE).unwrap() };
    assert_eq!([4, 5, 6, 7, 10].map(byte), [6, 9, 7, 7, 8]);
    installer.copier.unregister().unwrap();
}

/// A thread that waits for a page which another process fills meanwhile does not continue
/// with that.
#[test]
fn who_waits_does_not_get_what_is_not_to_be_there() {
    let (installer, map) = installer();
    let file = map.file_offset().unwrap().file();
    std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| -> u8 { map.as_volatile_slice().read_obj(5 * PAGE_SIZE).unwrap() });
        let mut buffer = EventBuffer::with_capacity(1);
        while installer.copier.userfault().read(&mut buffer).unwrap() == 0 {
            std::thread::yield_now();
        }
        file.write_all_at(&[9; PAGE_SIZE], 5 * PAGE_BYTES).unwrap();
        let install =
            |range, content: &[u8]| installer.install(range, content, installer.requests.now());
        install(range(5, 6), &[7; PAGE_SIZE]).unwrap_err();
        assert!(!reader.is_finished());
        install(range(6, 7), &[7; PAGE_SIZE]).unwrap();
        assert!(!reader.is_finished());
        // The end of it: the move has failed.
        installer.copier.unregister().unwrap();
        assert_eq!(reader.join().unwrap(), 9);
    });
}

#[test]
fn a_block_that_cannot_be_let_go_keeps_no_other() {
    let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(PAGE_BYTES).unwrap();
    let offset = FileOffset::new(file.try_clone().unwrap(), 0);
    let map: MmapRegion = MmapRegion::from_file(offset, PAGE_SIZE).unwrap();
    let block = |id: &str| RamBlock::new(id, PAGE_BYTES, PAGE_BYTES);
    let ram = in_file(&file, vec![block("bad"), block("good")]);
    let create = || Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let good = HostRange::new(HostAddr(map.as_ptr() as u64), PAGE_BYTES);
    let unaligned = good.addr.0 + 1;
    let installer = Installer::new(
        Arc::new(create()),
        ram,
        &[unaligned, good.addr.0],
        1,
        Arc::default(),
    )
    .unwrap();
    installer
        .copier
        .userfault()
        .register(good, RegisterMode::MISSING)
        .unwrap();
    let other = create();
    assert!(
        other.register(good, RegisterMode::MISSING).is_err(),
        "taken"
    );
    installer.copier.unregister().unwrap_err();
    other.register(good, RegisterMode::MISSING).unwrap();
    other.unregister(good).unwrap();
}
