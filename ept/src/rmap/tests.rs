//! Tests and loom models of the reverse map.

extern crate std;

use alloc::vec::Vec;

use super::*;
use crate::host_memory::FrameAllocator;
use crate::testing::TestMemory;

fn location(number: u64) -> Location {
    Location::new(HostFrame::new(0x1000 + number), 0, number % 2 == 1)
}

fn found(rmap: &Rmap, ram: &TestMemory, gfn: Gfn) -> Vec<u64> {
    let mut found = Vec::new();
    rmap.for_each(ram, Level::Size4K, gfn, &mut |location| {
        found.push(location.table().index() - 0x1000);
    });
    found.sort_unstable();
    found
}

#[cfg(not(loom))]
mod plain {
    use super::*;

    #[test]
    fn chains_hold_all_locations_in_any_order_of_removal() {
        let ram = TestMemory::new(20);
        let gfn = Gfn::new(5);
        // All orders of removing four locations.
        for order in 0..24 {
            let mut rmap = Rmap::new(1000).unwrap();
            let mut left: Vec<u64> = (0..4).collect();
            for number in &left {
                rmap.add(&ram, Level::Size4K, gfn, location(*number))
                    .unwrap();
            }
            let mut choice = order;
            for count in (1..=4).rev() {
                assert_eq!(found(&rmap, &ram, gfn), left);
                let gone = left.remove(choice % count);
                choice /= count;
                assert!(rmap.contains(&ram, Level::Size4K, gfn, location(gone)));
                rmap.remove(&ram, Level::Size4K, gfn, location(gone));
                assert!(!rmap.contains(&ram, Level::Size4K, gfn, location(gone)));
            }
            assert_eq!(found(&rmap, &ram, gfn), [] as [u64; 0]);
            rmap.release(&ram);
            assert_eq!(ram.free_frames(), 20);
        }
    }

    #[test]
    fn freed_cells_are_reused() {
        let ram = TestMemory::new(20);
        let gfn = Gfn::new(5);
        let mut rmap = Rmap::new(1000).unwrap();
        for _ in 0..1000 {
            for number in 0..5 {
                rmap.add(&ram, Level::Size4K, gfn, location(number))
                    .unwrap();
            }
            for number in 0..5 {
                rmap.remove(&ram, Level::Size4K, gfn, location(number));
            }
            let retired = rmap.take_retired();
            assert!(!retired.is_empty());
            rmap.free_cells(&ram, retired);
        }
        assert_eq!(
            rmap.chain_frames(),
            2,
            "a frame of cells and a page of the frame list"
        );
        rmap.release(&ram);
        assert_eq!(ram.free_frames(), 20);
    }

    #[test]
    fn a_failed_allocation_leaves_the_chain_unchanged() {
        let ram = TestMemory::new(2); // one for words, one too few for cells and the frame list
        let gfn = Gfn::new(5);
        let mut rmap = Rmap::new(1000).unwrap();
        rmap.add(&ram, Level::Size4K, gfn, location(1)).unwrap();
        for _ in 0..3 {
            let added = rmap.add(&ram, Level::Size4K, gfn, location(2));
            assert_eq!(added, Err(NoMemory));
            assert_eq!(
                rmap.reserve(&ram, Level::Size4K, Gfn::new(0)).err(),
                Some(NoMemory)
            );
        }
        assert_eq!(found(&rmap, &ram, gfn), [1]);
        assert_eq!(ram.free_frames(), 1);
        rmap.release(&ram);
        let both = (ram.allocate(), ram.allocate());
        assert!(both.0.is_some() && both.1.is_some());
    }
}

#[cfg(loom)]
mod models {
    use std::sync::Arc;

    use super::*;

    /// Chains change at both ends and in the middle while they are read. A reader always sees the
    /// location that stays, and never one that was not added.
    #[test]
    fn change_vs_read() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.max_branches = 100_000;
        builder.check(|| {
            let shared = Arc::new((Rmap::new(2).unwrap(), TestMemory::new(12)));
            let gfn = Gfn::new(0);
            for number in [1, 2, 3] {
                let (rmap, ram) = &*shared;
                rmap.add(ram, Level::Size4K, gfn, location(number)).unwrap();
            }
            let change = |gone: u64, new: Option<u64>| {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (rmap, ram) = &*shared;
                    rmap.remove(ram, Level::Size4K, gfn, location(gone));
                    if let Some(new) = new {
                        rmap.add(ram, Level::Size4K, gfn, location(new)).unwrap();
                    }
                })
            };
            let threads = [change(1, Some(4)), change(3, None)];
            let (rmap, ram) = &*shared;
            let seen = found(rmap, ram, gfn);
            assert!(seen.contains(&2), "{seen:?}");
            assert!(seen.iter().all(|number| (1..=4).contains(number)));
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(found(rmap, ram, gfn), [2, 4]);
            let (mut rmap, ram) = Arc::try_unwrap(shared).ok().unwrap();
            rmap.release(&ram);
            while ram.allocate().is_some() {}
        });
    }
}
