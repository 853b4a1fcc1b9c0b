//! Reads the machine's devices with their bus addresses, and the memory that is part
//! of the device state.
//!
//! The sources are QEMU's `info qtree`, whose format is the same in all supported
//! versions, and the list of RAM blocks ([`blocks`]). QMP cannot report the address of a device
//! behind a bridge before the guest has numbered the buses.

use hikkoshi_wire::{AuxiliaryBlock, Device, Machine};

use crate::qmp::human_monitor::human;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};
use crate::ram::blocks;

/// Queries QEMU.
pub(crate) fn read(client: &mut Client) -> Result<Machine, QmpError> {
    let nodes = parse_tree(&human(client, "info qtree")?);
    let mut devices: Vec<_> = nodes.iter().filter_map(listed).collect();
    // Devices without a bus: from the QOM folders of users' devices.
    for folder in ["/machine/peripheral", "/machine/peripheral-anon"] {
        for (name, kind) in qom::children(client, folder)? {
            let on_a_bus = nodes
                .iter()
                .any(|node| node.kind == kind && node.bus != "System");
            if on_a_bus || kind.ends_with("-cpu") || kind.ends_with("loader") {
                continue; // Processors are compared separately.
            }
            devices.push(Device {
                place: "".into(),
                kind: kind.into(),
                name: name.into(),
                pci: 0,
            });
        }
    }
    let auxiliary = blocks::list(client)?
        .into_iter()
        .map(|block| AuxiliaryBlock {
            name: block.name.into(),
            bytes: block.used,
            most: block.total,
        });
    Ok(Machine {
        devices,
        auxiliary: auxiliary.collect(),
    })
}

/// Where the guest sees a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DrivePlace {
    /// The name of the block backend that the device uses, or of its block node.
    pub(crate) drive: String,
    /// The device's id. May be empty.
    pub(crate) id: String,
    /// Its buses and its addresses on them, as in [`Device::place`].
    pub(crate) place: String,
}

/// The places of all devices that have a drive. Those without an address have none.
pub(crate) fn drive_places(client: &mut Client) -> Result<Vec<DrivePlace>, QmpError> {
    Ok(places_in(&human(client, "info qtree")?))
}

fn places_in(qtree: &str) -> Vec<DrivePlace> {
    let place = |node: Node| {
        let place = node.place.filter(|_| !node.drive.is_empty())?;
        Some(DrivePlace {
            drive: node.drive,
            id: node.id,
            place,
        })
    };
    parse_tree(qtree).into_iter().filter_map(place).collect()
}

/// A device in QEMU's tree.
#[derive(Debug, Default)]
struct Node {
    kind: String,
    id: String,
    /// What its property `drive` names.
    drive: String,
    /// The type of the bus that it is on.
    bus: String,
    /// Its address, if it is on a bus with addresses (or behind one).
    place: Option<String>,
    /// The prefix of the address: the buses above.
    above: String,
    address: Option<String>,
    scsi: [Option<String>; 3],
    pci: u32,
    /// The number of its buses so far.
    buses: usize,
}

/// A level of the tree.
enum Level {
    Bus { kind: String, above: String },
    Device(usize),
}

/// Parses `info qtree`. Each level is indented by two more blanks: `bus: NAME` contains
/// `type TYPE` and `dev: TYPE, id "ID"`, which contains properties and buses.
fn parse_tree(text: &str) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut levels: Vec<(usize, Level)> = Vec::new();
    for line in text.lines() {
        let line = line.trim_end();
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        while levels.last().is_some_and(|(above, _)| *above >= indent) {
            if let Some((_, Level::Device(number))) = levels.pop() {
                set_address(&mut nodes, number);
            }
        }
        if let Some(name) = text.strip_prefix("bus: ") {
            let above = match levels.last() {
                Some((_, Level::Device(number))) => {
                    set_address(&mut nodes, *number);
                    bus_of(&mut nodes, *number, name)
                }
                _ => name.to_owned(),
            };
            let kind = String::new();
            levels.push((indent, Level::Bus { kind, above }));
        } else if let Some(device) = text.strip_prefix("dev: ") {
            let (bus, above) = match levels.last() {
                Some((_, Level::Bus { kind, above })) => (kind.clone(), above.clone()),
                _ => (String::new(), String::new()),
            };
            let (kind, id) = device.split_once(", id ").unwrap_or((device, ""));
            nodes.push(Node {
                kind: kind.to_owned(),
                id: id.trim_matches('"').to_owned(),
                bus,
                above,
                ..Node::default()
            });
            levels.push((indent, Level::Device(nodes.len() - 1)));
        } else {
            match levels.last_mut() {
                Some((_, Level::Bus { kind, .. })) => {
                    if let Some(name) = text.strip_prefix("type ") {
                        name.clone_into(kind);
                    }
                }
                Some((_, Level::Device(number))) => {
                    if let Some(node) = nodes.get_mut(*number) {
                        property(node, text);
                    }
                }
                None => {}
            }
        }
    }
    while let Some((_, level)) = levels.pop() {
        if let Level::Device(number) = level {
            set_address(&mut nodes, number);
        }
    }
    nodes
}

/// The prefix of addresses on this bus of device `number`. (The order of a device's
/// buses is always the same.)
fn bus_of(nodes: &mut [Node], number: usize, name: &str) -> String {
    let Some(node) = nodes.get_mut(number) else {
        return name.to_owned();
    };
    let index = node.buses;
    node.buses += 1;
    match (&node.place, index) {
        (None, _) => name.to_owned(),
        (Some(place), 0) => place.clone(),
        (Some(place), index) => format!("{place}/bus{index}"),
    }
}

/// Sets the address of a device whose properties have all been read.
fn set_address(nodes: &mut [Node], number: usize) {
    let Some(node) = nodes.get_mut(number) else {
        return;
    };
    if node.place.is_some() {
        return;
    }
    if is_transparent(&node.bus) {
        node.place = Some(node.above.clone());
        return;
    }
    let address = match &node.scsi {
        [Some(channel), Some(id), Some(lun)] => Some(format!("{channel}:{id}:{lun}")),
        _ => node.address.clone(),
    };
    node.place = address.map(|address| format!("{}/{address}", node.above));
}

/// A bus between the two halves of a virtio device.
fn is_transparent(bus: &str) -> bool {
    bus.starts_with("virtio-") && bus != "virtio-serial-bus"
}

/// The name of the property with the address on a bus of this type.
fn address_on(bus: &str) -> Option<&'static str> {
    Some(match bus {
        "PCI" | "PCIE" | "CXL" | "pxb-bus" | "pxb-pcie-bus" | "pxb-cxl-bus" => "addr",
        "IDE" | "floppy-bus" => "unit",
        "virtio-serial-bus" => "nr",
        "HDA" => "cad",
        "ccid-bus" => "slot",
        "nvme-bus" => "nsid",
        _ => return None,
    })
}

fn property(node: &mut Node, text: &str) {
    if let Some((name, value)) = text.split_once(" = ") {
        // `unit = 0 (0x0)`.
        let value = value.split(' ').next().unwrap_or_default().to_owned();
        let scsi = ["channel", "scsi-id", "lun"];
        if name == "drive" {
            value.trim_matches('"').clone_into(&mut node.drive);
        } else if address_on(&node.bus) == Some(name) {
            node.address = Some(value);
        } else if node.bus == "SCSI"
            && let Some(place) = scsi.iter().position(|part| *part == name)
            && let Some(part) = node.scsi.get_mut(place)
        {
            *part = Some(value);
        }
    } else if text.starts_with("class ")
        && let Some((_, after)) = text.split_once("pci id ")
        && let Some((vendor, after)) = after.split_once(':')
    {
        let device = after.split(' ').next().unwrap_or_default();
        let number = |text| u32::from_str_radix(text, 16).unwrap_or(0) & 0xffff;
        node.pci = number(vendor) << 16 | number(device);
    } else if node.bus == "usb-bus"
        && text.starts_with("addr ")
        && let Some((_, after)) = text.split_once("port ")
    {
        node.address = after.split(',').next().map(str::to_owned);
    }
}

/// ISA devices that a user adds. Those of the board depend on its options.
const ON_ISA: &str = "ib700 isa-applesmc isa-cirrus-vga isa-debug-exit isa-debugcon isa-ide \
    isa-ipmi-bt isa-ipmi-kcs isa-parallel isa-serial isa-vga ne2k_isa pvpanic tpm-tis";

/// What a guest with a TPM needs at the destination.
pub(crate) const OWN_SWTPM: &str = "an swtpm for its TPM, with an empty state directory of its own, \
                                    which no other swtpm uses";

/// Whether devices of this type are a TPM.
pub(crate) fn is_tpm(kind: &str) -> bool {
    kind.starts_with("tpm-")
}

/// The description of a device; `None` for parts of other devices.
fn listed(node: &Node) -> Option<Device> {
    let place = match &node.place {
        Some(_) if is_transparent(&node.bus) => return None,
        Some(place) => place.as_str(),
        None if node.bus == "ISA" && ON_ISA.split_whitespace().any(|kind| kind == node.kind) => "",
        None => return None,
    };
    Some(Device {
        place: place.into(),
        kind: node.kind.as_str().into(),
        name: node.id.as_str().into(),
        pci: node.pci,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As QEMU 10.0 prints it, without the properties that do not matter.
    const TREE: &str = r#"bus: main-system-bus
  type System
  dev: i440FX-pcihost, id ""
    bus: pci.0
      type PCI
      dev: virtio-scsi-pci, id "scsi"
        addr = 05.0
        class SCSI controller, addr 00:05.0, pci id 1af4:1004 (sub 1af4:0008)
        bus: virtio-bus
          type virtio-pci-bus
          dev: virtio-scsi-device, id ""
            bus: scsi.0
              type SCSI
              dev: scsi-hd, id "sda"
                drive = "left"
                channel = 0 (0x0)
                scsi-id = 0 (0x0)
                lun = 1 (0x1)
              dev: scsi-hd, id ""
                drive = "right"
                channel = 0 (0x0)
                scsi-id = 2 (0x2)
                lun = 0 (0x0)
      dev: virtio-blk-pci, id "vda"
        addr = 04.0
        bus: virtio-bus
          type virtio-pci-bus
          dev: virtio-blk-device, id ""
            drive = "disk0"
            num-queues = 1 (0x1)
      dev: piix3-ide, id ""
        addr = 01.1
        bus: ide.1
          type IDE
          dev: ide-cd, id ""
            drive = "ide1-cd0"
            unit = 0 (0x0)
        bus: ide.0
          type IDE
          dev: ide-hd, id "hda"
            drive = "ide0-hd0"
            unit = 1 (0x1)
  dev: cfi.pflash01, id ""
    drive = "pflash0"
"#;

    #[test]
    fn disks_have_the_places_where_the_guest_sees_them() {
        let places = places_in(TREE);
        let place = |drive: &str| {
            let mut found = places.iter().filter(|found| found.drive == drive);
            found.next().map(|found| (&*found.id, &*found.place))
        };
        for (drive, expected) in [
            ("left", Some(("sda", "pci.0/05.0/0:0:1"))),
            ("right", Some(("", "pci.0/05.0/0:2:0"))),
            ("disk0", Some(("", "pci.0/04.0"))),
            ("ide1-cd0", Some(("", "pci.0/01.1/0"))),
            ("ide0-hd0", Some(("hda", "pci.0/01.1/bus1/1"))),
            ("pflash0", None),
        ] {
            assert_eq!(place(drive), expected, "{drive}");
        }
    }
}
