//! Requests for pages that were sent already, that are not owed, or that are large.

use std::sync::{Arc, Mutex};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode};
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{Frame, ToSource};

use crate::machine::Side;

use super::{
    apply, complete, discarded, migrated, read_owed_pages, read_until, receive_urgent, until_switch,
};

#[test]
fn requests_for_pages_not_owed_get_no_answer() {
    // A hole, then everything twice: each page arrives once.
    let pages = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&pages);
    let cancel = CancelFlag::new();
    let enough = cancel.clone();
    let (result, machine, _) = migrated(Mode::Postcopy, &cancel, move |destination| {
        let (_control, _background, mut urgent) = until_switch(destination);
        for (from, len) in [(0, 64), (64, 128), (0, 256), (64, 1)] {
            let range = PageRange::from_len(Page::new(from), len);
            urgent.1.frame(Frame::Request { range }).unwrap();
        }
        let mut buffer = vec![0; 1 << 20];
        while counted.lock().unwrap().len() < 192 {
            let frame = urgent.0.frame().unwrap();
            urgent
                .0
                .payload(&mut buffer[..frame.payload_len()])
                .unwrap();
            let (Frame::Pages { range } | Frame::Zeros { range }) = frame else {
                panic!("{frame:?}")
            };
            counted.lock().unwrap().extend(range);
        }
        enough.cancel();
    });
    assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    let mut pages = pages.lock().unwrap().clone();
    pages.sort();
    // Pages 0 to 63 were never touched, unless the guest has done so since.
    pages.retain(|page| page.index() >= 64);
    assert!(pages.len() <= 192);
    let len = pages.len();
    pages.dedup();
    assert_eq!(pages.len(), len, "a page arrived twice");
    assert_eq!(machine.runs(), Some(Side::Source));
}

/// A large request delays the next one by no more than a piece of 16 pages, and more of them than
/// are answered at once cause no error.
#[test]
fn large_requests_are_interleaved() {
    for (number, pages) in [(1, 192), (3, 192), (100, 17)] {
        let cancel = CancelFlag::new();
        let enough = cancel.clone();
        let (result, _, _) = migrated(Mode::Postcopy, &cancel, move |destination| {
            let (_control, _background, mut urgent) = until_switch(destination);
            // Page 100 is owed, and in none of the large requests. All of them are sent at once.
            let wanted = PageRange::one(Page::new(100));
            let large = |nth| PageRange::from_len(Page::new(128 + nth * pages), pages);
            let requests: Vec<_> = (0..number)
                .map(large)
                .chain([wanted])
                .flat_map(|range| Frame::Request { range }.encode())
                .collect();
            urgent.1.frames(&requests).unwrap();
            let mut buffer = vec![0; 1 << 20];
            let mut before = 0;
            loop {
                let frame = urgent.0.frame().unwrap();
                urgent
                    .0
                    .payload(&mut buffer[..frame.payload_len()])
                    .unwrap();
                match frame {
                    Frame::Pages { range } | Frame::Zeros { range } if range == wanted => break,
                    Frame::Pages { range } | Frame::Zeros { range } => before += range.len(),
                    other => panic!("{other:?}"),
                }
            }
            assert!(before > 0, "the first was requested before");
            assert!(before <= 16 * number, "{before} pages arrived first");
            enough.cancel();
        });
        assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    }
}

/// Small or large, a request that arrives after its pages were sent is counted; one with any page
/// left to send is not.
#[test]
fn requests_for_pages_already_sent_are_counted() {
    let (result, _, _) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
        let (mut control, background, mut urgent) = destination.accept();
        apply(background);
        discarded(&mut control);
        let owed = read_owed_pages(&mut control);
        let mut ask = |from, len, answer| {
            let range = PageRange::from_len(Page::new(from), len);
            urgent.1.frame(Frame::Request { range }).unwrap();
            receive_urgent(&mut urgent, answer);
        };
        // Nothing is pushed before *Commit*.
        ask(64, 100, 100);
        ask(70, 1, 0);
        ask(80, 50, 0);
        ask(0, 2048, owed - 100);
        control.1.control(&ToSource::Ready).unwrap();
        read_until(&mut control, "Commit");
        control.1.control(&ToSource::GuestResumed).unwrap();
        control.1.control(&complete()).unwrap();
        read_until(&mut control, "Goodbye");
    });
    assert_eq!(result.unwrap().requests.requests_under_way, Some(2));
}
