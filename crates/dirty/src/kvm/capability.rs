//! KVM's capabilities: whether they are offered, and enabling them.

use std::io;

use kvm_bindings::kvm_enable_cap;
use kvm_ioctls::VmFd;

use crate::capability_error::CapabilityError;

/// A capability of KVM that is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    pub(crate) number: u32,
    /// Its name in the kernel.
    pub(crate) name: &'static str,
}

/// Manual protection, see `manual_protect.rs`.
pub(super) const MANUAL_PROTECT: Capability = Capability {
    number: kvm_bindings::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
    name: "KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2",
};

impl Capability {
    /// Returns what KVM says about it: 0 if it is not offered.
    pub(crate) fn offered(self, vm: &VmFd) -> u32 {
        u32::try_from(vm.check_extension_raw(self.number.into())).unwrap_or(0)
    }

    pub(crate) fn require(self, vm: &VmFd) -> Result<u32, CapabilityError> {
        match self.offered(vm) {
            0 => Err(CapabilityError::NotOffered { name: self.name }),
            offered => Ok(offered),
        }
    }

    pub(crate) fn enable(self, vm: &VmFd, argument: u64) -> Result<(), CapabilityError> {
        let cap = kvm_enable_cap {
            cap: self.number,
            args: [argument, 0, 0, 0],
            ..Default::default()
        };
        vm.enable_cap(&cap)
            .map_err(|error| CapabilityError::Enable {
                name: self.name,
                argument,
                source: io::Error::from_raw_os_error(error.errno()),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_offered_is_named() {
        let Ok(vm) = kvm_ioctls::Kvm::new().and_then(|kvm| kvm.create_vm()) else {
            eprintln!("NOT TESTED: there is no KVM");
            return;
        };
        let none = Capability {
            number: 0x7fff_0000,
            name: "KVM_CAP_OF_TOMORROW",
        };
        let error = none.require(&vm).unwrap_err();
        assert!(error.to_string().contains(none.name), "{error}");
        assert!(matches!(error, CapabilityError::NotOffered { .. }));
        let error = none.enable(&vm, 1).unwrap_err();
        assert!(matches!(error, CapabilityError::Enable { .. }), "{error}");
    }
}
