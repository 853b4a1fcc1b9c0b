//! Contract tests for [`DirtyLog`]: the guarantees that every implementation must give. An
//! implementation provides a [`Guest`] whose memory its log tracks, and calls [`check`], which
//! panics if a guarantee is violated.
//!
//! ```text
//! contract_tests::check(&guest, &log);   // the log has just been started
//! ```

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use hikkoshi_pages::{PAGE_BYTES, Page, PageRange, RamLayout};

use crate::log::{DirtyError, DirtyLog};

/// A guest whose memory is tracked. Most of the memory must never have been accessed.
pub trait Guest: Debug {
    /// Returns the layout of its memory.
    fn layout(&self) -> &RamLayout;
    /// Makes the guest write a value to a page, and waits until it has. A page that was never
    /// written reads as zero.
    fn write(&self, page: Page, value: u64);
    /// Makes the guest read a page, and waits until it has.
    fn touch(&self, page: Page);
    /// Starts threads in the guest that write changing values to pages everywhere.
    fn start_writing(&self);
    /// Stops these threads and waits until they have stopped.
    fn stop_writing(&self);
    /// Whether [`pin`](Self::pin) works. The kernel does not let a page of a file on a disk stay
    /// pinned (`FOLL_LONGTERM`): the file system could not know when it is written.
    fn can_pin(&self) -> bool {
        true
    }
    /// Makes a device of the guest pin a page for a later write, as a direct disk read does when it
    /// is submitted, and waits until it has.
    fn pin(&self, page: Page);
    /// Makes the device write a value to the pinned page and unpin it, and waits until it has.
    fn land(&self, value: u64);
    /// Makes the guest return pages to the host, as a balloon does, and waits until it has: they
    /// read as zero afterwards. `range` consists of whole host pages of one block.
    fn drop_pages(&self, range: PageRange);
    /// Returns the value in a page, read as a migration reads it: not through the guest.
    fn read(&self, page: Page) -> u64;
}

/// Checks all guarantees. Call it right after the log was started; it stops the log.
///
/// # Panics
///
/// Panics if a guarantee is violated.
pub fn check(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let first = take(log, all);
    if log.starts_clean() {
        assert_eq!(first, [], "the log does not start clean");
    }
    assert_eq!(take(log, all), [], "the log is not clean after a take");
    reads_are_not_reported(guest, log);
    written_pages_are_reported_exactly_once(guest, log);
    peek_and_count_clear_nothing(guest, log);
    take_clears_only_its_range(guest, log);
    runs_are_maximal_ascending_and_clipped(guest, log);
    takes_in_parts_report_the_same_pages(guest, log);
    memory_first_accessed_during_tracking_is_reported(guest, log);
    dropped_pages_stay_dirty(guest, log);
    if guest.can_pin() {
        a_pinned_page_is_reported_before_its_data_lands(guest, log);
    }
    ranges_beyond_the_layout_are_clipped(guest, log);
    no_write_is_missed(guest, log);
    a_stopped_log_returns_errors(guest, log);
}

/// Takes a range and checks that the reported runs are well-formed.
fn take(log: &dyn DirtyLog, range: PageRange) -> Vec<PageRange> {
    well_formed(range, |dirty| log.take(range, dirty))
}

/// Peeks at a range, which leaves its pages dirty, and checks that the runs are well-formed.
fn peek(log: &dyn DirtyLog, range: PageRange) -> Vec<PageRange> {
    well_formed(range, |dirty| log.peek(range, dirty))
}

fn well_formed(
    range: PageRange,
    read: impl FnOnce(&mut dyn FnMut(PageRange)) -> Result<(), DirtyError>,
) -> Vec<PageRange> {
    let mut runs: Vec<PageRange> = Vec::new();
    let result = read(&mut |run| {
        assert!(!run.is_empty(), "an empty run was reported");
        assert!(range.contains_range(run), "{run:?} is outside {range:?}");
        if let Some(last) = runs.last() {
            assert!(
                last.end() < run.start(),
                "{last:?} and {run:?}: not maximal, or not ascending"
            );
        }
        runs.push(run);
    });
    assert!(result.is_ok(), "reading {range:?}: {result:?}");
    runs
}

fn count(log: &dyn DirtyLog, range: PageRange) -> u64 {
    let result = log.count(range);
    assert!(result.is_ok(), "counting {range:?}: {result:?}");
    result.unwrap_or(0)
}

/// Returns the pages that writes to `pages` make dirty, as runs.
fn granules(guest: &dyn Guest, pages: &[u64], within: PageRange) -> Vec<PageRange> {
    let mut runs: Vec<PageRange> = Vec::new();
    let mut pages: Vec<Page> = pages
        .iter()
        .flat_map(|page| guest.layout().host_page_range(Page::new(*page)).iter())
        .filter(|page| within.contains(*page))
        .collect();
    pages.sort_unstable();
    pages.dedup();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end() == page => {
                *run = PageRange::new(run.start(), page.saturating_add(1));
            }
            _ => runs.push(PageRange::one(page)),
        }
    }
    runs
}

/// Returns pages at important edges: of the whole layout, of blocks, of 2 MiB areas, and a few
/// runs.
fn places(guest: &dyn Guest) -> Vec<u64> {
    let pages = guest.layout().pages();
    let mut places = vec![0, 1, 5, 6, 7, 63, 64, 511, 512, 513, 1023, 1024, pages - 1];
    for (_, range) in guest.layout().blocks() {
        places.extend([range.start().index(), range.end().index() - 1]);
    }
    places.retain(|page| *page < pages);
    places.sort_unstable();
    places.dedup();
    places
}

fn write_all(guest: &dyn Guest, pages: &[u64]) {
    for page in pages {
        guest.write(Page::new(*page), page + 1);
    }
}

fn reads_are_not_reported(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let places = places(guest);
    write_all(guest, &places);
    take(log, all);
    for page in places {
        guest.touch(Page::new(page));
    }
    assert_eq!(take(log, all), [], "reads were reported");
}

fn written_pages_are_reported_exactly_once(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let places = places(guest);
    for round in 0..3 {
        write_all(guest, &places);
        assert_eq!(
            take(log, all),
            granules(guest, &places, all),
            "round {round}: not the pages that were written"
        );
        assert_eq!(
            take(log, all),
            [],
            "round {round}: pages were reported twice"
        );
    }
}

fn peek_and_count_clear_nothing(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let mut places = places(guest);
    let added = places.split_off(places.len() / 2);
    let pages = |runs: &[PageRange]| runs.iter().map(|run| run.len()).sum::<u64>();
    let part = PageRange::new(Page::new(3), Page::new(700)).intersect(all);
    write_all(guest, &places);
    let expected = granules(guest, &places, all);
    for _ in 0..2 {
        assert_eq!(peek(log, all), expected, "wrong pages");
        assert_eq!(
            peek(log, part),
            granules(guest, &places, part),
            "of a range"
        );
        assert_eq!(count(log, all), pages(&expected), "wrong count");
    }
    // Pages that are written after a peek are reported beside the others, and all by a take.
    places.extend(added);
    write_all(guest, &places);
    let expected = granules(guest, &places, all);
    let in_part = granules(guest, &places, part);
    assert_eq!(peek(log, all), expected, "after more writes");
    assert_eq!(count(log, part), pages(&in_part), "wrong count of a range");
    assert_eq!(take(log, part), in_part, "a take after a peek");
    assert_eq!(peek(log, part), [], "after a take");
    let rest = pages(&expected) - pages(&in_part);
    assert_eq!(pages(&peek(log, all)), rest, "after a partial take");
    assert_eq!(count(log, all), rest, "wrong count after a partial take");
    take(log, all);
    assert_eq!(peek(log, all), [], "a clean log");
    assert_eq!(count(log, all), 0, "the count of a clean log is not zero");
    // A write is noticed whether or not its page was peeked at before.
    write_all(guest, &places);
    assert_eq!(take(log, all), expected, "writes after peeks");
}

fn take_clears_only_its_range(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let places = places(guest);
    write_all(guest, &places);
    let (low, high) = all.split_at(Page::new(512));
    let first = take(log, high);
    assert_eq!(first, granules(guest, &places, high));
    assert_eq!(
        take(log, low),
        granules(guest, &places, low),
        "cleared by a take of another range"
    );
    assert_eq!(take(log, all), []);
}

fn runs_are_maximal_ascending_and_clipped(guest: &dyn Guest, log: &dyn DirtyLog) {
    // A long run across all edges, and a part from its middle.
    let written: Vec<u64> = (400..guest.layout().pages().min(1400)).collect();
    let all = guest.layout().all();
    write_all(guest, &written);
    let part = PageRange::new(Page::new(450), Page::new(1100)).intersect(all);
    assert_eq!(take(log, part), granules(guest, &written, part));
    let mut rest = take(log, all);
    rest.extend(take(log, part));
    let mut expected = granules(guest, &written, PageRange::new(Page::new(0), part.start()));
    expected.extend(granules(
        guest,
        &written,
        PageRange::new(part.end(), all.end()),
    ));
    assert_eq!(rest, expected, "wrong rest of a run after a partial take");
}

fn takes_in_parts_report_the_same_pages(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let places = places(guest);
    for step in [1, 7, 100, 513] {
        write_all(guest, &places);
        let mut pages: Vec<Page> = Vec::new();
        for part in all.chunks(step) {
            pages.extend(take(log, part).into_iter().flat_map(PageRange::iter));
        }
        let expected: Vec<Page> = granules(guest, &places, all)
            .into_iter()
            .flat_map(PageRange::iter)
            .collect();
        assert_eq!(pages, expected, "in parts of {step} pages");
    }
}

fn memory_first_accessed_during_tracking_is_reported(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    // Pages that are not near any of the above; in a long block, some of them have no page table.
    let near: Vec<u64> = places(guest).into_iter().chain(400..1400).collect();
    let fresh: Vec<u64> = (0..all.end().index())
        .step_by(97)
        .filter(|page| near.iter().all(|other| page.abs_diff(*other) > 4))
        .collect();
    assert!(fresh.len() > 4, "the guest is too small for this test");
    write_all(guest, &fresh);
    assert_eq!(take(log, all), granules(guest, &fresh, all));
}

/// A guest clears pages, returns them to the host, and relies on the zeros. Whole blocks, so that
/// page tables are freed with them; and parts of blocks.
fn dropped_pages_stay_dirty(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let blocks: Vec<PageRange> = guest.layout().blocks().map(|(_, pages)| pages).collect();
    let parts = blocks.iter().map(|block| {
        let end = block.end().index().min(block.start().index() + 1000);
        let part = PageRange::new(block.start().saturating_add(7), Page::new(end));
        guest.layout().round_out(part).intersect(*block)
    });
    for dropped in blocks.iter().copied().chain(parts) {
        let pages: Vec<u64> = dropped.iter().map(Page::index).collect();
        write_all(guest, &pages);
        // The migration copies them.
        take(log, all);
        for page in dropped {
            guest.write(page, 0);
        }
        guest.drop_pages(dropped);
        assert_eq!(peek(log, all), [dropped], "dropped pages are dirty");
        // In two parts: what is taken with one of them is still there for the other.
        let (low, high) = all.split_at(Page::new(dropped.start().index() + dropped.len() / 2));
        let mut taken = take(log, low);
        taken.extend(take(log, high));
        let reported: Vec<Page> = taken.into_iter().flat_map(PageRange::iter).collect();
        assert_eq!(reported, dropped.iter().collect::<Vec<_>>(), "{dropped:?}");
        assert_eq!(take(log, all), [], "{dropped:?} was taken");
        for page in dropped {
            assert_eq!(guest.read(page), 0, "{page:?} was dropped");
        }
        // What is used again is reported again.
        let used = [dropped.start().index(), dropped.end().index() - 1];
        write_all(guest, &used);
        assert_eq!(take(log, all), granules(guest, &used, all), "{dropped:?}");
        // Only one page of what is dropped is dirty.
        guest.write(dropped.start(), 0);
        guest.drop_pages(dropped);
        let reported = take(log, all);
        assert!(
            reported.iter().any(|run| run.contains(dropped.start())),
            "{:?} of {dropped:?} was dirty, reported: {reported:?}",
            dropped.start()
        );
        assert_eq!(take(log, all), [], "{dropped:?} was taken again");
    }
}

/// The log need not report that the data has landed: see [`DirtyLog`]. So it must report a page
/// when it is pinned, and it must be enough to copy the page after a take and a drain.
fn a_pinned_page_is_reported_before_its_data_lands(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    for (number, page) in (1..).zip(places(guest)) {
        guest.pin(Page::new(page));
        assert_eq!(
            take(log, all),
            granules(guest, &[page], all),
            "page {page} was pinned by a device: not reported"
        );
        // The drain, and the copy.
        guest.land(number);
        assert_eq!(guest.read(Page::new(page)), number, "page {page}");
        take(log, all);
        // Another request.
        guest.pin(Page::new(page));
        assert_eq!(
            take(log, all),
            granules(guest, &[page], all),
            "page {page} was pinned again: not reported"
        );
        guest.land(number + 1);
        take(log, all);
    }
}

fn ranges_beyond_the_layout_are_clipped(guest: &dyn Guest, log: &dyn DirtyLog) {
    let end = guest.layout().all().end();
    guest.write(Page::new(end.index() - 1), 1);
    let beyond = PageRange::new(end, end.saturating_add(1000));
    assert_eq!(take(log, beyond), []);
    assert_eq!(take(log, PageRange::EMPTY), []);
    let over = PageRange::new(Page::new(end.index() - 1), end.saturating_add(1000));
    assert_eq!(peek(log, beyond), []);
    assert_eq!(peek(log, over).len(), 1);
    assert_eq!(count(log, over), 1);
    assert_eq!(take(log, over).len(), 1);
    take(log, guest.layout().all());
}

/// The main guarantee: a copy that is updated only from the log is equal to the memory in the end.
/// The values change all the time, so that a missed write leaves a difference.
fn no_write_is_missed(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    let mut copy: BTreeMap<Page, u64> = all.iter().map(|page| (page, guest.read(page))).collect();
    take(log, all);
    for page in all {
        copy.insert(page, guest.read(page));
    }
    guest.start_writing();
    let mut reported = 0;
    let mut update = |taken: Vec<PageRange>| {
        let mut pages = 0;
        for page in taken.into_iter().flat_map(PageRange::iter) {
            pages += 1;
            copy.insert(page, guest.read(page));
        }
        pages
    };
    // Until most pages were overwritten several times, however busy the machine is.
    let mut rounds = 0;
    while reported < 8 * all.len() && rounds < 10_000 {
        // Ranges that are not aligned to anything.
        for part in all.chunks(61 + 97 * (rounds % 5)) {
            // What was written before a peek is still there for the take.
            let peeked = (rounds % 3 == 0).then(|| peek(log, part));
            let taken = take(log, part);
            for run in peeked.iter().flatten() {
                let of_run = |taken: &&PageRange| taken.contains_range(*run);
                assert!(
                    taken.iter().any(|taken| of_run(&taken)),
                    "{run:?} was peeked at"
                );
            }
            reported += update(taken);
        }
        rounds += 1;
        // The guest writes meanwhile. Otherwise, on a busy machine, most takes find nothing.
        thread::sleep(Duration::from_millis(1));
    }
    guest.stop_writing();
    // In parts, unlike at a switchover.
    for part in all.chunks(1000) {
        let peeked = peek(log, part);
        assert_eq!(
            peek(log, part),
            peeked,
            "peeks at a guest that does not write"
        );
        let taken = take(log, part);
        assert_eq!(peeked, taken, "a peek at a guest that does not write");
        reported += update(taken);
    }
    assert!(
        reported >= 8 * all.len(),
        "too few writes were reported: {reported}"
    );
    assert_eq!(
        take(log, all),
        [],
        "pages were reported after the writers stopped"
    );
    for page in all {
        let (is, copied) = (guest.read(page), copy.get(&page).copied());
        assert_eq!(
            Some(is),
            copied,
            "NEVER RETRIED: a write to {page:?} was missed"
        );
    }
}

fn a_stopped_log_returns_errors(guest: &dyn Guest, log: &dyn DirtyLog) {
    let all = guest.layout().all();
    for _ in 0..2 {
        let result = log.stop();
        assert!(result.is_ok(), "{result:?}");
    }
    guest.write(Page::new(0), PAGE_BYTES);
    let result = log.take(all, &mut |run| {
        panic!("{run:?} was reported after the stop")
    });
    assert!(matches!(result, Err(DirtyError::Stopped)), "{result:?}");
    let result = log.peek(all, &mut |run| {
        panic!("{run:?} was reported after the stop")
    });
    assert!(matches!(result, Err(DirtyError::Stopped)), "{result:?}");
    let result = log.count(all);
    assert!(matches!(result, Err(DirtyError::Stopped)), "{result:?}");
}
