//! A guest's virtual processors as they are described to the other side.
//!
//! A guest reads its processors' features once, when it boots, and relies on
//! them ever after. So both sides describe what the guest was really given, and
//! not the options that were asked for: `-cpu host` gives something else on
//! every host, and `-cpu max` in every version.

use serde::{Deserialize, Serialize};

use super::bounded::{Label, List};

/// Most virtual processors of one guest. QEMU 10.0's `q35` takes as many.
pub const MAX_PROCESSORS: usize = 4096;

/// Most kinds of virtual processors in one guest.
pub const MAX_PROCESSOR_KINDS: usize = 64;

/// Most words with feature flags of one kind. QEMU 10.0 has 32.
pub const MAX_CPUID_WORDS: usize = 128;

/// Most properties of one kind. Under KVM, with nested virtualisation and every
/// Hyper-V enlightenment, QEMU 10.0 has some 200.
pub const MAX_PROCESSOR_SETTINGS: usize = 512;

/// The virtual processors that the guest has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// What runs them, in the hypervisor's words: `kvm`, `tcg`.
    #[serde(with = "Label")]
    pub accelerator: Box<str>,
    /// Whether this host can give a guest another time-stamp counter frequency
    /// than its own.
    pub tsc_scaling: bool,
    /// How many there are of what.
    pub topology: Topology,
    /// What kinds there are. Processors that are alike share one.
    #[serde(with = "List::<MAX_PROCESSOR_KINDS>")]
    pub kinds: Vec<ProcessorKind>,
    /// Those that are plugged in, by index.
    #[serde(with = "List::<MAX_PROCESSORS>")]
    pub processors: Vec<Processor>,
}

/// How the virtual processors are arranged. What a hypervisor does not know
/// of counts 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Sockets of the machine.
    pub sockets: u32,
    /// Dies of a socket.
    pub dies: u32,
    /// Modules of a die.
    pub modules: u32,
    /// Cores of a module.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
    /// Most processors that can be plugged in.
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

/// What the guest can find out about a processor, except for its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorKind {
    /// The feature flags that the guest was given; words of zeros may be
    /// left out.
    #[serde(with = "List::<MAX_CPUID_WORDS>")]
    pub features: Vec<CpuidWord>,
    /// The feature flags that were asked for, and that the host or the
    /// accelerator could not provide.
    #[serde(with = "List::<MAX_CPUID_WORDS>")]
    pub filtered: Vec<CpuidWord>,
    /// Properties by the hypervisor's names.
    #[serde(with = "List::<MAX_PROCESSOR_SETTINGS>")]
    pub settings: Vec<ProcessorSetting>,
}

/// 32 feature flags, as the CPUID instruction gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidWord {
    /// What is in EAX before.
    pub leaf: u32,
    /// What is in ECX before; 0 where it does not matter.
    pub subleaf: u32,
    /// Where the flags are afterwards.
    pub register: CpuidRegister,
    /// The flags.
    pub bits: u32,
}

/// A register that CPUID fills.
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
    /// Its name in the hypervisor.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// Its value. `on` and `off` are a feature: one that is not named is off.
    /// Others are only compared where both sides name them, for a version that
    /// does not know a property behaves as the machine type demands.
    #[serde(with = "Label")]
    pub value: Box<str>,
}

/// One virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// Its index in the hypervisor.
    pub index: u32,
    /// Its kind: the place in [`Processors::kinds`].
    pub kind: u16,
    /// Its APIC ID.
    pub apic_id: u32,
    /// The frequency of its time-stamp counter in Hz; 0 if there is no fixed
    /// one.
    pub tsc_hz: u64,
    /// Where it is.
    pub place: Place,
}

/// Where a virtual processor is plugged in. What a hypervisor does not know of
/// is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
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
    /// The NUMA node, if the guest was given nodes.
    pub node: Option<u32>,
}
