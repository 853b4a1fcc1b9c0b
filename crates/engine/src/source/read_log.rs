//! Reads the whole dirty log at once, by several threads: the guest is paused, or will be soon.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::{iter, thread};

use hikkoshi_dirty::{DirtyError, DirtyLog};
use hikkoshi_pages::{PageRange, RamLayout};

use crate::source::chunks::{self, chunk};
use crate::source::error::SourceFailure;

/// Threads that read the log at the same time, at most. Memory in pages of 4 KiB takes one thread a
/// millisecond a GiB, in the downtime, so a large guest needs many.
const MAX_THREADS: u64 = 32;

/// The fewest pages that are worth a thread, 128 MiB: they are scanned in some 100 µs.
const SMALLEST_PART: u64 = 32768;

/// Takes the log of all of the guest's memory, in the layout with the source's host pages. `dirty`
/// gets each dirty run, on any thread, and adds what it makes of it to a list, by [`join`]. Returns
/// these runs, in ascending order.
pub(crate) fn take_log(
    log: &dyn DirtyLog,
    layout: &RamLayout,
    dirty: impl Fn(PageRange, &mut Vec<PageRange>) + Sync,
) -> Result<Vec<PageRange>, SourceFailure> {
    read_log(layout, |part, found| log.take(part, found), dirty)
}

/// Reads the log as [`take_log`] does, and leaves the pages dirty, which takes less time.
pub(crate) fn peek_log(
    log: &dyn DirtyLog,
    layout: &RamLayout,
    dirty: impl Fn(PageRange, &mut Vec<PageRange>) + Sync,
) -> Result<Vec<PageRange>, SourceFailure> {
    read_log(layout, |part, found| log.peek(part, found), dirty)
}

fn read_log(
    layout: &RamLayout,
    read: impl Fn(PageRange, &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> + Sync,
    dirty: impl Fn(PageRange, &mut Vec<PageRange>) + Sync,
) -> Result<Vec<PageRange>, SourceFailure> {
    let read = |part: PageRange| {
        let mut runs = Vec::new();
        read(part, &mut |run| dirty(run, &mut runs))?;
        Ok(runs)
    };
    let read = &read;
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut parts = parts(layout, (threads as u64).min(MAX_THREADS)).into_iter();
    let Some(first) = parts.next() else {
        return Ok(Vec::new());
    };
    let found: Vec<Vec<PageRange>> = thread::scope(|scope| {
        let start = |part| {
            let thread = thread::Builder::new().name("src-log".to_owned());
            (part, thread.spawn_scoped(scope, move || read(part)))
        };
        let others: Vec<_> = parts.map(start).collect();
        let first = read(first);
        let others = others.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The control group has no more threads: that must not end a switchover.
            Err(_) => read(part),
        });
        iter::once(first)
            .chain(others)
            .collect::<Result<_, SourceFailure>>()
    })?;
    let mut runs = Vec::new();
    for run in found.into_iter().flatten() {
        join(&mut runs, run);
    }
    Ok(runs)
}

/// Appends `run` to `runs`, joined to the last one if they touch.
pub(crate) fn join(runs: &mut Vec<PageRange>, run: PageRange) {
    match runs.last_mut() {
        Some(last) if last.end() >= run.start() => {
            *last = PageRange::new(last.start(), last.end().max(run.end()));
        }
        _ => runs.push(run),
    }
}

/// At most `threads` parts, which cut no host page.
fn parts(layout: &RamLayout, threads: u64) -> Vec<PageRange> {
    let size = layout.all().len().div_ceil(threads).max(SMALLEST_PART);
    (0..chunks::count(layout, size))
        .filter_map(|number| chunk(layout, size, number))
        .filter(|part| !part.is_empty())
        .collect()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock};

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_small_guest_has_fewer_parts() {
        for (blocks, expected) in [
            (&[(PAGE_BYTES, PAGE_BYTES)][..], 1),
            (&[(128 * MIB + PAGE_BYTES, PAGE_BYTES)], 2),
            (&[(4096 * MIB, PAGE_BYTES)], 4),
            (&[(3 * PAGE_BYTES, PAGE_BYTES), (1024 * MIB, 2 * MIB)], 4),
            (&[(2048 * MIB, 1024 * MIB), (PAGE_BYTES, PAGE_BYTES)], 2),
        ] {
            let blocks = blocks.iter().enumerate();
            let blocks = blocks
                .map(|(nth, &(bytes, host_page))| RamBlock::new(nth.to_string(), bytes, host_page));
            let parts = parts(&RamLayout::new(blocks.collect()).unwrap(), 4);
            assert_eq!(parts.len(), expected, "{parts:?}");
        }
    }
}
