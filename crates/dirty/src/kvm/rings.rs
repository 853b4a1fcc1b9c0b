//! The dirty rings of a VM's processors.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvm_bindings::{
    KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP,
    kvm_dirty_gfn,
};
use kvm_ioctls::{VcpuFd, VmFd};
use thiserror::Error;

use super::capability::Capability;
use super::ring_memory::{DirtyPage, RingMemory};
use crate::capability_error::CapabilityError;

const RING: Capability = Capability {
    number: KVM_CAP_DIRTY_LOG_RING,
    name: "KVM_CAP_DIRTY_LOG_RING",
};

/// For processors with a weak memory order. This code follows its rules in any case.
const RING_ACQ_REL: Capability = Capability {
    number: KVM_CAP_DIRTY_LOG_RING_ACQ_REL,
    name: "KVM_CAP_DIRTY_LOG_RING_ACQ_REL",
};

/// A bitmap beside the rings, for pages that KVM writes while no processor runs (on arm64).
const RING_WITH_BITMAP: Capability = Capability {
    number: KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP,
    name: "KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP",
};

/// The dirty rings of a VM. The monitor creates them with the VM, long before a migration: KVM
/// enables rings only as long as there is no virtual processor.
///
/// With rings enabled, KVM's bitmaps are not available in this VM. The rings cost memory, and
/// nothing else as long as no log is started.
#[derive(Debug)]
pub struct DirtyRings {
    entries: u32,
    with_bitmap: bool,
    rings: Mutex<Vec<RingMemory>>,
}

/// Why there is no dirty ring.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// Rings cannot be enabled.
    #[error(
        "creating dirty rings of {entries} entries (a power of two, from 1024 to what KVM offers, \
         before the first virtual processor)"
    )]
    Enable {
        /// The number of entries of each ring.
        entries: u32,
        /// The cause.
        source: CapabilityError,
    },
    /// The ring of a processor cannot be mapped.
    #[error("mapping the dirty ring of a virtual processor")]
    Map {
        /// The error of the system call.
        source: io::Error,
    },
}

impl DirtyRings {
    /// Enables a ring of so many entries, one page each, for every processor that `vm` will have.
    ///
    /// # Errors
    ///
    /// See [`RingError`].
    pub fn enable(vm: &VmFd, entries: u32) -> Result<Self, RingError> {
        let failed = |source| RingError::Enable { entries, source };
        let bytes = u64::from(entries) * size_of::<kvm_dirty_gfn>() as u64;
        let ring = [RING_ACQ_REL, RING]
            .into_iter()
            .find(|ring| ring.offered(vm) != 0);
        ring.ok_or(CapabilityError::NotOffered { name: RING.name })
            .and_then(|ring| ring.enable(vm, bytes))
            .map_err(failed)?;
        let with_bitmap = RING_WITH_BITMAP.offered(vm) != 0;
        if with_bitmap {
            RING_WITH_BITMAP.enable(vm, 0).map_err(failed)?;
        }
        Ok(Self {
            entries,
            with_bitmap,
            rings: Mutex::default(),
        })
    }

    /// Adds the ring of a processor. Call it for each one right after it was created, before it
    /// runs: writes by a processor without its ring here are missed.
    ///
    /// # Errors
    ///
    /// See [`RingError`].
    pub fn add(&self, vcpu: &VcpuFd) -> Result<(), RingError> {
        let ring =
            RingMemory::map(vcpu, self.entries).map_err(|source| RingError::Map { source })?;
        self.lock().push(ring);
        Ok(())
    }

    /// Whether KVM logs some writes in bitmaps as well.
    pub(super) fn with_bitmap(&self) -> bool {
        self.with_bitmap
    }

    /// Appends the entries of all rings to `dirty`. KVM keeps their places until it resets them.
    pub(super) fn harvest(&self, dirty: &mut Vec<DirtyPage>) {
        for ring in self.lock().iter_mut() {
            dirty.extend(std::iter::from_fn(|| ring.pop()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RingMemory>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
