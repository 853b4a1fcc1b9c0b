//! What the crate asks of the processors.

use crate::dirty_log::Vcpu;
use crate::tlb_flush::TlbFlush;

/// The hypervisor's hold on the processors that run a guest.
///
/// The crate calls these from [`Guest::flush`](crate::Guest::flush) and from starting, stopping,
/// taking and peeking at a log. All are slow: they disturb other processors, and may wait until each has
/// left the guest and answered, wherever it is then: in an exit handler, or in any function of this
/// crate's, with interrupts off. The crate holds no lock and no entry while it calls, and none of its
/// functions waits for another's call here to return; two threads may be in these calls at once.
///
/// *Every virtual processor* are those added ([`Guest::add_vcpu`](crate::Guest::add_vcpu) says when the
/// hypervisor has to put a new one among them) and not removed.
pub trait Processors {
    /// Has every processor forget the translations that `flush` names, and returns when all have.
    ///
    /// On Intel: a single-context `INVEPT` for each pointer of
    /// [`Guest::eptps`](crate::Guest::eptps), on every logical processor that has used it (kick those in the
    /// guest; the others may do it before they enter again).
    fn invalidate(&self, flush: &TlbFlush);

    /// Has every virtual processor leave the guest and hand over its page-modification log:
    /// `let index = drain(vcpu, index)`, where `index` is its VMCS field "PML index", which takes the
    /// value returned. Returns when all have. Called while logging in form
    /// [`Pml`](crate::LogMethod::Pml) only.
    fn drain(&self, drain: &dyn Fn(Vcpu, u16) -> u16);

    /// Turns the control "enable PML" of every virtual processor on (with "PML address" =
    /// [`Guest::pml_address`](crate::Guest::pml_address) and "PML index" =
    /// [`PML_HEAD_INDEX`](crate::PML_HEAD_INDEX)) or off, and returns when it holds for all. Before it goes off,
    /// the log has been drained; once it is off for all, the buffers are freed.
    fn set_pml(&self, on: bool);
}

/// A machine without a guest running: nothing is cached, nothing is logged.
impl Processors for () {
    fn invalidate(&self, _: &TlbFlush) {}

    fn drain(&self, _: &dyn Fn(Vcpu, u16) -> u16) {}

    fn set_pml(&self, _: bool) {}
}

impl<T: Processors + ?Sized> Processors for &T {
    fn invalidate(&self, flush: &TlbFlush) {
        (**self).invalidate(flush);
    }

    fn drain(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        (**self).drain(drain);
    }

    fn set_pml(&self, on: bool) {
        (**self).set_pml(on);
    }
}
