//! The thread that repeatedly compares the whole arena with the data read into it.

use super::arena::Arena;
use super::context::{DiskContext, SweepRequests, rest};
use super::store::Store;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pause between two passes: a small arena would otherwise use a whole virtual processor.
const REST: Duration = Duration::from_millis(100);

/// Starts the thread.
pub(super) fn start(
    store: &Arc<Store>,
    arena: &Arc<Arena>,
    context: DiskContext,
) -> io::Result<()> {
    let (store, arena) = (Arc::clone(store), Arc::clone(arena));
    std::thread::Builder::new()
        .name("disk-checker".to_owned())
        .spawn(move || run(&store, &arena, &context))
        .map(drop)
}

fn run(store: &Store, arena: &Arena, context: &DiskContext) {
    let (mut sweeps, mut findings) = (SweepRequests::default(), Vec::new());
    while !context.is_stopped() {
        for number in 0..arena.len() {
            sweeps.answer(context, &mut findings, |findings| {
                sweep(store, arena, findings)
            });
            // Waits for a slot that is being filled, instead of skipping it.
            arena.slot(number).check("later", &mut findings);
            context.report_findings(&mut findings);
            if context.is_stopped() {
                return;
            }
        }
        context.counters.passes.fetch_add(1, Relaxed);
        rest(context, REST, &sweeps);
    }
}

/// Checks the whole arena, and reads back every chunk that was written. Returns the number of
/// checked pages.
fn sweep(store: &Store, arena: &Arena, findings: &mut Vec<String>) -> usize {
    let mut pages = 0;
    for number in 0..arena.len() {
        let mut slot = arena.slot(number);
        slot.check("sweep", findings);
        pages += slot.memory.len();
    }
    // Locks in the same order as the other threads: the slot first.
    let mut slot = arena.slot(0);
    for chunk in store.written() {
        chunk.read(&mut slot, findings);
        pages += slot.memory.len();
    }
    pages
}
