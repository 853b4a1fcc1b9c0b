//! Page-modification logs: a buffer a virtual processor, and emptying it.
//!
//! SDM vol. 3C, "Page-Modification Logging": a write that sets a dirty flag stores the page's
//! guest-physical address at PML address + 8 × PML index and counts the index down. With an index
//! outside 0..=511 the access does not happen: the processor exits (reason 62).

use thiserror::Error;

use super::Log;
use crate::address::{ENTRIES, Frame, Gfn};
use crate::atomic::{AtomicU64, Ordering};
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::rmap::NoMemory;

/// Entries of a page-modification log: 512.
#[allow(clippy::cast_possible_truncation)] // 512
pub const PML_ENTRIES: u16 = ENTRIES as u16;

/// The PML index of an empty log: 511. It counts down.
pub const PML_HEAD_INDEX: u16 = PML_ENTRIES - 1;

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

/// Page-modification logging: off; every virtual processor gets a buffer; the hypervisor sees them.
///
/// Processors are added at any time, without a lock. Whoever adds one takes its place first and then reads
/// this state; whoever starts a log changes the state first and then goes through the places: one of the
/// two sees the other. Both *write* the state's word (be it with the same value), so that these two
/// accesses have an order.
const OFF: u8 = 0;
const PREPARED: u8 = 1;
const ON: u8 = 2;

/// A buffer for each virtual processor, also for those that come from now on; or for none.
pub(super) fn allocate_all<M: HostMemory>(memory: &M, log: &Log) -> Result<(), NoMemory> {
    log.pml.swap(PREPARED, Ordering::AcqRel);
    for word in &log.vcpus {
        if allocate(memory, word).is_err() {
            switch_off(log);
            // Nobody has seen one of them: neither the hypervisor nor, by `drain_pml`, an exit handler.
            release_all(memory, log);
            return Err(NoMemory);
        }
    }
    Ok(())
}

/// A buffer for the virtual processor in this place, if there is one and it has none.
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
        memory.release(frame); // it has one by now, or is gone
    }
    Ok(())
}

/// From now on the hypervisor sees the buffers.
pub(super) fn switch_on(log: &Log) {
    log.pml.swap(ON, Ordering::AcqRel);
}

/// From now on the hypervisor sees no buffer, and who is added gets none.
pub(super) fn switch_off(log: &Log) {
    log.pml.swap(OFF, Ordering::AcqRel);
}

/// Takes the buffers back. No processor uses them any more.
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

fn buffer(word: u64) -> Option<Frame> {
    (word > EXISTS).then(|| Frame::containing(word))
}

impl Log {
    /// Gives the buffers back. Nobody uses the guest any more.
    pub(crate) fn release<M: HostMemory>(&mut self, memory: &M) {
        release_all(memory, self);
    }

    fn word(&self, vcpu: Vcpu) -> Option<&AtomicU64> {
        self.vcpus.get(vcpu.0)
    }
}

impl<M: HostMemory> Guest<M> {
    /// Adds a virtual processor, also while a log is on, starts or stops. Lock-free.
    ///
    /// So that no log passes it by, the hypervisor
    ///
    /// 1. calls this; on an error, the processor must not run;
    /// 2. puts it among those that [`Processors`](crate::Processors) reaches;
    /// 3. asks for [`Guest::pml_address`], and sets "enable PML", "PML address" and "PML index" accordingly,
    ///    under whatever keeps [`Processors::set_pml`](crate::Processors::set_pml) from this processor
    ///    meanwhile (a lock of the virtual processor's, or that of step 2);
    /// 4. lets it enter the guest.
    ///
    /// A log that starts before step 3 is seen there; one that starts later finds the processor by step 2.
    /// A log that stops takes its buffers back after `set_pml` has been through all, step 2's included.
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
        // Read by writing: see above.
        if self.log.pml.fetch_add(0, Ordering::AcqRel) != OFF
            && allocate(&self.memory, word).is_err()
            // Whoever starts the log may have had a frame for it.
            && word
                .compare_exchange(EXISTS, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            return Err(VcpuError::NoMemory);
        }
        Ok(vcpu)
    }

    /// The number of virtual processors that the guest was created for.
    pub fn max_vcpus(&self) -> usize {
        self.log.vcpus.len()
    }

    /// Removes a virtual processor that has left the guest for good with this PML index, and that
    /// [`Processors`](crate::Processors) does not reach any more; what it had logged is not lost.
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

    /// What belongs into the VMCS field "PML address" of this virtual processor (the frame's address);
    /// `None` while no log in form [`LogMethod::Pml`](crate::LogMethod::Pml) is on.
    pub fn pml_address(&self, vcpu: Vcpu) -> Option<Frame> {
        if self.log.pml.load(Ordering::Acquire) != ON {
            return None;
        }
        buffer(self.log.word(vcpu)?.load(Ordering::Acquire))
    }

    /// Empties the page-modification log of a virtual processor that is not in the guest, given its PML
    /// index; returns the new index. For the exit "page-modification log full", for
    /// [`Processors::drain`](crate::Processors::drain), and for whoever wants to empty it sooner.
    ///
    /// Entries of pages that are not tracked are left out. Lock-free.
    ///
    /// Two things of the exit are the hypervisor's, as with [`Guest::handle_ept_violation`]: an event in the IDT-vectoring
    /// information, and NMIs unblocked by an `IRET` (qualification, bit 12). The access that found the log full
    /// has not happened and will be tried again.
    pub fn drain_pml(&self, vcpu: Vcpu, index: u16) -> u16 {
        let _guard = self.rcu.read();
        // 0..=511: the entries above are in use. FFFFH: all are.
        let first = index.wrapping_add(1);
        // Only while it is on: before, the buffer may be taken back without a wait, as nobody has seen it;
        // after, what it holds was taken out already, and it is taken back after a wait for those inside.
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
