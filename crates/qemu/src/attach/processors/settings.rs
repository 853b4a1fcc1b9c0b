//! Properties of a processor that a guest can notice, besides the flags.

use hikkoshi_wire::{ProcessorKind, ProcessorSetting, text::one_line};
use serde_json::{Value, json};

use super::features::{HAS_ARCH_CAPABILITIES, HAS_CORE_CAPABILITY, PDCM, VMX, has};
use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// Properties that a guest can notice, besides the flags: they determine CPUID leaves, and
/// whether some leaves exist.
///
/// Not `ucode-rev`: `-cpu host` copies it from the host, so a guest could not leave a host
/// that needs a microcode update. A guest reads the revision when it boots, and the
/// revision does not determine what works.
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

/// Reads the properties of one processor that a guest can notice.
pub(super) fn settings(
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
    let no_enlightenments = settings.iter().all(|setting| {
        !setting.name.starts_with("hv-")
            || &*setting.value != "on"
                && (&*setting.name != "hv-spinlocks" || *setting.value == *NO_SPINLOCKS)
    });
    if no_enlightenments {
        // The guest does not see these versions and names.
        settings.retain(|setting| !setting.name.starts_with("hv-"));
    }
    let own_caches = describes_caches(&settings);
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

/// The name of the setting for the CPU model that determines the caches.
const CACHES: &str = "CPU model of the caches";

/// Whether the model describes caches (CPUID leaves 2, 4, 80000005h, 80000006h,
/// 8000001Dh). QEMU has no property for them, so the model's name is compared
/// instead. It represents only the caches: flags, family, levels and the like have
/// properties, and QEMU's `host` is its `max` under KVM. Models that do not describe
/// caches share QEMU's, and have `legacy-cache` on.
fn describes_caches(settings: &[ProcessorSetting]) -> bool {
    let on = |name| {
        let mut all = settings.iter();
        all.any(|setting| &*setting.name == name && &*setting.value == "on")
    };
    !on("legacy-cache") && !on("host-cache-info")
}

/// `EPYC-v2-x86_64-cpu` has the caches of the model `EPYC`, and so has its alias
/// `EPYC-IBPB`. A version with other caches has another `model-id` (AMD's) or
/// `x-force-cpuid-0x1f` (Intel's).
pub(super) fn caches_of(kind: &str) -> &str {
    let model = kind.strip_suffix("-cpu").unwrap_or(kind);
    let model = model.rsplit_once('-').map_or(model, |(model, _)| model);
    let model = match model.rsplit_once("-v") {
        Some((model, version)) if version.parse::<u32>().is_ok() => model,
        _ => model,
    };
    model.strip_suffix("-IBPB").unwrap_or(model)
}

/// The value of `hv-spinlocks` if the guest does not see it.
const NO_SPINLOCKS: &str = "4294967295";

pub(super) fn is_noticeable(name: &str, kind: &ProcessorKind, kvm: bool) -> bool {
    NOTICEABLE.contains(&name)
        // Only KVM offers enlightenments.
        || kvm && name.starts_with("hv-")
        || has(kind, VMX) && name.starts_with("vmx-")
        || has(kind, PDCM) && matches!(name, "lbr-fmt" | "full-width-write")
        || has(kind, HAS_CORE_CAPABILITY) && name == "split-lock-detect"
        || has(kind, HAS_ARCH_CAPABILITIES)
            && (name.ends_with("-no") || ARCH_CAPABILITIES.contains(&name))
}

pub(super) fn setting(name: &str, value: &Value) -> ProcessorSetting {
    let value = match value {
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        // The other side refuses values with control characters.
        Value::String(text) => one_line(text).into_owned(),
        other => other.to_string(),
    };
    ProcessorSetting {
        name: name.into(),
        value: value.into(),
    }
}
