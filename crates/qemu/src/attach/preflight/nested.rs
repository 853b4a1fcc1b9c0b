//! Guests that may run guests of their own.
//!
//! While an inner guest runs, KVM and the processor write to structures of the
//! inner hypervisor that are in the guest's memory: its virtual APIC pages,
//! posted-interrupt descriptors, its VMCS or VMCB. KVM maps these pages when the
//! inner guest is entered and writes to them by their physical addresses. The
//! page tables of QEMU's process, and with them the dirty log, see the mapping,
//! but not the writes (`nested_get_vmcs12_pages` in the kernel's
//! `arch/x86/kvm/vmx/nested.c`; KVM's own dirty log sees them). With the guest
//! paused, nothing is mapped any more.
//!
//! Emulated processors (TCG) write everything by the page tables.

use serde_json::{Value, json};

use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// The processor features that let a guest run guests: Intel's and AMD's.
const FEATURES: [&str; 2] = ["vmx", "svm"];

/// The feature with which this guest could run guests of its own under KVM.
/// `None` if it has none.
pub(crate) fn feature(client: &mut Client) -> Result<Option<&'static str>, QmpError> {
    let kvm = client.execute("query-kvm", json!({}))?;
    if kvm.get("enabled").and_then(Value::as_bool) == Some(false) {
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
            // What was asked for and this host lacks reads as off.
            if property(client, path, feature)? == Some(Value::Bool(true)) {
                return Ok(Some(feature));
            }
        }
    }
    Ok(None)
}
