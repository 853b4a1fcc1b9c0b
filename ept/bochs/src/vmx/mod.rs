//! VMX operation: enabling it, control structures, entries and exits (SDM vol. 3C).

pub mod capability;
mod entry;
pub mod field;
pub mod operation;
pub mod vcpu;
