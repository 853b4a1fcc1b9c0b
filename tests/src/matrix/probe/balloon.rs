//! virtio-balloon.

use super::{Probe, devices, wait_devices};
use hikkoshi_lab::Vm;
use serde_json::json;

/// The sizes that the guest gets in turn, MiB.
const SIZES: [u64; 2] = [208, 240];

/// The guest's size.
#[derive(Debug, Default)]
pub(super) struct Balloon {
    /// As last set, MiB, and what the guest then said, KiB.
    last: Option<(u64, u64)>,
    checks: usize,
}

impl Probe for Balloon {
    fn check(&mut self, vm: &Vm) {
        if let Some((mib, kib)) = self.last {
            assert_eq!(actual_mib(vm), mib, "QEMU has lost the balloon's size");
            assert_eq!(devices(vm).memory_kib, kib, "the guest has lost its size");
        }
        let before = (actual_mib(vm), devices(vm).memory_kib);
        let mib = SIZES[self.checks % 2];
        self.checks += 1;
        let bytes = json!({ "value": mib << 20 });
        vm.qmp().execute("balloon", bytes).unwrap();
        // What the firmware uses is part of one number and not of the other.
        let expected = before.1 + mib * 1024 - before.0 * 1024;
        wait_devices(vm, "the guest's new size", |devices| {
            devices.memory_kib == expected
        });
        crate::eventually("the balloon's new size", || match actual_mib(vm) {
            now if now == mib => Ok(()),
            now => Err(format!("{now} MiB")),
        });
        self.last = Some((mib, expected));
    }
}

fn actual_mib(vm: &Vm) -> u64 {
    let balloon = vm.qmp().execute("query-balloon", json!({})).unwrap();
    balloon["actual"].as_u64().unwrap() >> 20
}
