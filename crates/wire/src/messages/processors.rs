//! A guest's virtual processors, as described to the other side.
//!
//! A guest reads its processors' features once, when it boots, and relies on
//! them from then on. So both sides describe the features that the guest was
//! given, not the options that requested them: `-cpu host` gives other features
//! on each host, `-cpu max` in each version.

use serde::{Deserialize, Serialize};

use super::bounded::{Label, List};

/// The most virtual processors of one guest: the limit of QEMU 10.0's `q35`.
pub(crate) const MAX_PROCESSORS: usize = 4096;

/// The most kinds of virtual processors in one guest.
pub(crate) const MAX_PROCESSOR_KINDS: usize = 64;

/// The most words of feature flags of one kind. QEMU 10.0 has 32.
pub(crate) const MAX_CPUID_WORDS: usize = 128;

/// The most properties of one kind. Under KVM, with nested virtualisation and
/// every Hyper-V enlightenment, QEMU 10.0 has about 200.
pub(crate) const MAX_PROCESSOR_SETTINGS: usize = 512;

/// A guest's virtual processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// The accelerator, as the hypervisor names it: `kvm`, `tcg`.
    #[serde(with = "Label")]
    pub accelerator: Box<str>,
    /// Whether this host can give a guest a time-stamp counter frequency other
    /// than its own.
    pub tsc_scaling: bool,
    /// How they are arranged.
    pub topology: Topology,
    /// The kinds of processors, at most 64. Equal processors share one.
    #[serde(with = "List::<MAX_PROCESSOR_KINDS>")]
    pub kinds: Vec<ProcessorKind>,
    /// The processors that are plugged in, by index; at most 4096.
    #[serde(with = "List::<MAX_PROCESSORS>")]
    pub processors: Vec<Processor>,
}

/// How the virtual processors are arranged. A level that the hypervisor does not
/// have counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Sockets in the machine.
    pub sockets: u32,
    /// Dies in a socket.
    pub dies: u32,
    /// Modules in a die.
    pub modules: u32,
    /// Cores in a module.
    pub cores: u32,
    /// Threads in a core.
    pub threads: u32,
    /// The most processors that can be plugged in.
    pub most: u32,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            sockets: 1,
            dies: 1,
            modules: 1,
            cores: 1,
            threads: 1,
            most: 1,
        }
    }
}

/// What the guest can read from a processor, except its place in the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorKind {
    /// The feature flags that the guest was given, at most 128 words. Words of
    /// zeros may be omitted.
    #[serde(with = "List::<MAX_CPUID_WORDS>")]
    pub features: Vec<CpuidWord>,
    /// The feature flags that were requested, but that the host or the
    /// accelerator cannot provide; at most 128 words.
    #[serde(with = "List::<MAX_CPUID_WORDS>")]
    pub filtered: Vec<CpuidWord>,
    /// Its properties, as the hypervisor names them; at most 512.
    #[serde(with = "List::<MAX_PROCESSOR_SETTINGS>")]
    pub settings: Vec<ProcessorSetting>,
}

/// 32 feature flags, as the CPUID instruction returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidWord {
    /// EAX before the instruction.
    pub leaf: u32,
    /// ECX before the instruction; 0 if the leaf ignores it.
    pub subleaf: u32,
    /// The register that holds the flags after it.
    pub register: CpuidRegister,
    /// The flags.
    pub bits: u32,
}

/// A register that CPUID writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CpuidRegister {
    /// EAX.
    Eax,
    /// EBX.
    Ebx,
    /// ECX.
    Ecx,
    /// EDX.
    Edx,
}

/// A property of a processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorSetting {
    /// Its name, as the hypervisor gives it.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// Its value. `on` and `off` are a feature: a missing one is off. Others are
    /// compared only if both sides have them, because a version without the
    /// property behaves as the machine type requires.
    #[serde(with = "Label")]
    pub value: Box<str>,
}

/// One virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// Its index in the hypervisor.
    pub index: u32,
    /// Its kind: the index in [`Processors::kinds`].
    pub kind: u16,
    /// Its APIC ID.
    pub apic_id: u32,
    /// The frequency of its time-stamp counter in Hz; 0 if it has no fixed
    /// frequency.
    pub tsc_hz: u64,
    /// Its place in the topology.
    pub place: ProcessorPlace,
}

/// Where a virtual processor is plugged in. A level that the hypervisor does not
/// have is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorPlace {
    /// The socket in the machine.
    pub socket: u32,
    /// The die in the socket.
    pub die: u32,
    /// The module in the die.
    pub module: u32,
    /// The core in the module.
    pub core: u32,
    /// The thread in the core.
    pub thread: u32,
    /// The NUMA node, if the guest has nodes.
    pub node: Option<u32>,
}
