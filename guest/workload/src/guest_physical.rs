//! The guest-physical address of a page, which locates it in the RAM file outside of the guest.

use crate::page::PAGE_SIZE;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The guest-physical address of the page at `address`, if the kernel reports it (to root only).
pub(crate) fn address_of(address: usize) -> Option<u64> {
    let mut entry = [0; 8];
    let offset = (address / PAGE_SIZE * 8) as u64;
    File::open("/proc/self/pagemap")
        .ok()?
        .read_exact_at(&mut entry, offset)
        .ok()?;
    // Bit 63: present; bits 0–54: the page frame number, zero without privilege
    // (Documentation/admin-guide/mm/pagemap.rst).
    let entry = u64::from_le_bytes(entry);
    let frame = entry & ((1 << 55) - 1);
    (entry >> 63 == 1 && frame != 0).then_some(frame * PAGE_SIZE as u64)
}
