//! The thread that compares the whole arena with what was read into it last, over and over.

use super::arena::Arena;
use super::store::Store;
use super::{Common, Sweeps, rest};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Between two passes: a small arena would otherwise take a whole virtual processor.
const REST: Duration = Duration::from_millis(100);

/// Starts it.
pub(super) fn start(store: &Arc<Store>, arena: &Arc<Arena>, common: Common) -> io::Result<()> {
    let (store, arena) = (Arc::clone(store), Arc::clone(arena));
    std::thread::Builder::new()
        .name("disk-checker".to_owned())
        .spawn(move || run(&store, &arena, &common))
        .map(drop)
}

fn run(store: &Store, arena: &Arena, common: &Common) {
    let (mut sweeps, mut findings) = (Sweeps::default(), Vec::new());
    while !common.is_stopped() {
        for number in 0..arena.len() {
            sweeps.attend(common, &mut findings, |findings| {
                sweep(store, arena, findings)
            });
            // A slot that is being filled is waited for, not skipped.
            arena.slot(number).check("later", &mut findings);
            common.tell(&mut findings);
            if common.is_stopped() {
                return;
            }
        }
        common.counters.passes.fetch_add(1, Relaxed);
        rest(common, REST, &sweeps);
    }
}

/// The whole arena, and whatever was written, read back. Gives the pages that were checked.
fn sweep(store: &Store, arena: &Arena, findings: &mut Vec<String>) -> usize {
    let mut pages = 0;
    for number in 0..arena.len() {
        let mut slot = arena.slot(number);
        slot.check("sweep", findings);
        pages += slot.memory.len();
    }
    // In the order of the other threads: the slot first.
    let mut slot = arena.slot(0);
    for chunk in store.written() {
        chunk.read(&mut slot, findings);
        pages += slot.memory.len();
    }
    pages
}
