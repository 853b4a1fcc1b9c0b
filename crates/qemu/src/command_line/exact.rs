//! What the running QEMU says about itself.

use serde_json::{Value, json};

use crate::qmp::qom::property;
use crate::qmp::{Client, QmpError};

/// What the running QEMU says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exact {
    /// The machine type with its version, such as `pc-i440fx-7.2`.
    pub(crate) machine: String,
    /// The processor model, such as `qemu64` or `Skylake-Client-v1`.
    pub(crate) cpu: String,
}

impl Exact {
    pub(crate) fn query(client: &mut Client) -> Result<Self, QmpError> {
        let text = |value: Option<Value>| {
            let text = value.as_ref().and_then(Value::as_str).map(str::to_owned);
            text.ok_or_else(|| QmpError::unexpected("qom-get", "no type"))
        };
        let machine = text(property(client, "/machine", "type")?)?;
        let cpus = client.execute("query-cpus-fast", json!({}))?;
        let path = cpus
            .get(0)
            .and_then(|cpu| cpu.get("qom-path"))
            .and_then(Value::as_str)
            .ok_or_else(|| QmpError::unexpected("query-cpus-fast", "no processors"))?;
        let cpu = text(property(client, path, "type")?)?;
        let strip = |text: &str, end: &str| text.strip_suffix(end).unwrap_or(text).to_owned();
        Ok(Self {
            machine: strip(&machine, "-machine"),
            cpu: strip(&strip(&cpu, "-x86_64-cpu"), "-cpu"),
        })
    }
}
