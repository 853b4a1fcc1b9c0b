//! The monitor, which knows nothing of the engine: a machine with virtual processors, memory and a
//! few devices, that boots a kernel, can be paused, and whose state can be saved and loaded.

mod acpi_timer;
mod boot;
mod configuration;
pub(crate) mod console;
pub(crate) mod machine;
mod memory;
mod ports;
mod serial;
mod state;
mod vcpu;
