//! Page-modification logs: a buffer a virtual processor, and emptying it.
//!
//! SDM vol. 3C, "Page-Modification Logging": a write that sets a dirty flag stores the page's
//! guest-physical address at PML address + 8 × PML index and counts the index down. With an index
//! outside 0..=511 the access does not happen: the processor exits (reason 62).

use thiserror::Error;

use super::{Form, Log};
use crate::address::{ENTRIES, Frame, Gfn};
use crate::atomic::{AtomicU64, Ordering};
use crate::guest::Guest;
use crate::memory::Memory;
use crate::rmap::NoMemory;

/// Entries of a page-modification log: 512.
#[allow(clippy::cast_possible_truncation)] // 512
pub const PML_ENTRIES: u16 = ENTRIES as u16;

/// The PML index of an empty log: 511. It counts down.
pub const PML_START: u16 = PML_ENTRIES - 1;

/// In the word of a virtual processor that exists.
const EXISTS: u64 = 1;

/// A virtual processor, as far as the log is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vcpu(usize);

impl Vcpu {
    /// Its number: the smallest that was free when it was added.
    pub const fn number(self) -> usize {
        self.0
    }
}

/// Why a virtual processor was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VcpuError {
    /// The guest was created for fewer.
    #[error("adding a virtual processor: the guest was created for {0}")]
    TooMany(usize),
    /// Logging is on, and there is no buffer for it.
    #[error("adding a virtual processor: no frame left for its page-modification log")]
    NoMemory,
}

/// A buffer for each virtual processor, or for none.
pub(super) fn allocate_all<M: Memory>(memory: &M, log: &Log) -> Result<(), NoMemory> {
    for word in &log.vcpus {
        if word.load(Ordering::Acquire) == EXISTS {
            let Some(frame) = memory.allocate() else {
                release_all(memory, log);
                return Err(NoMemory);
            };
            word.store(frame.address() | EXISTS, Ordering::Release);
        }
    }
    Ok(())
}

pub(super) fn release_all<M: Memory>(memory: &M, log: &Log) {
    for word in &log.vcpus {
        let value = word.load(Ordering::Acquire);
        if let Some(frame) = buffer(value) {
            word.store(EXISTS, Ordering::Release);
            memory.release(frame);
        }
    }
}

fn buffer(word: u64) -> Option<Frame> {
    (word > EXISTS).then(|| Frame::containing(word))
}

impl Log {
    /// Gives the buffers back. Nobody uses the guest any more.
    pub(crate) fn release<M: Memory>(&mut self, memory: &M) {
        release_all(memory, self);
    }

    fn word(&self, vcpu: Vcpu) -> Option<&AtomicU64> {
        self.vcpus.get(vcpu.0)
    }
}

impl<M: Memory> Guest<M> {
    /// Adds a virtual processor. While a log in form [`Form::Pml`] is on, it comes with a buffer; set
    /// up its VMCS accordingly ([`Guest::pml_address`]) before it enters the guest.
    ///
    /// # Errors
    ///
    /// See [`VcpuError`]; the processor must not run then.
    pub fn add_vcpu(&self) -> Result<Vcpu, VcpuError> {
        let _control = self.log.control.lock();
        let free = self
            .log
            .vcpus
            .iter()
            .position(|word| word.load(Ordering::Acquire) == 0);
        let vcpu = Vcpu(free.ok_or(VcpuError::TooMany(self.log.vcpus.len()))?);
        let mut value = EXISTS;
        if self.log.form() == Some(Form::Pml) {
            value |= self.memory.allocate().ok_or(VcpuError::NoMemory)?.address();
        }
        self.log.vcpus[vcpu.0].store(value, Ordering::Release);
        Ok(vcpu)
    }

    /// Removes a virtual processor that has left the guest for good with this PML index; what it had
    /// logged is not lost.
    pub fn remove_vcpu(&self, vcpu: Vcpu, index: u16) {
        let _control = self.log.control.lock();
        self.drain_pml(vcpu, index);
        let Some(word) = self.log.word(vcpu) else {
            return;
        };
        if let Some(frame) = buffer(word.swap(0, Ordering::AcqRel)) {
            self.walkers.wait();
            self.memory.release(frame);
        }
    }

    /// What belongs into the VMCS field "PML address" of this virtual processor (the frame's address);
    /// `None` while no log in form [`Form::Pml`] is on.
    pub fn pml_address(&self, vcpu: Vcpu) -> Option<Frame> {
        buffer(self.log.word(vcpu)?.load(Ordering::Acquire))
    }

    /// Empties the page-modification log of a virtual processor that is not in the guest, given its PML
    /// index; returns the new index. For the exit "page-modification log full", for
    /// [`Processors::drain`](crate::Processors::drain), and for whoever wants to empty it sooner.
    ///
    /// Entries of pages that are not tracked are left out. Lock-free.
    pub fn drain_pml(&self, vcpu: Vcpu, index: u16) -> u16 {
        let _inside = self.walkers.enter();
        // 0..=511: the entries above are in use. FFFFH: all are.
        let first = index.wrapping_add(1);
        let frame = self
            .log
            .word(vcpu)
            .and_then(|word| buffer(word.load(Ordering::Acquire)));
        if let Some(frame) = frame {
            let table = self.memory.table(frame);
            for entry in table.iter().skip(usize::from(first)) {
                self.log
                    .mark(Gfn::containing(entry.load(Ordering::Acquire)));
            }
        }
        PML_START
    }
}
