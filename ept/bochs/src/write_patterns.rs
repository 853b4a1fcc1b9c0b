//! The guest's write patterns: lists of addresses, and the set of pages that they dirty.

use crate::guest_program::{BYTES, WRITE_AREA};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A list of addresses to write to, in order.
#[derive(Debug)]
pub struct Pattern {
    /// Its name, for the report.
    pub name: &'static str,
    /// The addresses; aligned to four bytes.
    pub addresses: Vec<u32>,
}

impl Pattern {
    /// Returns the guest frames that are written to.
    pub fn frames(&self) -> BTreeSet<u64> {
        self.addresses
            .iter()
            .map(|address| u64::from(*address) >> 12)
            .collect()
    }

    /// Creates the addresses from guest frames, each with an offset inside its page.
    fn from_frames(
        name: &'static str,
        frames: impl Iterator<Item = u64>,
        random: &mut Random,
    ) -> Pattern {
        let addresses = frames
            .map(|frame| address(frame, random.below(1024) * 4))
            .collect();
        Pattern { name, addresses }
    }
}

fn address(frame: u64, offset: u64) -> u32 {
    let address = (frame << 12) + offset;
    assert!(
        (WRITE_AREA..BYTES).contains(&address),
        "{address:#x} is not in the write area"
    );
    u32::try_from(address).unwrap_or(0)
}

/// First frame of the write area, and its number of frames.
const FIRST: u64 = WRITE_AREA >> 12;
const COUNT: u64 = (BYTES - WRITE_AREA) >> 12;

/// Returns the patterns, which are the same in every run.
pub fn all() -> Vec<Pattern> {
    let mut random = Random(0x5eed_0123_4567_89ab);
    let mut shuffled: Vec<u64> = (0..COUNT).collect();
    for last in (1..COUNT).rev() {
        let other = random.below(last + 1);
        if let (Ok(last), Ok(other)) = (usize::try_from(last), usize::try_from(other)) {
            shuffled.swap(last, other);
        }
    }
    let drawn: Vec<u64> = (0..6000).map(|_| random.below(COUNT)).collect();
    let few: Vec<u64> = (0..40).map(|_| random.below(COUNT)).collect();
    let repeated: Vec<u64> = (0_usize..5000)
        .map(|step| {
            few.get(step % 7 * (step % 5 + 1) % few.len())
                .copied()
                .unwrap_or(0)
        })
        .collect();
    [
        ("2,000 pages in order", (0..2000).collect::<Vec<u64>>()),
        (
            "1,500 pages in descending order",
            (3000..4500).rev().collect(),
        ),
        (
            "one page of each 2 MiB",
            (0..COUNT >> 9)
                .map(|large| (large << 9) + large * 37 % 512)
                .collect(),
        ),
        ("6,000 writes to random pages", drawn),
        ("5,000 writes to the same few pages", repeated),
        (
            "every third page, shuffled",
            shuffled
                .iter()
                .copied()
                .filter(|page| page % 3 == 0)
                .collect(),
        ),
    ]
    .into_iter()
    .map(|(name, frames)| {
        Pattern::from_frames(
            name,
            frames.into_iter().map(|frame| FIRST + frame),
            &mut random,
        )
    })
    .collect()
}

/// A pseudo-random generator (Marsaglia's xorshift64), the same in every run.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
