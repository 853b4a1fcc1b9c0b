//! The system calls that need `unsafe`: those that `kvm-ioctls` lacks, and `KVM_GET_DIRTY_LOG` into
//! a buffer that is kept (the library's allocates half a MiB for each call on a slot of 16 GiB).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use kvm_bindings::{
    kvm_clear_dirty_log, kvm_clear_dirty_log__bindgen_ty_1, kvm_dirty_log,
    kvm_dirty_log__bindgen_ty_1,
};
use kvm_ioctls::VmFd;
use rustix::io::retry_on_intr;
use rustix::ioctl::{NoArg, Opcode, Updater, ioctl, opcode};

use super::slots::MemorySlot;
use super::words::word_count;

const KVM: u8 = 0xae;
const GET_DIRTY_LOG: Opcode = opcode::write::<kvm_dirty_log>(KVM, 0x42);
const CLEAR_DIRTY_LOG: Opcode = opcode::read_write::<kvm_clear_dirty_log>(KVM, 0xc0);
const RESET_DIRTY_RINGS: Opcode = opcode::none(KVM, 0xc7);

/// Reads the bitmap of a slot into the beginning of `words`. Without manual protection this also
/// clears it and protects the pages.
pub(crate) fn get_dirty_log(vm: &VmFd, slot: &MemorySlot, words: &mut [u64]) -> io::Result<()> {
    if words.len() < word_count(slot.pages().len()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut log = kvm_dirty_log {
        slot: slot.region.slot,
        padding1: 0,
        __bindgen_anon_1: kvm_dirty_log__bindgen_ty_1 {
            dirty_bitmap: words.as_mut_ptr().cast(),
        },
    };
    // SAFETY: the opcode belongs to this structure. The kernel writes one bit for each page of the
    // slot, in whole words, and `words` has room for them; KVM does not let the size of a slot
    // change, and by `MemorySlots::new` the slot exists.
    // An `Updater`, because a `Setter` would promise that the call writes no memory at all.
    unsafe { ioctl(fd(vm), Updater::<GET_DIRTY_LOG, _>::new(&mut log)) }?;
    Ok(())
}

/// Clears the pages whose bits are set in `words` and protects them. The first bit is page
/// `first_page` of the slot, a multiple of 64; `pages` is one, too, or reaches the slot's end.
pub(crate) fn clear_dirty_log(
    vm: &VmFd,
    slot: u32,
    first_page: u64,
    pages: u32,
    words: &[u64],
) -> io::Result<()> {
    if words.len() < word_count(pages.into()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut log = kvm_clear_dirty_log {
        slot,
        num_pages: pages,
        first_page,
        __bindgen_anon_1: kvm_clear_dirty_log__bindgen_ty_1 {
            dirty_bitmap: words.as_ptr().cast_mut().cast(),
        },
    };
    // SAFETY: the opcode belongs to this structure. The kernel reads one bit for each of the pages,
    // in whole words, which `words` has, and writes neither there nor to the structure.
    unsafe { ioctl(fd(vm), Updater::<CLEAR_DIRTY_LOG, _>::new(&mut log)) }?;
    Ok(())
}

/// Makes the harvested entries of all rings free again, and protects their pages.
pub(crate) fn reset_dirty_rings(vm: &VmFd) -> io::Result<()> {
    // SAFETY: a call without an argument. It fails with EINTR if a signal is pending, and can be
    // called again then.
    retry_on_intr(|| unsafe { ioctl(fd(vm), NoArg::<RESET_DIRTY_RINGS>::new()) })?;
    Ok(())
}

/// Sets the flags of a slot.
pub(crate) fn set_flags(vm: &VmFd, slot: &MemorySlot, flags: u32) -> io::Result<()> {
    let mut region = slot.region;
    region.flags = flags;
    // SAFETY: by the contract of `MemorySlots::new`, the VM has this region already: only the flags
    // change.
    unsafe { vm.set_user_memory_region(region) }
        .map_err(|error| io::Error::from_raw_os_error(error.errno()))
}

fn fd(vm: &VmFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as `vm` is borrowed.
    unsafe { BorrowedFd::borrow_raw(vm.as_raw_fd()) }
}
