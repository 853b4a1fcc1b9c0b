//! The interface to the processors, which the hypervisor implements.

use alloc::sync::Arc;

use crate::dirty_log::Vcpu;
use crate::tlb_flush::TlbFlush;

/// Operations on the processors that run a guest.
///
/// The crate calls these from [`Guest::flush`](crate::Guest::flush) and when a log is started,
/// stopped, taken or read. All of them are slow: they interrupt other processors and may wait until
/// each one has left the guest and responded. A processor may be anywhere at that time: in an exit
/// handler or in any function of this crate, with interrupts disabled. The crate holds no lock and
/// no frozen entry during a call, and none of its functions waits for another thread's call to
/// return. Two threads may be in these calls at the same time.
///
/// *Every vCPU* means those that were added and not removed;
/// [`Guest::add_vcpu`](crate::Guest::add_vcpu) says when the hypervisor has to include a new one.
pub trait Processors {
    /// Invalidates the translations that `flush` covers on every processor, and returns when all
    /// have done so.
    ///
    /// On Intel: a single-context `INVEPT` for each EPT pointer of
    /// [`Guest::eptps`](crate::Guest::eptps), on every logical processor that has used the pointer.
    /// Interrupt (kick) those that are in the guest; the others may invalidate before they enter it
    /// again.
    fn invalidate(&self, flush: &TlbFlush);

    /// Makes every vCPU leave the guest and drains its page-modification log: `let index =
    /// drain(vcpu, index)`, where `index` is the VMCS field "PML index", which is set to the
    /// returned value. Returns when all are drained. Called only while a log of method
    /// [`Pml`](crate::LogMethod::Pml) is active.
    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16);

    /// Turns the control "enable PML" on for every vCPU (with "PML address" =
    /// [`Guest::pml_address`](crate::Guest::pml_address) and "PML index" =
    /// [`PML_HEAD_INDEX`](crate::PML_HEAD_INDEX)) or off. Returns when the change is effective for
    /// all. The log was drained before PML is turned off; the buffers are freed after it is off for
    /// all.
    fn set_pml(&self, on: bool);
}

/// A machine on which no guest runs: nothing is cached, nothing is logged.
impl Processors for () {
    fn invalidate(&self, _: &TlbFlush) {}

    fn drain_pml(&self, _: &dyn Fn(Vcpu, u16) -> u16) {}

    fn set_pml(&self, _: bool) {}
}

impl<T: Processors + ?Sized> Processors for &T {
    fn invalidate(&self, flush: &TlbFlush) {
        (**self).invalidate(flush);
    }

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        (**self).drain_pml(drain);
    }

    fn set_pml(&self, on: bool) {
        (**self).set_pml(on);
    }
}

impl<T: Processors + ?Sized> Processors for Arc<T> {
    fn invalidate(&self, flush: &TlbFlush) {
        (**self).invalidate(flush);
    }

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        (**self).drain_pml(drain);
    }

    fn set_pml(&self, on: bool) {
        (**self).set_pml(on);
    }
}
