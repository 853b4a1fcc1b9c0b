//! Moves: plans, both engines, the relay between them, and faults.

pub(crate) mod domain_move;
pub(crate) mod fault_drill;
pub(crate) mod fault_injection;
pub(crate) mod interruption;
pub(crate) mod migration;
pub(crate) mod migration_plan;
pub(crate) mod qemu_state;
pub(crate) mod relay;
pub(crate) mod split_brain;
