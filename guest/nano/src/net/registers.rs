//! A range of a device's registers in memory.

use core::ptr::with_exposed_provenance_mut;

/// Registers from an address on.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    address: usize,
    bytes: usize,
}

impl Registers {
    /// The range of `bytes` at `address`.
    ///
    /// # Safety
    /// It must be registers of a device, whose effects the caller knows.
    pub unsafe fn new(address: u64, bytes: u32) -> Option<Self> {
        Some(Self {
            address: usize::try_from(address).ok().filter(|&at| at != 0)?,
            bytes: usize::try_from(bytes).ok()?,
        })
    }

    fn at<T>(self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        with_exposed_provenance_mut(self.address + offset)
    }

    /// Reads a register.
    pub fn read<T: Copy>(self, offset: usize) -> T {
        // SAFETY: within the range, aligned, and mapped like everything below 4 GiB.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    /// Writes a register.
    pub fn write<T: Copy>(self, offset: usize, value: T) {
        // SAFETY: as above.
        unsafe { self.at::<T>(offset).write_volatile(value) };
    }

    /// Writes a register of 64 bits, as two halves.
    pub fn write_long(self, offset: usize, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.write(offset, u32::from_le_bytes([a, b, c, d]));
        self.write(offset + 4, u32::from_le_bytes([e, f, g, h]));
    }
}
