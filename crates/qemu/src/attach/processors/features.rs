//! CPUID feature words.

use hikkoshi_wire::{CpuidRegister, CpuidWord, ProcessorKind, Topology};
use serde_json::Value;

use super::json_number::number;

/// A flag: leaf, register, bit.
pub(super) type Flag = (u32, CpuidRegister, u32);

pub(super) const VMX: Flag = (1, CpuidRegister::Ecx, 5);

pub(super) const PDCM: Flag = (1, CpuidRegister::Ecx, 15);

pub(super) const HT: Flag = (1, CpuidRegister::Edx, 28);

pub(super) const HAS_ARCH_CAPABILITIES: Flag = (7, CpuidRegister::Edx, 29);

pub(super) const HAS_CORE_CAPABILITY: Flag = (7, CpuidRegister::Edx, 30);

pub(super) const CMP_LEGACY: Flag = (0x8000_0001, CpuidRegister::Ecx, 1);

/// The words with at least one flag.
pub(super) fn words(answer: Option<&Value>) -> Vec<CpuidWord> {
    let word = |entry: &Value| {
        let register = match entry.get("cpuid-register")?.as_str()? {
            "EAX" => CpuidRegister::Eax,
            "EBX" => CpuidRegister::Ebx,
            "ECX" => CpuidRegister::Ecx,
            "EDX" => CpuidRegister::Edx,
            _ => return None,
        };
        Some(CpuidWord {
            leaf: number(entry.get("cpuid-input-eax"))?,
            subleaf: number(entry.get("cpuid-input-ecx")).unwrap_or(0),
            register,
            bits: number(entry.get("features"))?,
        })
    };
    let entries = answer.and_then(Value::as_array);
    let entries = entries.map(Vec::as_slice).unwrap_or_default();
    let mut words: Vec<_> = entries.iter().filter_map(word).collect();
    words.retain(|word| word.bits != 0);
    words.sort_by_key(|word| (word.leaf, word.subleaf, word.register));
    words
}

pub(super) fn has(kind: &ProcessorKind, (leaf, register, bit): Flag) -> bool {
    let mut words = kind.features.iter();
    words.any(|word| {
        (word.leaf, word.subleaf, word.register) == (leaf, 0, register) && word.bits >> bit & 1 == 1
    })
}

pub(super) fn set(kind: &mut ProcessorKind, (leaf, register, bit): Flag) {
    for word in &mut kind.features {
        if (word.leaf, word.subleaf, word.register) == (leaf, 0, register) {
            word.bits |= 1 << bit;
        }
    }
}

/// Sets the flags that the topology implies. A guest with several processors in a socket
/// always sees `ht`, and on AMD's processors `cmp-legacy`. QEMU 10.0 includes them in its
/// feature words; 7.2 adds them when the guest executes CPUID.
pub(super) fn implied_by_topology(kind: &mut ProcessorKind, topology: Topology) {
    if topology.cores.saturating_mul(topology.threads) < 2 {
        return;
    }
    set(kind, HT);
    let mut settings = kind.settings.iter();
    let amd = settings.any(|setting| {
        &*setting.name == "vendor" && matches!(&*setting.value, "AuthenticAMD" | "HygonGenuine")
    });
    if amd {
        set(kind, CMP_LEGACY);
    }
}
