//! A peer cannot make us set aside memory that it did not pay for in bytes.

#![allow(
    unsafe_code,
    reason = "only a global allocator can count what is set aside"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's failure is its message"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[allow(dead_code, reason = "shared with other tests")]
mod properties;
#[allow(dead_code, reason = "shared with other tests")]
mod strategies;

use hikkoshi_wire::{
    ControlMessage, Decoder, Frame, Limits, ToDestination, ToSource, decode_control, encode_control,
};
use proptest::prelude::*;

thread_local! {
    /// Bytes that this thread holds, and the most it held.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(add: usize, sub: usize) {
    // A thread that is being torn down is of no interest.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        let now = (now + add).saturating_sub(sub);
        held.set((now, most.max(now)));
    });
}

// SAFETY: every call is passed on to the system's allocator as it is, and so is
// its answer; counting allocates nothing. `realloc` is the trait's own, which
// allocates, copies and frees, so that both copies count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps `dealloc`'s contract, and the memory came
        // from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes held by `work` at once, beyond what was held before.
fn most_held<R>(work: impl FnOnce() -> R) -> usize {
    let before = HELD.get().0;
    HELD.set((before, before));
    drop(work());
    HELD.get().1 - before
}

/// Decoding may hold less than 64 times the length of its input, and a little.
fn affordable<T: ControlMessage>(payload: &[u8]) -> Result<(), String> {
    let held = most_held(|| decode_control::<T>(payload));
    let bound = 64 * payload.len() + 256;
    if held > bound {
        return Err(format!("{held} bytes held for {} of input", payload.len()));
    }
    Ok(())
}

fn forge<F: serde::Serialize>(number: u32, fields: F) -> Vec<u8> {
    postcard::to_allocvec(&(number, fields)).unwrap()
}

#[test]
fn announced_lengths_set_nothing_aside() {
    const HUGE: u64 = u32::MAX as u64;
    let forged = [
        forge(0, HUGE),
        forge(0, ("m", HUGE)),
        forge(0, ("m", "a", 1u32, "c", "h", true, HUGE)),
        forge(
            0,
            (
                "m",
                "a",
                1u32,
                "c",
                "h",
                true,
                (1u64, "b", 1u64, 1u64, HUGE),
            ),
        ),
        forge(0, ("m", "a", 1u32, "c", "h", true, 1024u64)),
        forge(1, HUGE),
        forge(1, 32_768u64),
        forge(3, HUGE),
        forge(3, 524_288u64),
        forge(6, HUGE),
    ];
    for payload in forged {
        assert!(decode_control::<ToDestination>(&payload).is_err());
        let held = most_held(|| decode_control::<ToDestination>(&payload));
        assert!(held < 1024, "{held} bytes held for {payload:02x?}");
        let held = most_held(|| decode_control::<ToSource>(&payload));
        assert!(held < 1024, "{held} bytes held for {payload:02x?}");
    }
}

#[test]
fn bytes_that_could_be_elements_set_nothing_aside_either() {
    // postcard passes an announced length on if as many bytes follow. They are
    // not believed until they are elements.
    for mut payload in [
        forge(0, ("m", "a", 1u32, "c", "h", true, 1024u64)),
        forge(
            0,
            (
                "m",
                "a",
                1u32,
                "c",
                "h",
                true,
                (1u64, "b", 1u64, 1u64, 1024u64),
            ),
        ),
        forge(0, 1024u64),
        forge(1, 32_768u64),
    ] {
        payload.resize(payload.len() + 40_000, 0xff);
        let held = most_held(|| assert!(decode_control::<ToDestination>(&payload).is_err()));
        assert!(held < 1024, "{held} bytes held for {:02x?}", &payload[..20]);
        let held = most_held(|| assert!(decode_control::<ToSource>(&payload).is_err()));
        assert!(held < 1024, "{held} bytes held for {:02x?}", &payload[..20]);
    }
}

#[test]
fn the_most_costly_messages_are_affordable() {
    let piece = (0u64, 0u64, 1u64);
    let head = ("", "", 1u32, "", "", true);
    let blocks = |pieces: usize| {
        let (a, b, c, d, e, f) = head;
        let block = ("", 1u64, 1u64, vec![piece; pieces]);
        forge(0, (a, b, c, d, e, f, vec![block; 1024], 0u32, true, 1u16))
    };
    let word = (1u32, 0u32, 0u32, 1u32);
    let processors = |kinds: usize, words: usize, settings: usize, processors: usize| {
        let words = vec![word; words];
        let kind = (words.clone(), words, vec![("", ""); settings]);
        let processor = (0u32, 0u16, 0u32, 0u64, [0u32; 5], None::<u32>);
        let lists = (vec![kind; kinds], vec![processor; processors]);
        forge(11, ("", true, [1u32; 6], lists, true))
    };
    // Just beyond a power of two, where a growing list has the most to spare.
    for payload in [
        blocks(0),
        blocks(1),
        blocks(5),
        blocks(65),
        forge(
            12,
            (vec![("", "", "", 0u32); 2049], vec![("", 0u64, 0u64); 2049]),
        ),
        processors(33, 0, 0, 0),
        processors(33, 65, 0, 0),
        processors(33, 0, 257, 0),
        processors(1, 0, 257, 0),
        processors(0, 0, 0, 2049),
        forge(1, vec![(0u64, 1u64); 32_768]),
        forge(1, vec![(0u64, 1u64); 16_385]),
        forge(3, vec![0u8; 512 << 10]),
    ] {
        assert!(
            decode_control::<ToDestination>(&payload).is_ok(),
            "it must get to the end"
        );
        affordable::<ToDestination>(&payload).unwrap();
    }
    let payload = forge(0, vec![1u64; 513]);
    assert!(decode_control::<ToSource>(&payload).is_ok());
    affordable::<ToSource>(&payload).unwrap();
}

#[test]
fn an_announced_payload_sets_nothing_aside() {
    let limits = Limits { pages: 1 << 20 };
    for frame in [
        Frame::Control { len: 1 << 20 },
        Frame::Pages {
            range: hikkoshi_pages::PageRange::from_len(hikkoshi_pages::Page::new(0), 256),
        },
    ] {
        let header = frame.encode();
        let held = most_held(|| {
            let mut decoder = Decoder::<ToSource>::new(limits);
            decoder.push(&header);
            assert_eq!(decoder.next_message(), Ok(None));
            decoder
        });
        assert!(held < 1024, "{held} bytes held for {frame:?}");
    }
}

#[test]
fn the_decoder_forgets_what_was_consumed() {
    // A gigabyte's worth of acknowledgements would do the same as these.
    let limits = Limits { pages: 1 << 20 };
    let held = most_held(|| {
        let mut decoder = Decoder::<ToSource>::new(limits);
        for bytes in 0..100_000 {
            let header = Frame::Ack { bytes }.encode();
            // Never at a frame's edge.
            let (one, two) = header.split_at(7);
            decoder.push(one);
            while decoder.next_message().unwrap().is_some() {}
            decoder.push(two);
            while decoder.next_message().unwrap().is_some() {}
        }
    });
    assert!(held < 1024, "{held} bytes held");
}

proptest! {
    #[test]
    fn any_bytes_are_affordable(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(affordable::<ToDestination>(&bytes), Ok(()));
        prop_assert_eq!(affordable::<ToSource>(&bytes), Ok(()));
    }

    #[test]
    fn damaged_messages_are_affordable(
        message in strategies::to_destination(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut payload = encode_control(&message).unwrap();
        let at = at.index(payload.len());
        payload[at] = byte;
        prop_assert_eq!(affordable::<ToDestination>(&payload), Ok(()));
    }
}
