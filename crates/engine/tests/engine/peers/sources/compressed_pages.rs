//! Compressed pages that are damaged, hold too much or too little, or come where none may.

use hikkoshi_handover::Outcome;
use hikkoshi_link::Compressor;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
use hikkoshi_wire::{CompressionMethod, Frame};

use crate::memory::{MIB, SMALL, layout};

use super::{received, refused};

const BROKEN: &str = "receiving background pages: the peer broke the protocol: the content of \
                      compressed pages";

fn compressed(method: CompressionMethod, pages: usize) -> Vec<u8> {
    let content = vec![7; pages * PAGE_SIZE];
    let mut compressor = Compressor::new();
    compressor.compress(method, &content).unwrap().to_vec()
}

/// A frame for so many pages, and what it is said to be the content of.
fn frame(method: CompressionMethod, pages: u64, content: &[u8]) -> Frame {
    Frame::Compressed {
        range: PageRange::from_len(Page::new(3), pages),
        method,
        len: u32::try_from(content.len()).unwrap(),
    }
}

#[test]
fn content_that_is_not_exactly_the_pages() {
    for method in CompressionMethod::ALL {
        let good = compressed(method, 8);
        let mut damaged = good.clone();
        damaged[0] ^= 0xff;
        let bomb = compressed(method, 256);
        for (content, pages) in [
            (&damaged[..], 8),
            (&good[..good.len() - 1], 8),
            (&good[..], 9),
            (&bomb[..], 2),
            (&[0][..], 1),
        ] {
            refused(true, BROKEN, |source| {
                let frame = frame(method, pages, content);
                source.background.1.payload(frame, content).unwrap();
            });
        }
    }
}

/// It is refused by its header.
#[test]
fn a_length_that_no_compression_has() {
    for pages in [1, 256] {
        refused(true, "malformed message", |source| {
            let content = vec![1; usize::try_from(pages).unwrap() * PAGE_SIZE];
            let frame = frame(CompressionMethod::Zstd, pages, &content);
            // The destination ends the link before all of it was read.
            let _ = source.background.1.payload(frame, &content);
        });
    }
}

#[test]
fn pages_that_were_requested_are_never_compressed() {
    let layout = layout(&[(MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, true, |source, _| {
        source.discard(0, 256);
        source.switch(256, true);
        let (requests, pages) = source.urgent.as_mut().unwrap();
        let asked = requests.frame().unwrap();
        assert!(matches!(asked, Frame::Request { .. }), "{asked:?}");
        let content = compressed(CompressionMethod::Lz4, 1);
        let frame = frame(CompressionMethod::Lz4, 1, &content);
        pages.payload(frame, &content).unwrap();
    });
    assert_eq!(outcome, Outcome::AtSource);
    let expected = "receiving urgent pages: the peer broke the protocol: unexpected message \
                    Compressed";
    assert!(text.contains(expected), "{text}");
    assert_eq!(guest.script.count("release"), 1);
}
