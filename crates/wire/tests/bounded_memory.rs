//! The memory for a peer's messages grows with the bytes that the peer has sent.

#![allow(unsafe_code, reason = "only a global allocator can count allocations")]
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

use hikkoshi_wire::{ControlMessage, ToDestination, ToSource, decode_control, encode_control};
use proptest::prelude::*;

thread_local! {
    /// The bytes that this thread has allocated, and their maximum.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(add: usize, sub: usize) {
    // Fails in a thread that is ending; its allocations do not matter.
    let _ = ALLOCATED.try_with(|allocated| {
        let (now, most) = allocated.get();
        let now = (now + add).saturating_sub(sub);
        allocated.set((now, most.max(now)));
    });
}

// SAFETY: every call and its result are passed unchanged to and from the system's
// allocator; counting allocates nothing. `realloc` is the trait's default, which
// allocates, copies and frees, so both copies are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller upholds the contract of `dealloc`, and the memory came
        // from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the most bytes that `work` had allocated at one time.
fn peak_memory<R>(work: impl FnOnce() -> R) -> usize {
    let before = ALLOCATED.get().0;
    ALLOCATED.set((before, before));
    drop(work());
    ALLOCATED.get().1 - before
}

/// Checks that decoding allocates less than 64 times the length of its input, plus
/// 256 bytes.
fn check_memory<T: ControlMessage>(payload: &[u8]) -> Result<(), String> {
    let peak = peak_memory(|| decode_control::<T>(payload));
    let bound = 64 * payload.len() + 256;
    if peak > bound {
        return Err(format!(
            "{peak} bytes allocated for {} of input",
            payload.len()
        ));
    }
    Ok(())
}

fn forge<F: serde::Serialize>(number: u32, fields: F) -> Vec<u8> {
    postcard::to_allocvec(&(number, fields)).unwrap()
}

#[test]
fn nothing_is_allocated_for_announced_lengths() {
    const HUGE: u64 = u32::MAX as u64;
    let forged = [
        forge(0, (0u8, HUGE)),
        forge(0, (0u8, "m", HUGE)),
        forge(0, (0u8, "m", "a", 1u32, "c", "h", true, HUGE)),
        forge(
            0,
            (
                0u8,
                "m",
                "a",
                1u32,
                "c",
                "h",
                true,
                (1u64, "b", 1u64, 1u64, HUGE),
            ),
        ),
        forge(0, (0u8, "m", "a", 1u32, "c", "h", true, 1024u64)),
        // A domain's name, and its description.
        forge(0, (1u8, HUGE)),
        forge(0, (1u8, "d", "u", HUGE)),
        forge(1, HUGE),
        forge(1, 32_768u64),
        forge(3, HUGE),
        forge(3, 524_288u64),
        forge(6, HUGE),
    ];
    for payload in forged {
        assert!(decode_control::<ToDestination>(&payload).is_err());
        let peak = peak_memory(|| decode_control::<ToDestination>(&payload));
        assert!(peak < 1024, "{peak} bytes allocated for {payload:02x?}");
        let peak = peak_memory(|| decode_control::<ToSource>(&payload));
        assert!(peak < 1024, "{peak} bytes allocated for {payload:02x?}");
    }
}

#[test]
fn nothing_is_allocated_for_bytes_that_are_not_elements() {
    // postcard reports an announced length if as many bytes follow. No memory is
    // allocated before these bytes are decoded to elements.
    for mut payload in [
        forge(0, (0u8, "m", "a", 1u32, "c", "h", true, 1024u64)),
        forge(
            0,
            (
                0u8,
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
        let peak = peak_memory(|| assert!(decode_control::<ToDestination>(&payload).is_err()));
        assert!(
            peak < 1024,
            "{peak} bytes allocated for {:02x?}",
            &payload[..20]
        );
        let peak = peak_memory(|| assert!(decode_control::<ToSource>(&payload).is_err()));
        assert!(
            peak < 1024,
            "{peak} bytes allocated for {:02x?}",
            &payload[..20]
        );
    }
}

/// Two empty lists.
const NONE: (u32, u32) = (0, 0);

/// No kinds, and no processors.
const NO_PROCESSORS: (u32, u32) = (0, 0);

/// The payload of an offer whose guest has these parts.
fn offer(
    blocks: impl serde::Serialize,
    machine: impl serde::Serialize,
    processors: impl serde::Serialize,
    disks: impl serde::Serialize,
) -> Vec<u8> {
    let domain = 0u8;
    let description = ("", "", 1u32, "", "", true, blocks);
    let processors = ("", true, [1u32; 6], processors);
    let disks = ([0u8; 16], disks);
    let guest = (domain, description, machine, processors, true, disks);
    forge(0, (guest, (0u32, true, 1u16, false)))
}

#[test]
fn the_messages_with_the_largest_overhead_keep_the_bound() {
    let piece = (0u64, 0u64, 1u64);
    let blocks = |pieces: usize| {
        let block = ("", 1u64, 1u64, vec![piece; pieces]);
        offer(vec![block; 1024], NONE, NO_PROCESSORS, NONE.0)
    };
    let word = (1u32, 0u32, 0u32, 1u32);
    let processors = |kinds: usize, words: usize, settings: usize, processors: usize| {
        let words = vec![word; words];
        let kind = (words.clone(), words, vec![("", ""); settings]);
        let processor = (0u32, 0u16, 0u32, 0u64, [0u32; 5], None::<u32>);
        let lists = (vec![kind; kinds], vec![processor; processors]);
        offer(NONE.0, NONE, lists, NONE.0)
    };
    // Just above a power of two, where a growing list has the most spare capacity.
    for payload in [
        blocks(0),
        blocks(1),
        blocks(5),
        blocks(65),
        offer(
            NONE.0,
            (vec![("", "", "", 0u32); 2049], vec![("", 0u64, 0u64); 2049]),
            NO_PROCESSORS,
            NONE.0,
        ),
        // A disk: its names, no size, what it is and what is done with it; its image, and none
        // that are known below.
        offer(
            NONE.0,
            NONE,
            NO_PROCESSORS,
            vec![(("", "", ""), [0u8; 4], ("", "", "", [0u8; 4]), 0u8); 513],
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
            "the message must be valid"
        );
        check_memory::<ToDestination>(&payload).unwrap();
    }
    let payload = forge(0, (vec![1u64; 513], false));
    assert!(decode_control::<ToSource>(&payload).is_ok());
    check_memory::<ToSource>(&payload).unwrap();
}

proptest! {
    #[test]
    fn any_bytes_keep_the_bound(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(check_memory::<ToDestination>(&bytes), Ok(()));
        prop_assert_eq!(check_memory::<ToSource>(&bytes), Ok(()));
    }

    #[test]
    fn damaged_messages_keep_the_bound(
        message in strategies::to_destination(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut payload = encode_control(&message).unwrap();
        let at = at.index(payload.len());
        payload[at] = byte;
        prop_assert_eq!(check_memory::<ToDestination>(&payload), Ok(()));
    }
}
