//! Whether the guest uses KVM's asynchronous page faults.

/// Whether the guest can run another task on a processor while a page is on its way to it: KVM
/// interrupts the guest when a page is missing and when it is there (*Asynchronous Page Fault*, in
/// the kernel's `Documentation/virt/kvm/x86/msr.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsynchronousFaults {
    /// The guest is emulated.
    NoKvm,
    /// The processors do not have the flag.
    Off,
    /// The processors have it, and the guest has not switched them on.
    Unused,
    /// The guest has switched them on, for at least one processor.
    Used,
    /// The guest's registers are not known to this engine.
    Unknown,
}
