//! The software processor itself: misconfigurations and the exit qualification.

use hikkoshi_ept::testing::{Access, Cpu, Exit, TestMemory};
use hikkoshi_ept::{Capabilities, Entry, FrameAccess, FrameAllocator, View};

#[test]
fn the_software_processor_detects_misconfigurations() {
    let ram = TestMemory::new(10);
    let tables: Vec<_> = (0..4).map(|_| ram.allocate().unwrap()).collect();
    let set = |level: usize, bits: u64| {
        ram.table(tables[level])[0].store(bits, std::sync::atomic::Ordering::Relaxed)
    };
    for level in 0..3 {
        set(level, tables[level + 1].address() | 7);
    }
    let eptp = hikkoshi_ept::Eptp::new(tables[0], true);
    let access = |access| Cpu::new(View::MAIN, eptp, Capabilities::ALL).access(&ram, 0, access);
    for (level, bits) in [
        (3, 0x1032),           // write-only
        (3, 0x1036),           // write and execute
        (3, 0x103f & !7 | 7),  // memory type 7
        (3, 1 << 50 | 0x1037), // an address wider than the processor's
        (2, 0x20_1000 | 0xb7), // a 2 MiB leaf that is not aligned
        (0, 0x1087),           // a leaf in the root
        (1, 0x1047),           // reserved bit of a reference
    ] {
        let good = ram.table(tables[level])[0].load(std::sync::atomic::Ordering::Relaxed);
        set(level, bits);
        let refused = Exit::Misconfiguration {
            address: 0,
            entry: Entry(bits),
        };
        assert_eq!(access(Access::Read), Err(refused));
        set(level, good);
    }
    set(3, 0x1031);
    assert_eq!(access(Access::Read), Ok(0x1000));
    let denied = access(Access::Write);
    let Err(Exit::Violation { qualification, .. }) = denied else {
        panic!("{denied:?}")
    };
    // A data write; the page is readable only; a linear address, and its translation.
    assert_eq!(qualification.0, 0x2 | 0x8 | 0x180);
}
