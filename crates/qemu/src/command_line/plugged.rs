//! Devices, processors and memory that were plugged in or unplugged since QEMU was started.

use serde_json::{Value, json};

use super::destination_line::DestinationLine;
use super::property_text::property_text;
use super::{backends, memory};
use crate::process::options::{Opt, join};
use crate::qmp::qom::{children, property};
use crate::qmp::{Client, QmpError};

/// Properties of a device that say where it is and what is behind it.
const PROPERTIES: [&str; 10] = [
    "addr", "port", "scsi-id", "lun", "unit", "nsid", "drive", "netdev", "chardev", "mac",
];

/// What else devices of some types need, so that the guest finds the same device.
fn more_properties(kind: &str) -> &'static [&'static str] {
    let is = |start| kind.starts_with(start);
    if is("virtio-net") {
        &["mq", "vectors"]
    } else if is("virtserialport") || is("virtconsole") {
        &["nr", "name"]
    } else if is("virtio-blk") {
        &["num-queues"]
    } else if is("virtio-scsi") {
        &["num_queues"]
    } else {
        &[]
    }
}

/// Adds what is not on the source's command line, and leaves out what does not exist any more.
pub(super) fn add(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    leave_out_unplugged(client, line)?;
    memory::add_objects(client, line)?;
    memory::add_dimms(client, line)?;
    add_processors(client, line)?;
    add_devices(client, line)?;
    Ok(())
}

impl DestinationLine {
    pub(super) fn has_id(&self, option: &str, id: &str) -> bool {
        self.options
            .iter()
            .any(|known| known.is(option) && known.get("id", false).as_deref() == Some(id))
    }

    /// Before `-incoming`, which is last. With `-readconfig` it may be in that file.
    pub(super) fn add_option(&mut self, name: &str, value: String) {
        if self.options.iter().any(|option| option.is("readconfig")) {
            self.note(format!(
                "unless the file of -readconfig has it, add: {name} {value}"
            ));
            return;
        }
        let option = Opt::new(name, value);
        self.point_out(&option);
        let at = self.options.len().saturating_sub(1);
        self.options.insert(at, option);
    }
}

fn leave_out_unplugged(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    let existing = children(client, "/machine/peripheral")?;
    let mut gone = Vec::new();
    line.options.retain(|option| {
        let id = option
            .is("device")
            .then(|| option.get("id", false))
            .flatten();
        let keep = id.is_none_or(|id| existing.iter().any(|(name, _)| *name == id));
        if !keep {
            gone.push(option.value().to_owned());
        }
        keep
    });
    if gone.is_empty() {
        return Ok(());
    }
    for value in gone {
        line.note(format!(
            "left out, because it was unplugged: -device {value}"
        ));
    }
    pin(client, line)
}

/// Places that QEMU gives to devices in their order: a device that is left out would move those
/// after it.
const PLACES: [&str; 7] = ["addr", "port", "scsi-id", "lun", "unit", "nr", "mac"];

/// Gives each device of the command line the place that it has.
fn pin(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    let mut unknown = Vec::new();
    for option in line.options.iter_mut().filter(|option| option.is("device")) {
        let Some(id) = option.get("id", false) else {
            if option.get("addr", false).is_none() {
                unknown.push(format!("-device {}", option.value()));
            }
            continue;
        };
        for name in PLACES {
            if option.get(name, false).is_some() {
                continue;
            }
            let value = property(client, &format!("/machine/peripheral/{id}"), name)?;
            if let Some(value) = place(name, value) {
                option.set(name, Some(&value));
            }
        }
    }
    let others = line.options.iter().filter(|option| {
        let is_card = option.is("nic") || option.is("net");
        is_card
            && option
                .get("macaddr", false)
                .or(option.get("mac", false))
                .is_none()
    });
    let others = others.map(|option| format!("{} {}", option.name, option.value()));
    unknown.extend(others.filter(|option| !option.ends_with(" none")));
    if !unknown.is_empty() {
        line.note(format!(
            "a device was unplugged, so QEMU would give other PCI slots and MAC addresses to those \
             after it: give these their addr= and mac=: {}",
            unknown.join(", ")
        ));
    }
    Ok(())
}

/// A place as on the command line; `None` if the device has none of this kind.
fn place(name: &str, value: Option<Value>) -> Option<String> {
    if name == "addr" {
        return pci_address(&value?);
    }
    property_text(value).filter(|value| !value.starts_with('-'))
}

fn add_processors(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    let answer = match client.execute("query-hotpluggable-cpus", json!({})) {
        Ok(answer) => answer,
        // A machine without them (`microvm`).
        Err(error) if error.is_refusal() => return Ok(()),
        Err(error) => return Err(error),
    };
    // The highest first in QEMU's answer.
    for row in answer.as_array().into_iter().flatten().rev() {
        let text = |key| row.get(key).and_then(Value::as_str);
        let (Some(kind), Some(path)) = (text("type"), text("qom-path")) else {
            continue; // Not plugged in.
        };
        let Some(place) = path.strip_prefix("/machine/peripheral") else {
            continue; // Of -smp.
        };
        let id = place.strip_prefix('/').filter(|id| !id.contains('/'));
        if id.is_some_and(|id| line.has_id("device", id)) {
            continue;
        }
        let mut parts = vec![kind.to_owned()];
        parts.extend(id.map(|id| format!("id={id}")));
        let props = row.get("props").and_then(Value::as_object);
        for (key, value) in props.into_iter().flatten() {
            parts.push(format!("{key}={value}"));
        }
        line.add_option("-device", join(&parts));
    }
    Ok(())
}

fn add_devices(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    // Buses before the devices on them.
    let mut later = children(client, "/machine/peripheral")?;
    later.retain(|(id, _)| !line.has_id("device", id));
    later.sort_by_key(|(_, kind)| !is_bus(kind));
    for (id, kind) in later {
        add_device(client, line, &id, kind)?;
    }
    let anonymous = children(client, "/machine/peripheral-anon")?.len();
    let without_id = line
        .options
        .iter()
        .filter(|option| option.is("device") && option.get("id", false).is_none());
    let without_id = without_id.count();
    if anonymous > without_id {
        line.note(format!(
            "{anonymous} devices have no id, and {without_id} of the command line: the others came \
             from other options (-drive, -nic, -vga, ...) or were plugged in later; 'hikkoshi check \
             --to INVITATION' compares the devices"
        ));
    }
    Ok(())
}

/// Whether devices of this type have buses for others.
fn is_bus(kind: &str) -> bool {
    let parts = [
        "root-port",
        "bridge",
        "switch",
        "hub",
        "scsi",
        "xhci",
        "ehci",
        "serial-pci",
    ];
    parts.iter().any(|part| kind.contains(part)) && !kind.starts_with("scsi-")
}

fn add_device(
    client: &mut Client,
    line: &mut DestinationLine,
    id: &str,
    kind: String,
) -> Result<(), QmpError> {
    let path = format!("/machine/peripheral/{id}");
    let names = PROPERTIES.iter().chain(more_properties(&kind));
    let mut parts = vec![kind, format!("id={id}")];
    let mut missing = Vec::new();
    if let Some(bus) = property_text(property(client, &path, "parent_bus")?) {
        let bus = bus.rsplit('/').next().unwrap_or_default();
        parts.push(format!("bus={bus}"));
    }
    for &name in names {
        let value = property(client, &path, name)?;
        let value = if name == "addr" {
            value.as_ref().and_then(pci_address)
        } else {
            property_text(value)
        };
        let Some(value) = value else {
            continue;
        };
        if !add_backend(client, line, name, &value)? {
            missing.push(format!("-{name} {value}"));
        }
        let value = match name {
            "drive" => backends::node_name(&value),
            _ => value,
        };
        parts.push(format!("{name}={value}"));
    }
    let option = join(&parts);
    if missing.is_empty() {
        line.note(format!(
            "-device {option}: was plugged in later; other properties than these are not known \
             here, add those that it was given"
        ));
        line.add_option("-device", option);
    } else {
        line.note(format!(
            "to be added, because it was plugged in later: {} (its options are not known here) \
             and -device {option}",
            missing.join(", ")
        ));
    }
    Ok(())
}

/// Adds the backend that the property `name` of a device refers to, unless it is there. `false` if
/// it is not known.
fn add_backend(
    client: &mut Client,
    line: &mut DestinationLine,
    name: &str,
    value: &str,
) -> Result<bool, QmpError> {
    let options: &[&str] = match name {
        "drive" => &["blockdev", "drive"],
        "netdev" => &["netdev"],
        "chardev" => &["chardev"],
        _ => return Ok(true),
    };
    if has_backend(line, options, value) {
        return Ok(true);
    }
    match name {
        "netdev" => {
            let Some(option) = backends::netdev(client, value)? else {
                return Ok(false);
            };
            line.note(format!(
                "-netdev {option}: was added later; its other options are not known here"
            ));
            line.add_option("-netdev", option);
        }
        "drive" => return add_blockdevs(client, line, value),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Adds the block node `name` and those below it, unless they are there. `false` if they are not
/// known.
pub(super) fn add_blockdevs(
    client: &mut Client,
    line: &mut DestinationLine,
    name: &str,
) -> Result<bool, QmpError> {
    let is_known = |node: &str| has_backend(line, &["blockdev"], node);
    let Some(options) = backends::blockdevs(client, name, is_known)? else {
        return Ok(false);
    };
    for option in options {
        let known = Opt::new("-blockdev", &*option).get("node-name", false);
        if known.is_none_or(|node| !has_backend(line, &["blockdev"], &node)) {
            line.note(format!(
                "-blockdev {option}: was added later; its other options (aio, discard, ...) are \
                 not known here"
            ));
            line.add_option("-blockdev", option);
        }
    }
    Ok(true)
}

fn has_backend(line: &DestinationLine, options: &[&str], name: &str) -> bool {
    line.options.iter().any(|option| {
        let id = option.get("id", false).or(option.get("node-name", false));
        options.iter().any(|kind| option.is(kind)) && id.as_deref() == Some(name)
    })
}

/// A PCI address as on the command line, `SLOT.FUNCTION` in hexadecimal. QEMU reports it as a
/// number: eight functions a slot.
fn pci_address(value: &Value) -> Option<String> {
    let number = value.as_u64().filter(|number| *number < 256)?;
    Some(format!("{:x}.{:x}", number >> 3, number & 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_slot_and_function() {
        assert_eq!(pci_address(&json!(0)).as_deref(), Some("0.0"));
        assert_eq!(pci_address(&json!(0xfb)).as_deref(), Some("1f.3"));
        assert_eq!(pci_address(&json!(-1)), None);
        assert_eq!(pci_address(&json!("05.0")), None);
    }

    #[test]
    fn a_place_that_is_not_set_is_not_pinned() {
        assert_eq!(place("addr", Some(json!(0x28))).as_deref(), Some("5.0"));
        assert_eq!(place("scsi-id", Some(json!(3))).as_deref(), Some("3"));
        assert_eq!(place("scsi-id", Some(json!(-1))), None);
        assert_eq!(place("mac", None), None);
    }
}
