//! Links whose bytes are counted and searched, and that are cut or changed at one byte.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hikkoshi_lab::relay::{Fate, Passing, RelayPolicy};

use crate::machine::stamp;

/// What happens to the byte with a chosen number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tamper {
    /// All connections close before it, in both directions, as if both sides had closed them.
    Cut,
    /// It arrives with another value.
    Change,
}

/// Counts what passes, and tampers once.
#[derive(Debug)]
pub(crate) struct Tampering {
    tamper: Tamper,
    at: u64,
    carried: AtomicU64,
    tampered: AtomicBool,
    /// The bytes carried, for tests that search them.
    seen: Mutex<Vec<u8>>,
}

impl Tampering {
    /// Tampers with byte number `at`, counted over all connections and both directions.
    pub(crate) fn new(tamper: Tamper, at: u64) -> Self {
        Self {
            tamper,
            at,
            carried: AtomicU64::new(0),
            tampered: AtomicBool::new(false),
            seen: Mutex::default(),
        }
    }

    /// Bytes carried so far.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::Acquire)
    }

    pub(crate) fn tampered(&self) -> bool {
        self.tampered.load(Ordering::Acquire)
    }

    /// How many page contents of a guest with this many pages are readable in the bytes.
    pub(crate) fn readable(&self, pages: u64) -> usize {
        let seen = self.seen.lock().unwrap();
        let word = |at: &[u8]| u64::from_le_bytes(at.try_into().unwrap());
        let is_stamp = |part: &&[u8]| {
            let (page, generation) = (word(&part[..8]), word(&part[8..16]));
            page < pages && generation > 0 && stamp(page, generation)[..64] == **part
        };
        seen.windows(64).filter(is_stamp).count()
    }
}

impl RelayPolicy for Tampering {
    fn before(&self, passing: &mut Passing<'_>) -> Fate {
        let len = passing.bytes.len() as u64;
        let before = self.carried.fetch_add(len, Ordering::AcqRel);
        self.seen.lock().unwrap().extend_from_slice(passing.bytes);
        if !(before..before + len).contains(&self.at) {
            // Once cut, nothing passes any more.
            return match self.tampered() && self.tamper == Tamper::Cut {
                true => Fate::CutBefore,
                false => Fate::Pass,
            };
        }
        self.tampered.store(true, Ordering::Release);
        let at = usize::try_from(self.at - before).unwrap();
        match self.tamper {
            Tamper::Cut => Fate::CutAt(at),
            Tamper::Change => {
                passing.bytes[at] ^= 0x10;
                Fate::Pass
            }
        }
    }
}
