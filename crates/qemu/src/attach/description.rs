//! The description of the machine that both sides compare.

use hikkoshi_memory::GuestRam;
use hikkoshi_wire::GuestDescription;
use serde_json::{Value, json};

use crate::qmp::accelerator::uses_kvm;
use crate::qmp::migration_status;
use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// Describes the machine. The other side must have the same.
pub(crate) fn describe(client: &mut Client, ram: &GuestRam) -> Result<GuestDescription, QmpError> {
    let machine = property(client, "/machine", "type")?;
    let machine = machine
        .as_ref()
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("qom-get", "no machine type"))?;
    let target = client.execute("query-target", json!({}))?;
    let architecture = target
        .get("arch")
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("query-target", target.to_string()))?;
    let cpus = client.execute("query-cpus-fast", json!({}))?;
    let cpus = cpus
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "not a list"))?;
    let cpu_path = cpus
        .first()
        .and_then(|cpu| cpu.get("qom-path"))
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "no processors"))?;
    let cpu = property(client, cpu_path, "type")?;
    let cpu = cpu
        .as_ref()
        .and_then(Value::as_str)
        .ok_or_else(|| QmpError::unexpected("qom-get", "no processor type"))?;
    Ok(GuestDescription {
        machine: strip(machine, "-machine").to_owned(),
        architecture: architecture.to_owned(),
        cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        cpu_model: cpu_model(cpu, architecture, uses_kvm(client)?),
        hypervisor: format!("QEMU {}", client.version()),
        running: migration_status::run_state(client)?.running,
        blocks: GuestDescription::describe_blocks(ram.layout()),
    })
}

/// `qemu64-x86_64-cpu` is the model `qemu64`. The accelerator is part of it: a model has
/// other features under KVM than under TCG, and QEMU does not support moving between
/// the two.
fn cpu_model(kind: &str, architecture: &str, kvm: bool) -> String {
    let model = strip(strip(kind, "-cpu"), architecture);
    let model = strip(model, "-");
    format!("{model} ({})", if kvm { "KVM" } else { "emulated" })
}

fn strip<'a>(text: &'a str, end: &str) -> &'a str {
    text.strip_suffix(end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_models_are_named_as_on_the_command_line() {
        assert_eq!(
            cpu_model("qemu64-x86_64-cpu", "x86_64", true),
            "qemu64 (KVM)"
        );
        assert_eq!(
            cpu_model("Skylake-Client-v1-x86_64-cpu", "x86_64", false),
            "Skylake-Client-v1 (emulated)"
        );
        assert_eq!(cpu_model("odd", "x86_64", false), "odd (emulated)");
    }
}
