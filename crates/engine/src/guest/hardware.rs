//! What a guest's machine consists of.

use hikkoshi_wire::{Machine, Processors};

/// What both sides of a migration compare of a machine, beside its
/// [description](hikkoshi_wire::GuestDescription). The default is for adapters whose machines are
/// all alike, or that find differences themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hardware {
    /// The processors that the guest was given, or would have here.
    pub processors: Processors,
    /// The devices and the auxiliary memory.
    pub machine: Machine,
}
