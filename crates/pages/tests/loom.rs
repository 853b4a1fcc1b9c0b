//! Loom models: loom explores every interleaving and every outcome that the memory model
//! permits.
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

/// A bitmap of two words in which the pages of `range` are set.
fn set_pages(range: PageRange) -> Arc<PageBitmap> {
    let bitmap = PageBitmap::empty(128);
    bitmap.set_range(range);
    Arc::new(bitmap)
}

#[test]
fn a_page_has_exactly_one_winner() {
    loom::model(|| {
        let bitmap = set_pages(range(5, 6));
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
fn three_claims_on_one_word_are_independent() {
    loom::model(|| {
        let bitmap = set_pages(range(5, 7));
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
fn a_run_across_two_words_vs_a_claim_in_the_second() {
    loom::model(|| {
        let bitmap = set_pages(range(62, 66));
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
fn a_run_never_clears_a_page_it_does_not_return() {
    // Page 7 is requested while a run of at most two pages before it is claimed, in the same word.
    // The run ends at page 6 at the latest, so the urgent claim must always win.
    loom::model(|| {
        let bitmap = set_pages(range(5, 9));
        let background = {
            let bitmap = Arc::clone(&bitmap);
            thread::spawn(move || bitmap.claim_run(range(0, 128), 2))
        };
        assert!(bitmap.claim(Page::new(7)), "another thread has won page 7");
        assert_eq!(background.join().unwrap(), Some(range(5, 7)));
        assert_eq!(bitmap.count(), 1);
    });
}

#[test]
fn two_runs_on_the_same_words_win_different_pages() {
    loom::model(|| {
        let bitmap = set_pages(range(62, 66));
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

/// A thread writes a page's content before it sets the bit, and another thread changes another bit
/// of the same word in between. A thread that wins the page with `win` must see the content.
fn sees_the_content(win: fn(&PageBitmap) -> bool) {
    loom::model(move || {
        let bitmap = set_pages(range(3, 4));
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
            assert_eq!(
                content.load(Ordering::Relaxed),
                42,
                "the winner sees stale content"
            );
        }
        setter.join().unwrap();
        bystander.join().unwrap();
    });
}

#[test]
fn claim_sees_the_content() {
    sees_the_content(|bitmap| bitmap.claim(Page::new(5)));
}

#[test]
fn claim_run_sees_the_content() {
    sees_the_content(|bitmap| bitmap.claim_run(range(4, 128), 8).is_some());
}

#[test]
fn claim_run_sees_the_content_in_its_second_word() {
    loom::model(|| {
        let bitmap = set_pages(range(63, 64));
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
            assert_eq!(
                content.load(Ordering::Relaxed),
                42,
                "the winner sees stale content"
            );
        }
        setter.join().unwrap();
    });
}

#[test]
fn clear_range_sees_the_content() {
    sees_the_content(|bitmap| bitmap.clear_range(range(4, 128)) != 0);
}

#[test]
fn get_sees_the_content() {
    sees_the_content(|bitmap| bitmap.get(Page::new(5)));
}

#[test]
fn runs_sees_the_content() {
    sees_the_content(|bitmap| bitmap.runs(range(4, 128)).next().is_some());
}

#[test]
fn set_of_a_set_page_publishes_the_content() {
    // The page is written and set again while it is being claimed. If the second `set` finds it
    // set, the one winner sees the second content; if it finds it clear, the page can be claimed
    // again.
    loom::model(|| {
        let bitmap = set_pages(range(5, 6));
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
        assert!(seen == 2 || was_clear, "the second content is lost");
        assert_eq!(bitmap.get(Page::new(5)), was_clear);
    });
}

#[test]
fn set_sees_what_the_last_winner_did() {
    for win in [
        |bitmap: &PageBitmap| bitmap.claim(Page::new(5)),
        |bitmap: &PageBitmap| bitmap.claim_run(range(0, 128), 1).is_some(),
    ] {
        loom::model(move || {
            let bitmap = set_pages(range(5, 6));
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
