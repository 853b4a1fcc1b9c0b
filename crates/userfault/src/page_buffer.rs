//! Memory in which a huge page is assembled before it is installed.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use error_reporter::Report;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// A buffer that several threads can write at the same time: its words are atomic.
///
/// Memory is allocated on the first write, so creating a buffer is cheap for any size.
pub struct PageBuffer {
    words: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the memory belongs to the buffer alone and is accessed through atomics only.
unsafe impl Send for PageBuffer {}
// SAFETY: as above.
unsafe impl Sync for PageBuffer {}

impl PageBuffer {
    /// Creates a buffer of `bytes`, a multiple of the page size, filled with zeros.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the length is 0 or not a multiple of 4096; `ENOMEM` if the system does not have
    /// enough memory.
    pub fn new(bytes: usize) -> Result<Self, Errno> {
        if bytes == 0 || !bytes.is_multiple_of(hikkoshi_pages::PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        // SAFETY: a new mapping at an address that the kernel chooses does not affect existing
        // memory.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let words = NonNull::new(at.cast::<AtomicU64>()).ok_or(Errno::NOMEM)?;
        let buffer = Self { words, bytes };
        // Reduces the number of faults while the buffer is filled. Optional.
        buffer.advise(Advice::LinuxHugepage);
        Ok(buffer)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Always `false`: a buffer has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The words, in order.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is that long, zeroed or written through these words only, page
        // aligned, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.bytes / WORD) }
    }

    /// Writes `content` at byte offset `at`, both multiples of 8 bytes. Returns `false` and writes
    /// nothing if it does not fit.
    ///
    /// Uses relaxed ordering: a reader must synchronize with the writer by other means.
    #[must_use]
    pub fn write(&self, at: usize, content: &[u8]) -> bool {
        let (words, rest) = content.as_chunks::<WORD>();
        if !at.is_multiple_of(WORD) || !rest.is_empty() {
            return false;
        }
        let first = at / WORD;
        let Some(target) = self.words().get(first..first.saturating_add(words.len())) else {
            return false;
        };
        for (target, word) in target.iter().zip(words) {
            target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        true
    }

    /// Returns the memory to the system; the content is zero afterwards.
    pub fn clear(&self) {
        self.advise(Advice::LinuxDontNeed);
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: the range is this buffer's own mapping. Removing its pages makes them read as
        // zeros, which is a valid value for every word.
        let advised = unsafe { madvise(self.words.as_ptr().cast(), self.bytes, advice) };
        if let Err(error) = advised {
            tracing::debug!(error = %Report::new(&error), ?advice, "madvise of a page buffer failed");
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: this buffer's own mapping, to which no reference exists any more.
        let unmapped = unsafe { munmap(self.words.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBuffer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_words_are_stored_at_their_offset() {
        let buffer = PageBuffer::new(2 << 20).unwrap();
        assert_eq!(buffer.len(), 2 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let buffer = &buffer;
                scope.spawn(move || {
                    for page in (0..512usize).filter(|page| page % 4 == usize::from(thread)) {
                        assert!(buffer.write(page * 4096, &[thread + 1; 4096]));
                    }
                });
            }
        });
        for (number, word) in buffer.words().iter().enumerate() {
            let thread = u8::try_from(number / 512 % 4).unwrap();
            let expected = u64::from_ne_bytes([thread + 1; 8]);
            assert_eq!(word.load(Ordering::Relaxed), expected);
        }
        buffer.clear();
        assert!(
            buffer
                .words()
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
    }

    #[test]
    fn writes_that_do_not_fit_are_rejected() {
        let buffer = PageBuffer::new(4096).unwrap();
        for (at, len) in [(0, 4104), (4096, 8), (4, 8), (0, 4), (usize::MAX - 7, 16)] {
            assert!(!buffer.write(at, &vec![1; len]), "{at} {len}");
        }
        assert!(
            buffer
                .words()
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
        for bytes in [0, 100, 4097] {
            assert_eq!(PageBuffer::new(bytes).unwrap_err(), Errno::INVAL);
        }
        assert_eq!(PageBuffer::new(1 << 60).unwrap_err(), Errno::NOMEM);
    }
}
