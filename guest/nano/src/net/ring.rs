//! A ring of bytes that one task writes and another one reads, without a lock.

use core::ptr::with_exposed_provenance_mut;
use core::slice;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// A ring of `SIZE` bytes, a power of two.
#[derive(Debug)]
pub struct Ring<const SIZE: usize> {
    /// Where the bytes are.
    address: AtomicUsize,
    /// Bytes written so far; the writer changes it.
    written: AtomicUsize,
    /// Bytes read so far; the reader changes it.
    read: AtomicUsize,
}

impl<const SIZE: usize> Ring<SIZE> {
    /// Without memory.
    pub const fn new() -> Self {
        assert!(SIZE.is_power_of_two());
        Self {
            address: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        }
    }

    /// Sets the address of its memory, once, before it is used.
    pub fn set_memory(&self, address: usize) {
        self.address.store(address, Release);
    }

    /// Forgets its content. Neither side uses it meanwhile.
    pub fn clear(&self) {
        self.read.store(self.written.load(Acquire), Release);
    }

    /// How many bytes can be written.
    pub fn room(&self) -> usize {
        SIZE - self.filled()
    }

    /// How many bytes can be read.
    pub fn filled(&self) -> usize {
        self.written.load(Acquire) - self.read.load(Acquire)
    }

    fn at(&self, position: usize, length: usize) -> (*mut u8, usize) {
        let address = self.address.load(Relaxed);
        assert!(address != 0, "a ring without memory");
        let at = position % SIZE;
        let pointer = with_exposed_provenance_mut(address + at);
        (pointer, length.min(SIZE - at))
    }

    /// Lets `fill` write into the next free bytes, of which there may be more behind these; it says
    /// how many it has written.
    ///
    /// # Safety
    /// Only one task may write.
    pub unsafe fn write(&self, fill: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let written = self.written.load(Relaxed);
        let (pointer, length) = self.at(written, self.room());
        // SAFETY: bytes of this ring's memory that the reader does not use until they are written.
        let count = fill(unsafe { slice::from_raw_parts_mut(pointer, length) }).min(length);
        self.written.store(written + count, Release);
        count
    }

    /// Lets `take` read the next bytes, of which there may be more behind these; it says how many
    /// it has taken.
    ///
    /// # Safety
    /// Only one task may read.
    pub unsafe fn read(&self, take: impl FnOnce(&[u8]) -> usize) -> usize {
        let read = self.read.load(Relaxed);
        let (pointer, length) = self.at(read, self.filled());
        // SAFETY: bytes of this ring's memory that the writer does not use until they are read.
        let count = take(unsafe { slice::from_raw_parts(pointer, length) }).min(length);
        self.read.store(read + count, Release);
        count
    }
}
