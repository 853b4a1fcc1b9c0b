//! Threads that read and write the disk.

use super::arena::Arena;
use super::context::{Counters, DiskContext};
use super::store::Store;
use crate::options::DiskUse;
use crate::random::Random;
use crate::rate_limiter::RateLimiter;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Starts a thread with one read or write in progress at a time.
pub(super) fn start(
    number: usize,
    usage: DiskUse,
    store: &Arc<Store>,
    arena: &Arc<Arena>,
    context: DiskContext,
) -> io::Result<()> {
    let (store, arena) = (Arc::clone(store), Arc::clone(arena));
    std::thread::Builder::new()
        .name(format!("disk-{number}"))
        .spawn(move || run(number, usage, &store, &arena, &context))
        .map(drop)
}

fn run(number: usize, usage: DiskUse, store: &Store, arena: &Arena, context: &DiskContext) {
    let mut random = Random::new(context.seed.wrapping_mul(1000).wrapping_add(number as u64));
    let rate = match usage.rate {
        0 => 0,
        rate => (rate / usage.threads as u64).max(1),
    };
    let mut limiter = RateLimiter::new(context.clock, rate, 0);
    let mut findings = Vec::new();
    while !context.is_stopped() {
        limiter.wait();
        let mut slot = arena.free_slot(&mut random);
        // Otherwise a stale page would be overwritten without being detected.
        slot.check("before the next", &mut findings);
        let mut chunk = store.free_chunk(&mut random);
        let pages = usage.chunk_pages as u64;
        if random.percent(usage.write_percent) {
            chunk.write(&mut slot, &mut findings);
            count(&context.counters, true, pages);
        } else {
            chunk.read(&mut slot, &mut findings);
            count(&context.counters, false, pages);
        }
        drop((slot, chunk));
        context.report_findings(&mut findings);
    }
}

fn count(counters: &Counters, write: bool, pages: u64) {
    let (times, all) = match write {
        true => (&counters.writes, &counters.written_pages),
        false => (&counters.reads, &counters.read_pages),
    };
    times.fetch_add(1, Relaxed);
    all.fetch_add(pages, Relaxed);
}
