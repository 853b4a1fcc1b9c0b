//! The USB tablet.

use super::{Probe, wait_devices};
use hikkoshi_lab::Vm;
use serde_json::{Value, json};

/// The pointer's position.
#[derive(Debug, Default)]
pub(super) struct Tablet([i32; 2]);

impl Probe for Tablet {
    fn check(&mut self, vm: &Vm) {
        // The guest's driver reads the device while the file is open.
        wait_devices(vm, "the pointer where it was", |devices| {
            devices.tablet == Some(self.0)
        });
        self.0 = self.0.map(|at| at + 1000);
        let axis = |(name, at): (&str, i32)| -> Value {
            json!({ "type": "abs", "data": { "axis": name, "value": at } })
        };
        let events: Vec<_> = ["x", "y"].into_iter().zip(self.0).map(axis).collect();
        let events = json!({ "events": events });
        vm.qmp().execute("input-send-event", events).unwrap();
        wait_devices(vm, "the pointer's new position", |devices| {
            devices.tablet == Some(self.0)
        });
    }
}
