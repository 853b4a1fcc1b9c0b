//! The processors, plugged ones included.

use super::{Probe, wait_devices};
use hikkoshi_lab::Vm;

/// How many must be online.
#[derive(Debug)]
pub(super) struct Processors(pub(super) u32);

impl Probe for Processors {
    fn check(&mut self, vm: &Vm) {
        // A processor that was just plugged is put online a while later.
        wait_devices(vm, "all processors to be online", |devices| {
            devices.cpus == u64::from(self.0)
        });
    }
}
