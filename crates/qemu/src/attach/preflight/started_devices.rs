//! The devices of a QEMU whose monitor is not available, from the options with which it was
//! started: a libvirt domain that waits for its guest (`destination/piped/`).
//!
//! The source has checked its own devices by their monitor (`check_devices.rs`), and the domain is
//! made from its description. But an operator can give another one (`receive --xml`), and libvirt
//! compares neither the backends of network cards nor what stands behind a device.

use std::io;

use hikkoshi_linux::Process;
use serde_json::{Map, Value};

use super::devices::{self, MemoryWrites};
use super::{Refusal, other_process};
use crate::process::options::{keys, started_options};

/// The devices, objects and network backends that no mode supports. Unknown types are not among
/// them: the source has refused its own, or its operator has allowed them.
///
/// # Errors
///
/// The command line cannot be read.
pub(crate) fn check(process: &Process) -> io::Result<Vec<Refusal>> {
    let options = started_options(process)?;
    let options = options.iter().map(|(name, value)| (&**name, &**value));
    let chardev = |name: &str| other_process::of_chardev(process.pid(), name);
    Ok(refused(options, chardev))
}

/// Those of these options, with their values. `process` names the process behind a chardev.
fn refused<'a>(
    options: impl Iterator<Item = (&'a str, &'a str)>,
    process: impl Fn(&str) -> Option<String>,
) -> Vec<Refusal> {
    let mut found = Vec::new();
    for (option, value) in options {
        let first = match option {
            "device" => "driver",
            "object" => "qom-type",
            "netdev" | "nic" => "type",
            _ => continue,
        };
        let Some(keys) = keys(value, first) else {
            continue;
        };
        let text = |key: &str| keys.get(key).and_then(Value::as_str);
        let Some(kind) = text(first) else { continue };
        let (writes, kind) = match first {
            "type" => (of_network(kind, &keys), format!("{kind} network backend")),
            _ => (devices::of_type(kind), kind.to_owned()),
        };
        // Until the pause, others may write into pinned pages: here nothing runs before.
        if let MemoryWrites::Refused(why) = writes {
            let process = text("chardev").and_then(&process);
            found.push(Refusal::Device {
                path: text("id").unwrap_or("without an id").to_owned(),
                kind,
                why,
                process: process.unwrap_or_default(),
            });
        }
    }
    found
}

/// How a network backend with these options writes memory. `passt` is a program beside QEMU, which
/// has the guest's memory only by vhost-user.
fn of_network(kind: &str, keys: &Map<String, Value>) -> MemoryWrites {
    let by_vhost_user = match keys.get("vhost-user") {
        Some(Value::Bool(on)) => *on,
        Some(Value::String(on)) => on == "on",
        _ => false,
    };
    let info = match by_vhost_user {
        true => "vhost-user",
        false => "stream,",
    };
    devices::of_network(kind, info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(options: &[(&str, &str)]) -> Vec<String> {
        let process = |chardev: &str| Some(format!(" (process 7, behind {chardev})"));
        let refused = refused(options.iter().copied(), process).into_iter();
        refused.map(|refusal| refusal.to_string()).collect()
    }

    #[test]
    fn what_another_process_writes_for_is_refused() {
        let found = texts(&[
            (
                "netdev",
                r#"{"type":"vhost-user","chardev":"c1","id":"hostnet0"}"#,
            ),
            (
                "device",
                r#"{"driver":"vhost-user-fs-pci","id":"fs0","chardev":"c2"}"#,
            ),
            ("device", "vfio-pci,host=0000:01:00.0"),
            ("netdev", "passt,id=n1,vhost-user=on"),
        ]);
        let parts = [
            [
                "hostnet0 is a vhost-user network backend",
                "(process 7, behind c1)",
            ],
            ["fs0 is a vhost-user-fs-pci", "(process 7, behind c2)"],
            ["without an id is a vfio-pci", "lost in any mode; unplug"],
            ["n1 is a passt network backend", "lost in any mode; unplug"],
        ];
        assert_eq!(found.len(), parts.len(), "{found:?}");
        for (text, parts) in found.iter().zip(parts) {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn what_libvirt_starts_is_accepted() {
        let found = texts(&[
            (
                "object",
                r#"{"qom-type":"secret","id":"masterKey0","format":"raw"}"#,
            ),
            ("object", r#"{"qom-type":"monitor-qmp","id":"monitor"}"#),
            ("netdev", r#"{"type":"tap","fd":"29","id":"hostnet0"}"#),
            (
                "netdev",
                r#"{"type":"stream","addr":{"type":"unix","path":"/p"},"id":"n1"}"#,
            ),
            ("netdev", "passt,id=n2"),
            (
                "device",
                r#"{"driver":"virtio-net-pci","netdev":"hostnet0","id":"net0"}"#,
            ),
            ("device", "of-the-future,id=new"),
            ("chardev", "socket,id=c1,path=/p"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
