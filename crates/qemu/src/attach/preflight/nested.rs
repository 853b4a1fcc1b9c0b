//! Guests that can run nested guests.
//!
//! While a nested guest runs, KVM and the processor write to structures of the
//! nested hypervisor in the guest's memory: its virtual APIC pages,
//! posted-interrupt descriptors, and VMCS or VMCB. KVM maps these pages when it
//! enters the nested guest and writes to them by their physical addresses. The page
//! tables of QEMU's process, and therefore the dirty log, see the mapping, but not
//! the writes (`nested_get_vmcs12_pages` in the kernel's
//! `arch/x86/kvm/vmx/nested.c`; KVM's own dirty log sees them). When the guest is
//! paused, these pages are no longer mapped.
//!
//! Emulated processors (TCG) write everything through the page tables.

use serde_json::{Value, json};

use crate::qmp::accelerator::uses_kvm;
use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// The processor features for nested guests: Intel's and AMD's.
const FEATURES: [&str; 2] = ["vmx", "svm"];

/// The feature with which this guest can run nested guests under KVM. `None` if it
/// has none.
pub(crate) fn feature(client: &mut Client) -> Result<Option<&'static str>, QmpError> {
    if !uses_kvm(client)? {
        return Ok(None);
    }
    let cpus = client.execute("query-cpus-fast", json!({}))?;
    let cpus = cpus
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "not a list"))?;
    for cpu in cpus {
        let path = cpu
            .get("qom-path")
            .and_then(Value::as_str)
            .ok_or_else(|| QmpError::unexpected("query-cpus-fast", cpu.to_string()))?;
        for feature in FEATURES {
            // A requested feature that this host does not have reads as off.
            if property(client, path, feature)? == Some(Value::Bool(true)) {
                return Ok(Some(feature));
            }
        }
    }
    Ok(None)
}
