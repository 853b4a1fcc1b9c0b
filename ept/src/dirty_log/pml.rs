//! Page-modification logging (PML): one buffer for each vCPU, and draining it.
//!
//! SDM vol. 3C, "Page-Modification Logging": a write that sets a dirty flag stores the
//! guest-physical address of the page at PML address + 8 × PML index and decrements the index. If
//! the index is not in 0..=511, the access does not happen and the processor exits (reason 62).

use thiserror::Error;

use super::Log;
use crate::address::{ENTRIES, Gfn, HostFrame};
use crate::atomic::{AtomicU64, Ordering};
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::rmap::NoMemory;

/// Number of entries of a page-modification log: 512.
#[allow(clippy::cast_possible_truncation)] // 512
pub(crate) const PML_ENTRIES: u16 = ENTRIES as u16;

/// The PML index of an empty log: 511. The processor counts down.
pub const PML_HEAD_INDEX: u16 = PML_ENTRIES - 1;

/// Flag in the word of an existing vCPU.
const EXISTS: u64 = 1;

/// A vCPU, as the log sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vcpu(usize);

impl Vcpu {
    /// Returns the vCPU's number: the smallest that was free when the vCPU was added.
    pub const fn number(self) -> usize {
        self.0
    }
}

/// Why a vCPU was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VcpuError {
    /// The guest has the number of vCPUs that it was created for.
    #[error("cannot add a vCPU: the guest was created for {0}")]
    TooMany(usize),
    /// Logging is on, and there is no frame for the buffer.
    #[error("cannot add a vCPU: no free frame for its page-modification log")]
    NoMemory,
}

/// The states of page-modification logging. `OFF`: no buffers. `PREPARED`: every vCPU gets a
/// buffer. `ON`: the hypervisor sees the buffers.
///
/// vCPUs are added at any time without a lock. A thread that adds a vCPU first claims a slot and
/// then reads this state. A thread that starts a log first changes the state and then visits the
/// slots. So one of the two sees the other. Both *write* the state's word, even if only with the
/// same value, so that the two accesses are ordered.
const OFF: u8 = 0;
const PREPARED: u8 = 1;
const ON: u8 = 2;

/// Allocates a buffer for every vCPU, including those that are added from now on. On failure, no
/// vCPU keeps one.
pub(super) fn allocate_all<M: HostMemory>(memory: &M, log: &Log) -> Result<(), NoMemory> {
    log.pml.swap(PREPARED, Ordering::AcqRel);
    for word in &log.vcpus {
        if allocate(memory, word).is_err() {
            switch_off(log);
            // These buffers are not in use: neither the hypervisor nor an exit handler in
            // `drain_pml` has seen them.
            release_all(memory, log);
            return Err(NoMemory);
        }
    }
    Ok(())
}

/// Allocates a buffer for the vCPU in this slot, if there is one and it has no buffer.
fn allocate<M: HostMemory>(memory: &M, word: &AtomicU64) -> Result<(), NoMemory> {
    if word.load(Ordering::Acquire) != EXISTS {
        return Ok(());
    }
    let frame = memory.allocate().ok_or(NoMemory)?;
    let new = frame.address() | EXISTS;
    if word
        .compare_exchange(EXISTS, new, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        memory.release(frame); // the vCPU has a buffer by now, or was removed
    }
    Ok(())
}

/// Makes the buffers visible to the hypervisor.
pub(super) fn switch_on(log: &Log) {
    log.pml.swap(ON, Ordering::AcqRel);
}

/// Hides the buffers from the hypervisor. vCPUs that are added from now on get none.
pub(super) fn switch_off(log: &Log) {
    log.pml.swap(OFF, Ordering::AcqRel);
}

/// Releases the buffers. No processor uses them any more.
pub(super) fn release_all<M: HostMemory>(memory: &M, log: &Log) {
    for word in &log.vcpus {
        let value = word.load(Ordering::Acquire);
        if let Some(frame) = buffer(value)
            && word
                .compare_exchange(value, EXISTS, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            memory.release(frame);
        }
    }
}

fn buffer(word: u64) -> Option<HostFrame> {
    (word > EXISTS).then(|| HostFrame::containing(word))
}

impl Log {
    /// Releases the buffers. No thread uses the guest any more.
    pub(crate) fn release<M: HostMemory>(&mut self, memory: &M) {
        release_all(memory, self);
    }

    fn word(&self, vcpu: Vcpu) -> Option<&AtomicU64> {
        self.vcpus.get(vcpu.0)
    }
}

impl<M: HostMemory> Guest<M> {
    /// Adds a vCPU; allowed at any time, also while a log is active, starting or stopping.
    /// Lock-free.
    ///
    /// To make every log cover the new vCPU, the hypervisor does the following:
    ///
    /// 1. Call this method. On an error, the vCPU must not run.
    /// 2. Add the vCPU to those that [`Processors`](crate::Processors) reaches.
    /// 3. Call [`Guest::pml_address`] and set "enable PML", "PML address" and "PML index" from the
    ///    result. Hold a lock meanwhile that keeps
    ///    [`Processors::set_pml`](crate::Processors::set_pml) away from this vCPU (a lock of the
    ///    vCPU, or the lock of step 2).
    /// 4. Let the vCPU enter the guest.
    ///
    /// Step 3 sees a log that started before it. A log that starts later finds the vCPU because of
    /// step 2. A log that stops releases its buffers only after `set_pml` has visited all vCPUs,
    /// including the one of step 2.
    ///
    /// # Errors
    ///
    /// See [`VcpuError`].
    pub fn add_vcpu(&self) -> Result<Vcpu, VcpuError> {
        let free = |word: &AtomicU64| {
            word.compare_exchange(0, EXISTS, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let place = self.log.vcpus.iter().position(free);
        let vcpu = Vcpu(place.ok_or(VcpuError::TooMany(self.log.vcpus.len()))?);
        let word = &self.log.vcpus[vcpu.0];
        // Read with a write: see the states above.
        if self.log.pml.fetch_add(0, Ordering::AcqRel) != OFF
            && allocate(&self.memory, word).is_err()
            // A thread that starts the log may have allocated a buffer for it meanwhile.
            && word
                .compare_exchange(EXISTS, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            return Err(VcpuError::NoMemory);
        }
        Ok(vcpu)
    }

    /// Returns the number of vCPUs that the guest was created for.
    pub fn max_vcpus(&self) -> usize {
        self.log.vcpus.len()
    }

    /// Removes a vCPU that has left the guest permanently with this PML index, and that
    /// [`Processors`](crate::Processors) does not reach any more. Its logged pages are added to the
    /// dirty log first.
    pub fn remove_vcpu(&self, vcpu: Vcpu, index: u16) {
        self.drain_pml(vcpu, index);
        let Some(word) = self.log.word(vcpu) else {
            return;
        };
        if let Some(frame) = buffer(word.swap(0, Ordering::AcqRel)) {
            self.rcu.synchronize();
            self.memory.release(frame);
        }
    }

    /// Returns the value of the VMCS field "PML address" for this vCPU (the frame's address);
    /// `None` if no log of method [`LogMethod::Pml`](crate::LogMethod::Pml) is active.
    pub fn pml_address(&self, vcpu: Vcpu) -> Option<HostFrame> {
        if self.log.pml.load(Ordering::Acquire) != ON {
            return None;
        }
        buffer(self.log.word(vcpu)?.load(Ordering::Acquire))
    }

    /// Drains the page-modification log of a vCPU that is not in the guest: adds its entries to the
    /// dirty log. Takes the PML index and returns the new one. Called for the exit
    /// "page-modification log full" and from
    /// [`Processors::drain_pml`](crate::Processors::drain_pml); it can be called at other times,
    /// too.
    ///
    /// Entries of pages that are not tracked are ignored. Lock-free.
    ///
    /// As with [`Guest::handle_ept_violation`], the hypervisor handles two parts of the exit: an
    /// event in the IDT-vectoring information, and NMIs unblocked by `IRET` (qualification, bit
    /// 12). The access that found the log full did not happen and will be retried.
    pub fn drain_pml(&self, vcpu: Vcpu, index: u16) -> u16 {
        let _guard = self.rcu.read();
        // Index 0..=511: the entries above the index are in use. Index FFFFH: all entries are in
        // use.
        let first = index.wrapping_add(1);
        // Read the buffer only while PML is on. Before that state, the buffer may be released
        // without waiting for readers, because no reader has seen it. After it, the contents were
        // drained already, and the buffer is released after an RCU synchronization.
        let on = self.log.pml.load(Ordering::Acquire) == ON;
        let frame = self
            .log
            .word(vcpu)
            .filter(|_| on)
            .and_then(|word| buffer(word.load(Ordering::Acquire)));
        if let Some(frame) = frame {
            let table = self.memory.table(frame);
            for entry in table.iter().skip(usize::from(first)) {
                self.log
                    .mark_dirty(Gfn::containing(entry.load(Ordering::Acquire)));
            }
        }
        PML_HEAD_INDEX
    }
}
