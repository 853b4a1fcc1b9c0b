//! The TPM.

use super::{Probe, devices};
use hikkoshi_lab::Vm;

/// The value of the register that the guest has extended.
#[derive(Debug, Default)]
pub(super) struct Tpm(Option<String>);

impl Probe for Tpm {
    fn check(&mut self, vm: &Vm) {
        let devices = devices(vm);
        let pcr = devices.pcr.expect("the guest has no TPM");
        assert!(pcr.contains(|digit| digit != '0'), "it was not extended");
        assert_ne!(devices.tpm_random, super::devices(vm).tpm_random);
        let before = self.0.get_or_insert_with(|| pcr.clone());
        assert_eq!(*before, pcr, "the TPM has lost its state");
    }
}
