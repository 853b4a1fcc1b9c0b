//! virtio-rng.

use super::{Probe, devices};
use hikkoshi_lab::Vm;

/// The numbers so far. One that was drawn before comes from an old page, not from the device.
#[derive(Debug, Default)]
pub(super) struct Random(Vec<String>);

impl Probe for Random {
    fn check(&mut self, vm: &Vm) {
        let random = devices(vm).random.expect("the guest has no generator");
        assert!(
            !self.0.contains(&random),
            "{random} again, after {:?}",
            self.0
        );
        self.0.push(random);
    }
}
