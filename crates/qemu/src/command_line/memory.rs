//! Memory that was plugged in later, with its backends.

use serde_json::{Value, json};

use super::destination_line::DestinationLine;
use super::property_text::property_text;
use crate::process::options::join;
use crate::qmp::qom::{children, property};
use crate::qmp::{Client, QmpError};
use crate::ram::backend::{self, Backend};

/// Properties of a backend, beside its size, its file and whether it is shared, and QEMU's defaults
/// (`backends/hostmem*.c` of QEMU 7.2 and 10.0; a backend has some of them only).
fn defaults() -> [(&'static str, Value); 14] {
    [
        ("offset", json!(0)),
        ("align", json!(0)),
        ("readonly", json!(false)),
        ("pmem", json!(false)),
        ("discard-data", json!(false)),
        ("reserve", json!(true)),
        ("prealloc", json!(false)),
        ("hugetlb", json!(false)),
        ("hugetlbsize", json!(0)),
        ("seal", json!(true)),
        ("merge", json!(true)),
        ("dump", json!(true)),
        ("host-nodes", json!([])),
        ("policy", json!("default")),
    ]
}

/// Adds the memory backends and other objects that are not on the command line.
pub(super) fn add_objects(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    let backends = backend::list(client)?;
    for (id, kind) in children(client, "/objects")? {
        // QEMU makes the main memory's backend itself, with `-m` or `-mem-path` only.
        let own = matches!(id.as_str(), "pc.ram" | "microvm.ram");
        // From QEMU 11.1 on each monitor is an object, also those of other options than -object.
        let is_monitor = matches!(kind.as_str(), "monitor-qmp" | "monitor-hmp");
        if own || is_monitor || line.has_id("object", &id) {
            continue;
        }
        let Some(backend) = backends.iter().find(|backend| backend.id == id) else {
            line.note(format!(
                "the object {id} ({kind}) was added later: add an -object option for it; its \
                 properties are not known here"
            ));
            continue;
        };
        let mut more = Vec::new();
        for (name, default) in defaults() {
            let value = property(client, &backend.qom_path(), name)?;
            more.extend(
                value
                    .filter(|value| *value != default)
                    .map(|value| (name, value)),
            );
        }
        line.add_option("-object", backend_option(backend, &more));
    }
    Ok(())
}

/// The value of `-object`; `more`: properties that are not as usual.
fn backend_option(backend: &Backend, more: &[(&str, Value)]) -> String {
    let on = |flag| if flag { "on" } else { "off" };
    let mut parts = vec![
        backend.kind.clone(),
        format!("id={}", backend.id),
        format!("size={}", backend.bytes),
        format!("share={}", on(backend.share)),
    ];
    parts.extend(backend.path.iter().map(|path| format!("mem-path={path}")));
    for (name, value) in more {
        match value {
            Value::Bool(flag) => parts.push(format!("{name}={}", on(*flag))),
            Value::String(text) => parts.push(format!("{name}={text}")),
            // The key is repeated for each element of a list.
            Value::Array(all) => parts.extend(all.iter().map(|one| format!("{name}={one}"))),
            other => parts.push(format!("{name}={other}")),
        }
    }
    join(&parts)
}

/// Adds the DIMMs that are not on the command line.
pub(super) fn add_dimms(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    let answer = client.execute("query-memory-devices", json!({}))?;
    for row in answer.as_array().into_iter().flatten() {
        let kind = row.get("type").and_then(Value::as_str).unwrap_or("?");
        let driver = match kind {
            "dimm" => "pc-dimm",
            "nvdimm" => "nvdimm",
            // If it has an id, it is among the devices.
            _ => continue,
        };
        let data = row.get("data");
        let text = |key| data?.get(key)?.as_str();
        let number = |key| data?.get(key)?.as_u64();
        let Some(id) = text("id") else {
            line.note(format!(
                "a memory device ({kind}) has no id: add it by hand"
            ));
            continue;
        };
        if line.has_id("device", id) {
            continue;
        }
        let memdev = text("memdev").unwrap_or_default().rsplit('/').next();
        let mut parts = vec![driver.to_owned(), format!("id={id}")];
        parts.extend(memdev.map(|memdev| format!("memdev={memdev}")));
        for key in ["addr", "slot", "node"] {
            parts.extend(number(key).map(|value| format!("{key}={value}")));
        }
        if driver == "nvdimm" {
            let path = format!("/machine/peripheral/{id}");
            for key in ["label-size", "uuid"] {
                let value = property(client, &path, key)?;
                parts.extend(
                    property_text(value)
                        .filter(|value| value != "0")
                        .map(|value| format!("{key}={value}")),
                );
            }
            if property(client, &path, "unarmed")? == Some(Value::Bool(true)) {
                parts.push("unarmed=on".to_owned());
            }
        }
        line.add_option("-device", join(&parts));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_with_all_of_its_properties() {
        let backend = Backend {
            id: "m".to_owned(),
            kind: "memory-backend-memfd".to_owned(),
            bytes: 1 << 21,
            share: true,
            reserve: true,
            readonly: false,
            path: None,
            offset: 0,
        };
        let more = [
            ("hugetlb", json!(true)),
            ("hugetlbsize", json!(1 << 21)),
            ("seal", json!(false)),
            ("host-nodes", json!([0, 1])),
            ("policy", json!("bind")),
        ];
        assert_eq!(
            backend_option(&backend, &more),
            "memory-backend-memfd,id=m,size=2097152,share=on,hugetlb=on,hugetlbsize=2097152,\
             seal=off,host-nodes=0,host-nodes=1,policy=bind"
        );
    }
}
