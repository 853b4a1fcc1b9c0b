//! What the guest was given for virtual processors, from QEMU's object tree.
//!
//! QEMU's options say what was asked for; the processors' objects say what came
//! of it on this host, in this version. Each answer takes QEMU some 0.4 ms, for
//! it reads commands a byte at a time, and a processor has 500 properties. So
//! the flags come as whole words (`feature-words`), and of the other properties
//! only those are read that a guest can notice. Processors that `-smp` made
//! have the same ones, so they are asked one by one only for their flags, and
//! for what tells them apart.

use std::fs;

use hikkoshi_wire::{
    CpuidRegister, CpuidWord, Place, Processor, ProcessorKind, ProcessorSetting, Processors,
    Topology, text::one_line,
};
use serde_json::{Value, json};

use crate::attach::ram::backend::property;
use crate::qmp::{Client, QmpError};

/// Properties that a guest can notice, besides the flags: CPUID leaves that are
/// made of them, and whether some exist at all.
///
/// Not `ucode-rev`: `-cpu host` takes it from the host, and a guest that leaves a
/// host because that is to be updated would find no destination. A guest reads
/// the revision when it boots, and it says nothing about what works.
const NOTICEABLE: [&str; 25] = [
    "family",
    "model",
    "stepping",
    "vendor",
    "model-id",
    "level",
    "level-func7",
    "xlevel",
    "xlevel2",
    "phys-bits",
    "guest-phys-bits",
    "avx10-version",
    "l3-cache",
    "legacy-cache",
    "host-cache-info",
    "cpuid-0xb",
    "x-force-cpuid-0x1f",
    "kvm",
    "tcg-cpuid",
    "vmware-cpuid-freq",
    "kvm-pv-enforce-cpuid",
    "xen-vapic",
    "pmu",
    "lmce",
    "fill-mtrr-mask",
];

/// Flags in `IA32_ARCH_CAPABILITIES` whose names do not end in `-no`.
const ARCH_CAPABILITIES: [&str; 6] = [
    "ibrs-all",
    "rsba",
    "skip-l1dfl-vmentry",
    "tsx-ctrl",
    "fb-clear",
    "rfds-clear",
];

/// A flag: leaf, register, bit.
type Flag = (u32, CpuidRegister, u32);

const VMX: Flag = (1, CpuidRegister::Ecx, 5);
const PDCM: Flag = (1, CpuidRegister::Ecx, 15);
const HT: Flag = (1, CpuidRegister::Edx, 28);
const HAS_ARCH_CAPABILITIES: Flag = (7, CpuidRegister::Edx, 29);
const HAS_CORE_CAPABILITY: Flag = (7, CpuidRegister::Edx, 30);
const CMP_LEGACY: Flag = (0x8000_0001, CpuidRegister::Ecx, 1);

/// The guest's processors.
///
/// # Errors
///
/// If QEMU does not answer, or says something else than it should.
pub(crate) fn read(client: &mut Client) -> Result<Processors, QmpError> {
    let kvm = client.execute("query-kvm", json!({}))?;
    let kvm = kvm.get("enabled").and_then(Value::as_bool) == Some(true);
    let topology = topology(property(client, "/machine", "smp")?.as_ref());
    let answer = client.execute("query-cpus-fast", json!({}))?;
    let mut found = Processors {
        accelerator: if kvm { "kvm" } else { "tcg" }.into(),
        tsc_scaling: kvm && host_scales_tsc(),
        topology,
        kinds: Vec::new(),
        processors: Vec::new(),
    };
    let entries = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "not a list"))?;
    // What all those have that -smp made.
    let mut common: Option<Vec<ProcessorSetting>> = None;
    for entry in entries {
        let garbage = || QmpError::unexpected("query-cpus-fast", entry.to_string());
        let path = entry.get("qom-path").and_then(Value::as_str);
        let path = path.ok_or_else(garbage)?;
        let index = number(entry.get("cpu-index")).ok_or_else(garbage)?;
        let mut kind = ProcessorKind {
            features: words(property(client, path, "feature-words")?.as_ref()),
            filtered: words(property(client, path, "filtered-features")?.as_ref()),
            settings: Vec::new(),
        };
        let made_by_smp = path.starts_with("/machine/unattached/");
        kind.settings = match &common {
            Some(common) if made_by_smp => common.clone(),
            _ => settings(client, path, &kind, kvm)?,
        };
        if made_by_smp && common.is_none() {
            common = Some(kind.settings.clone());
        }
        implied_by_topology(&mut kind, topology);
        let apic_id = property(client, path, "apic-id")?;
        let tsc_hz = property(client, path, "tsc-frequency")?;
        let known = found.kinds.iter().position(|known| *known == kind);
        let kind = known.unwrap_or_else(|| {
            found.kinds.push(kind);
            found.kinds.len() - 1
        });
        found.processors.push(Processor {
            index,
            kind: u16::try_from(kind).unwrap_or(u16::MAX),
            // An architecture without them numbers its processors otherwise.
            apic_id: number(apic_id.as_ref()).unwrap_or(index),
            tsc_hz: tsc_hz.as_ref().and_then(Value::as_u64).unwrap_or(0),
            place: place(entry.get("props")),
        });
    }
    found.processors.sort_by_key(|processor| processor.index);
    Ok(found)
}

fn number(value: Option<&Value>) -> Option<u32> {
    value?.as_u64()?.try_into().ok()
}

fn topology(smp: Option<&Value>) -> Topology {
    let get = |name| number(smp.and_then(|smp| smp.get(name))).unwrap_or(1);
    Topology {
        sockets: get("sockets"),
        dies: get("dies"),
        modules: get("modules"),
        cores: get("cores"),
        threads: get("threads"),
        most: get("maxcpus"),
    }
}

fn place(props: Option<&Value>) -> Place {
    let get = |name| number(props.and_then(|props| props.get(name)));
    Place {
        socket: get("socket-id").unwrap_or(0),
        die: get("die-id").unwrap_or(0),
        module: get("module-id").unwrap_or(0),
        core: get("core-id").unwrap_or(0),
        thread: get("thread-id").unwrap_or(0),
        node: get("node-id"),
    }
}

/// The words that have a flag set.
fn words(answer: Option<&Value>) -> Vec<CpuidWord> {
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

fn has(kind: &ProcessorKind, (leaf, register, bit): Flag) -> bool {
    let mut words = kind.features.iter();
    words.any(|word| {
        (word.leaf, word.subleaf, word.register) == (leaf, 0, register) && word.bits >> bit & 1 == 1
    })
}

fn set(kind: &mut ProcessorKind, (leaf, register, bit): Flag) {
    for word in &mut kind.features {
        if (word.leaf, word.subleaf, word.register) == (leaf, 0, register) {
            word.bits |= 1 << bit;
        }
    }
}

/// A guest with several processors in a socket sees `ht`, and on AMD's
/// processors `cmp-legacy`, whatever was asked for. QEMU 10.0 has them in its
/// feature words then, 7.2 adds them when the guest asks.
fn implied_by_topology(kind: &mut ProcessorKind, topology: Topology) {
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

/// The properties of one processor that a guest can notice.
fn settings(
    client: &mut Client,
    path: &str,
    kind: &ProcessorKind,
    kvm: bool,
) -> Result<Vec<ProcessorSetting>, QmpError> {
    let listed = client.execute("qom-list", json!({ "path": path }))?;
    let listed = listed
        .as_array()
        .ok_or_else(|| QmpError::unexpected("qom-list", "not a list"))?;
    let names = listed.iter().filter_map(|row| row.get("name")?.as_str());
    let mut settings = Vec::new();
    for name in names.filter(|name| is_noticeable(name, kind, kvm)) {
        if let Some(value) = property(client, path, name)? {
            settings.push(setting(name, &value));
        }
    }
    let quiet = settings.iter().all(|setting| {
        !setting.name.starts_with("hv-")
            || &*setting.value != "on"
                && (&*setting.name != "hv-spinlocks" || *setting.value == *NO_SPINLOCKS)
    });
    if quiet {
        // Versions and names that the guest is not told.
        settings.retain(|setting| !setting.name.starts_with("hv-"));
    }
    let own_caches = has_caches_of_its_own(&settings);
    if own_caches && let Some(Value::String(kind)) = property(client, path, "type")? {
        settings.push(setting(CACHES, &json!(caches_of(&kind))));
    }
    // QEMU 10.0 and later.
    let caches = property(client, "/machine", "smp-cache")?;
    for cache in caches
        .as_ref()
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if let (Some(Value::String(name)), Some(level)) =
            (cache.get("cache"), cache.get("topology"))
            && level != "default"
        {
            settings.push(setting(&format!("smp-cache {name}"), level));
        }
    }
    settings.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(settings)
}

/// Under which name the model is compared that gives the guest its caches.
const CACHES: &str = "CPU model of the caches";

/// Whether the model describes caches (CPUID leaves 2, 4, 80000005h, 80000006h,
/// 8000001Dh). QEMU has no property that says which, so the model's name stands for
/// them. It stands for nothing else: flags, family, levels and the like have
/// properties, and QEMU's `host` is its `max` under KVM. Models without caches of
/// their own share QEMU's, and have `legacy-cache` on.
fn has_caches_of_its_own(settings: &[ProcessorSetting]) -> bool {
    let on = |name| {
        let mut all = settings.iter();
        all.any(|setting| &*setting.name == name && &*setting.value == "on")
    };
    !on("legacy-cache") && !on("host-cache-info")
}

/// `EPYC-v2-x86_64-cpu` has the caches of the model `EPYC`, and so has its other name,
/// `EPYC-IBPB`. A version with other caches has another `model-id` (AMD's) or
/// `x-force-cpuid-0x1f` (Intel's).
fn caches_of(kind: &str) -> &str {
    let model = kind.strip_suffix("-cpu").unwrap_or(kind);
    let model = model.rsplit_once('-').map_or(model, |(model, _)| model);
    let model = match model.rsplit_once("-v") {
        Some((model, version)) if version.parse::<u32>().is_ok() => model,
        _ => model,
    };
    model.strip_suffix("-IBPB").unwrap_or(model)
}

/// `hv-spinlocks` when the guest is not told to use it.
const NO_SPINLOCKS: &str = "4294967295";

fn is_noticeable(name: &str, kind: &ProcessorKind, kvm: bool) -> bool {
    NOTICEABLE.contains(&name)
        // Without KVM a guest is given no enlightenments.
        || kvm && name.starts_with("hv-")
        || has(kind, VMX) && name.starts_with("vmx-")
        || has(kind, PDCM) && matches!(name, "lbr-fmt" | "full-width-write")
        || has(kind, HAS_CORE_CAPABILITY) && name == "split-lock-detect"
        || has(kind, HAS_ARCH_CAPABILITIES)
            && (name.ends_with("-no") || ARCH_CAPABILITIES.contains(&name))
}

fn setting(name: &str, value: &Value) -> ProcessorSetting {
    let value = match value {
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        // The other side refuses a value that is not text.
        Value::String(text) => one_line(text).into_owned(),
        other => other.to_string(),
    };
    ProcessorSetting {
        name: name.into(),
        value: value.into(),
    }
}

/// Whether KVM can run a guest's time-stamp counter at another frequency than
/// this host's.
fn host_scales_tsc() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut words = cpuinfo.split_whitespace();
    // Intel's and AMD's.
    words.any(|word| matches!(word, "tsc_scaling" | "tsc_scale"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failure is the message.
mod tests {
    use hikkoshi_wire::{ToDestination, decode_control, encode_control};

    use super::*;

    fn word(leaf: u32, register: CpuidRegister, bits: u32) -> CpuidWord {
        CpuidWord {
            leaf,
            subleaf: 0,
            register,
            bits,
        }
    }

    #[test]
    fn feature_words_of_both_versions() {
        let answer = json!([
            {"cpuid-register": "EBX", "cpuid-input-ecx": 0, "cpuid-input-eax": 7, "features": 32},
            {"cpuid-register": "EAX", "cpuid-input-eax": 1_073_741_825, "features": 0},
            {"cpuid-register": "EDX", "cpuid-input-eax": 1, "features": 126_614_525},
            {"cpuid-register": "EXX", "cpuid-input-eax": 1, "features": 1},
            {"cpuid-register": "EDX"},
        ]);
        assert_eq!(
            words(Some(&answer)),
            [
                word(1, CpuidRegister::Edx, 126_614_525),
                word(7, CpuidRegister::Ebx, 32)
            ]
        );
        assert_eq!(words(None), []);
    }

    #[test]
    fn what_the_topology_implies_is_the_same_in_every_version() {
        let kind = |edx, vendor: &str| ProcessorKind {
            features: vec![
                word(1, CpuidRegister::Edx, edx),
                word(0x8000_0001, CpuidRegister::Ecx, 1),
            ],
            filtered: vec![],
            settings: vec![setting("vendor", &json!(vendor))],
        };
        let implied = |cores, edx, vendor| {
            let mut kind = kind(edx, vendor);
            let topology = Topology {
                cores,
                ..Topology::default()
            };
            implied_by_topology(&mut kind, topology);
            (has(&kind, HT), has(&kind, CMP_LEGACY))
        };
        assert_eq!(implied(1, 1, "AuthenticAMD"), (false, false));
        assert_eq!(implied(1, 1 << 28, "AuthenticAMD"), (true, false));
        assert_eq!(implied(2, 1, "AuthenticAMD"), (true, true));
        assert_eq!(implied(2, 1, "GenuineIntel"), (true, false));
    }

    #[test]
    fn values_are_what_a_message_can_carry() {
        let value = |value| setting("x", &value).value.to_string();
        assert_eq!(value(json!(true)), "on");
        assert_eq!(value(json!(40)), "40");
        assert_eq!(value(json!("QEMU CPU  ")), "QEMU CPU  ");
        assert_eq!(value(json!("a\u{1b}[2J")), "a?[2J");
        for odd in ["a\u{2028}b", "a\u{202e}b", "a\u{200f}b", "a\nb"] {
            let guest = Processors {
                kinds: vec![ProcessorKind {
                    settings: vec![setting("model-id", &json!(odd))],
                    ..ProcessorKind::default()
                }],
                ..Processors::default()
            };
            let message = ToDestination::Processors {
                processors: guest,
                allow_mismatch: false,
            };
            let payload = encode_control(&message).unwrap();
            assert_eq!(decode_control(&payload), Ok(message), "{odd:?}");
        }
    }

    #[test]
    fn models_with_the_same_caches() {
        for (kind, model) in [
            ("EPYC-x86_64-cpu", "EPYC"),
            ("EPYC-v2-x86_64-cpu", "EPYC"),
            ("EPYC-IBPB-x86_64-cpu", "EPYC"),
            ("EPYC-Rome-v1-x86_64-cpu", "EPYC-Rome"),
            ("some-vendor-x86_64-cpu", "some-vendor"),
            ("odd", "odd"),
        ] {
            assert_eq!(caches_of(kind), model);
        }
    }

    #[test]
    fn groups_of_properties_are_read_where_they_count() {
        let with = |leaf, register, bit: u32| ProcessorKind {
            features: vec![word(leaf, register, 1 << bit)],
            ..ProcessorKind::default()
        };
        let none = ProcessorKind::default();
        assert!(is_noticeable("phys-bits", &none, false));
        assert!(!is_noticeable("x-migrate-smi-count", &none, true));
        assert!(!is_noticeable("ucode-rev", &none, true));
        assert!(!is_noticeable("vmx-ept", &none, true));
        assert!(is_noticeable(
            "vmx-ept",
            &with(1, CpuidRegister::Ecx, 5),
            true
        ));
        assert!(!is_noticeable("hv-time", &none, false));
        assert!(is_noticeable("hv-time", &none, true));
        assert!(!is_noticeable("mds-no", &none, true));
        let msr = with(7, CpuidRegister::Edx, 29);
        assert!(is_noticeable("mds-no", &msr, true) && is_noticeable("rsba", &msr, true));
    }
}
