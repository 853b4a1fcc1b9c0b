//! A virtio queue (virtio 1.1, section 2.6). Each buffer has one descriptor, which is its number.

use super::registers::Registers;
use crate::memory;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU16, Ordering::*, fence};

/// Descriptors of a queue.
pub const SIZE: u16 = 256;

/// In a descriptor: the device writes.
const DEVICE_WRITES: u16 = 2;
/// In the flags of the used ring: the device needs no notification.
const NO_NOTIFICATION: u16 = 1;
/// In the flags of the available ring: the driver needs no interrupt.
const NO_INTERRUPT: u16 = 1;

#[repr(C)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

#[repr(C)]
struct Available {
    flags: AtomicU16,
    index: AtomicU16,
    ring: [AtomicU16; SIZE as usize],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Used {
    buffer: u32,
    length: u32,
}

#[repr(C)]
struct UsedRing {
    flags: AtomicU16,
    index: AtomicU16,
    ring: [Used; SIZE as usize],
}

/// Where the parts of a queue are.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of descriptors.
    pub size: u16,
    /// The descriptors.
    pub descriptors: usize,
    /// The ring that the driver writes.
    pub available: usize,
    /// The ring that the device writes.
    pub used: usize,
}

impl Layout {
    /// Reserves memory, one page for each part.
    pub fn reserve() -> Option<Self> {
        let start = memory::reserve_zeroed(3 * 4096)?;
        Some(Self {
            size: SIZE,
            descriptors: start,
            available: start + 4096,
            used: start + 8192,
        })
    }
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    descriptors: *mut Descriptor,
    available: *mut Available,
    used: *mut UsedRing,
    /// Buffers offered so far.
    offered: u16,
    /// Of these, buffers that the device knows of.
    published: u16,
    /// Buffers taken back so far.
    taken: u16,
    number: u16,
    notify: (Registers, usize),
}

impl Queue {
    /// A queue that the device has been told of, with where to notify it.
    ///
    /// # Safety
    /// The addresses must be of reserved memory of zeros, a page each.
    pub unsafe fn new(
        descriptors: usize,
        available: usize,
        used: usize,
        number: u16,
        notify: (Registers, usize),
    ) -> Self {
        Self {
            descriptors: with_exposed_provenance_mut(descriptors),
            available: with_exposed_provenance_mut(available),
            used: with_exposed_provenance_mut(used),
            offered: 0,
            published: 0,
            taken: 0,
            number,
            notify,
        }
    }

    fn available(&self) -> &Available {
        // SAFETY: reserved for this queue; the device only reads it.
        unsafe { &*self.available }
    }

    fn used_index(&self) -> u16 {
        // SAFETY: reserved for this queue; the device writes this number.
        unsafe { (*self.used).index.load(Acquire) }
    }

    /// Offers a buffer to the device, which learns of it at the next [`publish`](Self::publish).
    ///
    /// # Safety
    /// The memory must stay untouched until the buffer is taken back. The buffer is not offered.
    pub unsafe fn offer(&mut self, buffer: u16, address: u64, length: u32, device_writes: bool) {
        assert!(buffer < SIZE);
        let flags = if device_writes { DEVICE_WRITES } else { 0 };
        let descriptor = Descriptor {
            address,
            length,
            flags,
            next: 0,
        };
        // SAFETY: this descriptor is not in the device's hands.
        unsafe {
            self.descriptors
                .add(usize::from(buffer))
                .write_volatile(descriptor);
        }
        let at = usize::from(self.offered % SIZE);
        self.available().ring[at].store(buffer, Relaxed);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Tells the device of what has been offered. A notification is an exit to the hypervisor.
    pub fn publish(&mut self) {
        if self.published == self.offered {
            return;
        }
        self.available().index.store(self.offered, Release);
        self.published = self.offered;
        fence(SeqCst);
        // SAFETY: reserved for this queue; the device writes this number.
        let flags = unsafe { (*self.used).flags.load(Relaxed) };
        if flags & NO_NOTIFICATION == 0 {
            let (registers, at) = self.notify;
            registers.write(at, self.number);
        }
    }

    /// Takes back a buffer that the device has used; with the length that it has written.
    pub fn take(&mut self) -> Option<(u16, usize)> {
        if self.used_index() == self.taken {
            return None;
        }
        let at = usize::from(self.taken % SIZE);
        // SAFETY: the device has written this entry before the index.
        let used = unsafe { (&raw const (*self.used).ring[at]).read_volatile() };
        self.taken = self.taken.wrapping_add(1);
        Some((u16::try_from(used.buffer).ok()?, used.length as usize))
    }

    /// Whether there is a buffer to take.
    pub fn has_used(&self) -> bool {
        self.used_index() != self.taken
    }

    /// Whether the device is to interrupt when it has used a buffer. One that it has used already
    /// may cause none.
    pub fn set_interrupt(&self, wanted: bool) {
        let flags = if wanted { 0 } else { NO_INTERRUPT };
        self.available().flags.store(flags, Relaxed);
        fence(SeqCst);
    }
}
