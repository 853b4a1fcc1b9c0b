//! The monitor: a machine with virtual processors, memory and a few devices, that boots a kernel,
//! can be paused, and whose state can be saved and loaded. It knows nothing of the engine; of the
//! dirty logs it knows KVM's ring.

mod boot;
pub(crate) mod console;
mod devices;
pub(crate) mod machine;
pub(crate) mod memory;
mod state;
mod vcpu;
