//! Model tests: loom runs each of these through every interleaving and every
//! outcome that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p hikkoshi-pages --release --test loom
//! ```

#![cfg(loom)]

use hikkoshi_pages::{Page, PageBitmap, PageRange};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(Page::new(start), Page::new(end))
}

/// A bitmap of two words, all of `range` set.
fn owed(range: PageRange) -> Arc<PageBitmap> {
    let bitmap = PageBitmap::empty(128);
    bitmap.set_range(range);
    Arc::new(bitmap)
}

#[test]
fn a_page_has_exactly_one_winner() {
    loom::model(|| {
        let bitmap = owed(range(5, 6));
        let other = {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || bitmap.claim(Page::new(5)))
        };
        let here = bitmap.claim(Page::new(5));
        let there = other.join().unwrap();
        assert!(here ^ there, "won here: {here}, won there: {there}");
        assert_eq!(bitmap.count(), 0);
    });
}

#[test]
fn three_claims_on_one_word_do_not_disturb_each_other() {
    loom::model(|| {
        let bitmap = owed(range(5, 7));
        let claim = |page| {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || u64::from(bitmap.claim(Page::new(page))))
        };
        let (one, two) = (claim(5), claim(6));
        let here = u64::from(bitmap.claim(Page::new(5)));
        assert_eq!(here + one.join().unwrap() + two.join().unwrap(), 2);
        assert_eq!(bitmap.count(), 0);
    });
}

#[test]
fn a_run_across_two_words_and_a_claim_in_the_second_share_the_pages() {
    loom::model(|| {
        let bitmap = owed(range(62, 66));
        let urgent = {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || bitmap.claim(Page::new(64)))
        };
        let run = bitmap.claim_run(range(0, 128), 256).unwrap();
        let urgent = urgent.join().unwrap();
        assert_eq!(run.start(), Page::new(62));
        assert!(
            run.contains(Page::new(64)) ^ urgent,
            "page 64: run {run:?}, urgent {urgent}"
        );
        let won = run.len() + u64::from(urgent);
        assert_eq!(won + bitmap.count(), 4, "run {run:?}, urgent {urgent}");
    });
}

#[test]
fn a_run_never_hides_a_page_from_a_claim() {
    // Page 7 is asked for while a run of at most two pages is claimed in front
    // of it, in the same word: the run ends at page 6 at the latest, so the
    // urgent claim must win, always.
    loom::model(|| {
        let bitmap = owed(range(5, 9));
        let background = {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || bitmap.claim_run(range(0, 128), 2))
        };
        assert!(bitmap.claim(Page::new(7)), "nobody else may have won it");
        assert_eq!(background.join().unwrap(), Some(range(5, 7)));
        assert_eq!(bitmap.count(), 1);
    });
}

#[test]
fn two_runs_over_the_same_words_win_different_pages() {
    loom::model(|| {
        let bitmap = owed(range(62, 66));
        let claim = |bitmap: &PageBitmap| bitmap.claim_run(range(0, 128), 3);
        let other = {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || claim(&bitmap))
        };
        let here = claim(&bitmap);
        let there = other.join().unwrap();
        let won: Vec<_> = here
            .iter()
            .chain(&there)
            .flat_map(|run| run.iter())
            .collect();
        let mut once = won.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), won.len(), "won twice: {here:?} and {there:?}");
        assert_eq!(won.len() as u64 + bitmap.count(), 4);
        for page in won {
            assert!(!bitmap.get(page));
        }
    });
}

/// A page's content, written before its bit is set, and a bystander that
/// changes another bit of the same word in between: whoever wins the page by
/// `win` must see the content.
fn publishes(win: fn(&PageBitmap) -> bool) {
    loom::model(move || {
        let bitmap = owed(range(3, 4));
        let content = Arc::new(AtomicU64::new(0));
        let setter = {
            let (bitmap, content) = (Arc::clone(&bitmap), Arc::clone(&content));
            thread::spawn(move || {
                content.store(42, Ordering::Relaxed);
                assert!(bitmap.set(Page::new(5)));
            })
        };
        let bystander = {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || assert!(bitmap.claim(Page::new(3))))
        };
        if win(&bitmap) {
            assert_eq!(content.load(Ordering::Relaxed), 42, "won a stale page");
        }
        setter.join().unwrap();
        bystander.join().unwrap();
    });
}

#[test]
fn the_winner_of_a_claim_sees_the_page() {
    publishes(|bitmap| bitmap.claim(Page::new(5)));
}

#[test]
fn the_winner_of_a_run_sees_the_page() {
    publishes(|bitmap| bitmap.claim_run(range(4, 128), 8).is_some());
}

#[test]
fn the_winner_of_a_run_sees_the_pages_of_its_second_word() {
    loom::model(|| {
        let bitmap = owed(range(63, 64));
        let content = Arc::new(AtomicU64::new(0));
        let setter = {
            let (bitmap, content) = (Arc::clone(&bitmap), Arc::clone(&content));
            thread::spawn(move || {
                content.store(42, Ordering::Relaxed);
                bitmap.set(Page::new(64));
            })
        };
        let run = bitmap.claim_run(range(0, 128), 8).unwrap();
        if run.contains(Page::new(64)) {
            assert_eq!(content.load(Ordering::Relaxed), 42, "won a stale page");
        }
        setter.join().unwrap();
    });
}

#[test]
fn the_winner_of_a_word_sees_the_page() {
    publishes(|bitmap| bitmap.take_word(0, 1 << 5) != 0);
}

#[test]
fn who_clears_a_range_sees_the_page() {
    publishes(|bitmap| bitmap.clear_range(range(4, 128)) != 0);
}

#[test]
fn who_finds_a_page_set_sees_it() {
    publishes(|bitmap| bitmap.get(Page::new(5)));
}

#[test]
fn who_finds_a_run_sees_its_pages() {
    publishes(|bitmap| bitmap.runs(range(4, 128)).next().is_some());
}

#[test]
fn setting_a_page_that_is_set_already_publishes_as_well() {
    // The page is written again and set again while it is being claimed. If
    // the second `set` found it still set, the one winner sees the second
    // content; if it found it clear, it is there to be claimed once more.
    loom::model(|| {
        let bitmap = owed(range(5, 6));
        let content = Arc::new(AtomicU64::new(1));
        let setter = {
            let (bitmap, content) = (Arc::clone(&bitmap), Arc::clone(&content));
            thread::spawn(move || {
                content.store(2, Ordering::Relaxed);
                bitmap.set(Page::new(5))
            })
        };
        assert!(bitmap.claim(Page::new(5)));
        let seen = content.load(Ordering::Relaxed);
        let was_clear = setter.join().unwrap();
        assert!(seen == 2 || was_clear, "the second content would be lost");
        assert_eq!(bitmap.get(Page::new(5)), was_clear);
    });
}

#[test]
fn who_sets_a_page_again_sees_what_its_winner_did() {
    for win in [
        |bitmap: &PageBitmap| bitmap.claim(Page::new(5)),
        |bitmap: &PageBitmap| bitmap.claim_run(range(0, 128), 1).is_some(),
    ] {
        loom::model(move || {
            let bitmap = owed(range(5, 6));
            let done = Arc::new(AtomicU64::new(0));
            let winner = {
                let (bitmap, done) = (Arc::clone(&bitmap), Arc::clone(&done));
                thread::spawn(move || {
                    done.store(1, Ordering::Relaxed);
                    assert!(win(&bitmap));
                })
            };
            if bitmap.set(Page::new(5)) {
                assert_eq!(done.load(Ordering::Relaxed), 1);
            }
            winner.join().unwrap();
        });
    }
}
