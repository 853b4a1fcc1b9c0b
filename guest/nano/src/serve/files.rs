//! The files: in memory, each with the content that its number says, as in the Linux test guest.
//!
//! A file consists of little-endian words: its number, filling, and a checksum over all before it.

use crate::config;
use crate::findings;
use crate::memory;
use crate::processors;
use crate::worker::Touch;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use hikkoshi_checked_pages::page::{SUM_START, WORDS, filling, fold};

static START: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Pages for which the processor waited.
pub static SYNCHRONOUS: AtomicU64 = AtomicU64::new(0);
/// Asynchronous faults of accesses that had already faulted.
pub static REFAULTS: AtomicU64 = AtomicU64::new(0);

/// A file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    number: usize,
    words: *const u64,
    length: usize,
}

/// Writes files of so many bytes, a multiple of 8; `None` if there is not enough memory.
pub fn create(count: usize, bytes: usize) -> Option<()> {
    let start = memory::reserve(count.checked_mul(bytes)?)?;
    for number in 0..count {
        let words = with_exposed_provenance_mut::<u64>(start + number * bytes);
        let last = bytes / 8 - 1;
        let (mut word, step) = filling(number as u64, bytes as u64);
        let mut sum = SUM_START;
        for at in 0..last {
            let value = if at == 0 { number as u64 } else { word };
            if at > 0 {
                word = word.wrapping_add(step);
            }
            sum = fold(sum, value);
            // SAFETY: within the file, which is within what has been reserved, at a page.
            unsafe { words.add(at).write(value) };
        }
        // SAFETY: as above.
        unsafe { words.add(last).write(sum) };
    }
    START.store(start, Relaxed);
    BYTES.store(bytes, Relaxed);
    COUNT.store(count, Release);
    Some(())
}

/// The file with this number.
pub fn get(number: usize) -> Option<File> {
    let length = BYTES.load(Relaxed);
    (number < COUNT.load(Acquire)).then(|| File {
        number,
        words: with_exposed_provenance(START.load(Relaxed) + number * length),
        length: length / 8,
    })
}

/// Every file.
pub fn all() -> impl Iterator<Item = File> {
    (0..COUNT.load(Acquire)).filter_map(get)
}

impl File {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.length * 8
    }

    fn begins_a_page(&self, at: usize) -> bool {
        at == 0 || (self.words.addr() / 8 + at).is_multiple_of(WORDS)
    }

    /// Reads it from start to end, gives its words to `take`, up to the first error, and checks
    /// them.
    pub fn read<E>(&self, mut take: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let mut sum = SUM_START;
        let mut first = None;
        let mut last = 0;
        for at in 0..self.length {
            if at > 0 {
                sum = fold(sum, last);
            }
            // SAFETY: within the file. It has been written before others knew of it, and is not
            // written again.
            let word = unsafe { &*self.words.add(at) };
            if self.begins_a_page(at) {
                record(Touch::read(word));
            }
            // SAFETY: a reference. Volatile: a move may change it, and the check must see that.
            last = unsafe { (&raw const *word).read_volatile() };
            first.get_or_insert(last);
            take(last)?;
        }
        if first != Some(self.number as u64) || sum != last {
            findings::report(format_args!(
                "file={} address={:p} fault=corrupt held_number={} held={last:#x} wanted={sum:#x}",
                self.number,
                self.words,
                first.unwrap_or(0),
            ));
        }
        Ok(())
    }
}

/// Counts the first access to a page, as the workers do.
fn record(touch: Touch) {
    let scale = &config::get().scale;
    if touch.is_synchronous(scale) {
        SYNCHRONOUS.fetch_add(1, Relaxed);
    }
    if let Some(stalled) = touch.stalled(scale) {
        processors::current().stalled.fetch_add(stalled, Relaxed);
    }
    if let Some(in_kvm) = touch.in_kvm() {
        processors::current().in_kvm.fetch_add(in_kvm, Relaxed);
    }
    REFAULTS.fetch_add(touch.refaults(), Relaxed);
}
