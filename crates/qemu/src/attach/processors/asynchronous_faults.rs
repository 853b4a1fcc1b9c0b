//! Whether the processors have KVM's asynchronous page faults.

use hikkoshi_wire::{CpuidRegister, Processors};
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::Kvm;

use super::features::{Flag, has};

/// `KVM_CPUID_FEATURES` and `KVM_FEATURE_ASYNC_PF_INT` (the kernel's
/// `Documentation/virt/kvm/x86/cpuid.rst`); QEMU's property `kvm-asyncpf-int`.
const ASYNC_PF_INT: Flag = (0x4000_0001, CpuidRegister::Eax, 14);

/// What the host and the processors have. Whether the guest uses it is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AsynchronousFaultSupport {
    /// The guest is emulated.
    NoKvm,
    /// This host's KVM does not offer them.
    NotOffered,
    /// The processors do not have the flag.
    Off,
    /// All processors have it.
    On,
}

impl AsynchronousFaultSupport {
    /// Asks this host's KVM, too, if it is accessible.
    pub(crate) fn of_processors(processors: &Processors) -> Self {
        Self::new(processors, host_offers)
    }

    fn new(processors: &Processors, host_offers: impl FnOnce() -> Option<bool>) -> Self {
        if &*processors.accelerator != "kvm" {
            Self::NoKvm
        } else if have_flag(processors) {
            Self::On
        } else if host_offers() == Some(false) {
            Self::NotOffered
        } else {
            Self::Off
        }
    }
}

/// Whether all processors have the flag. A requested flag that this host does not have reads as
/// off.
pub(crate) fn have_flag(processors: &Processors) -> bool {
    let mut kinds = processors.kinds.iter();
    !processors.kinds.is_empty() && kinds.all(|kind| has(kind, ASYNC_PF_INT))
}

/// Whether this host's KVM offers the flag. `None`: it cannot be asked.
fn host_offers() -> Option<bool> {
    let kvm = Kvm::new().ok()?;
    let offered = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).ok()?;
    let (leaf, _, bit) = ASYNC_PF_INT;
    let mut leaves = offered.as_slice().iter();
    Some(leaves.any(|entry| entry.function == leaf && entry.eax >> bit & 1 == 1))
}

#[cfg(test)]
mod tests {
    use hikkoshi_wire::{CpuidWord, ProcessorKind};

    use super::*;

    #[test]
    fn every_processor_must_have_the_flag() {
        let kind = |bits| ProcessorKind {
            features: vec![CpuidWord {
                leaf: 0x4000_0001,
                subleaf: 0,
                register: CpuidRegister::Eax,
                bits,
            }],
            ..ProcessorKind::default()
        };
        let support = |accelerator: &str, kinds: &[u32], host| {
            let processors = Processors {
                accelerator: accelerator.into(),
                kinds: kinds.iter().map(|bits| kind(*bits)).collect(),
                ..Processors::default()
            };
            AsynchronousFaultSupport::new(&processors, || host)
        };
        // With `-cpu host`, and with a named model.
        let (on, off) = (0x0100_7efb, 0x0100_007b);
        use AsynchronousFaultSupport::{NoKvm, NotOffered, Off, On};
        assert_eq!(support("kvm", &[on], None), On);
        assert_eq!(support("kvm", &[on, on], Some(false)), On);
        assert_eq!(support("kvm", &[on, off], Some(true)), Off);
        assert_eq!(support("kvm", &[off], None), Off);
        assert_eq!(support("kvm", &[off], Some(false)), NotOffered);
        assert_eq!(support("kvm", &[], None), Off);
        assert_eq!(support("tcg", &[on], Some(true)), NoKvm);
    }
}
