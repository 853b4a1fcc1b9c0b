//! Whether the destination's devices and auxiliary memory can load the guest's
//! device state.

use std::collections::BTreeMap;

use thiserror::Error;

use super::blocks::advice;
use crate::messages::{AuxiliaryBlock, Device, Machine};

/// QEMU gives blocks with this prefix the source's length when it loads them, up
/// to a limit.
const RESIZEABLE: &str = "/rom@";

/// How many differences of one kind are reported: all of them together are fewer than
/// [`MAX_OBSTACLES`](crate::MAX_OBSTACLES), and leave room for others.
const MAX_OF_A_KIND: usize = 16;

impl AuxiliaryBlock {
    /// Whether this block, of the destination, can load the source's.
    fn can_load(&self, source: &Self) -> bool {
        let resizeable = self.most > self.bytes || self.name.starts_with(RESIZEABLE);
        source.bytes == self.bytes || (resizeable && source.bytes <= self.most)
    }
}

impl Device {
    fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind || (self.pci != 0 && self.pci == other.pci)
    }

    fn described(&self) -> String {
        if self.name.is_empty() {
            self.kind.to_string()
        } else {
            format!("{} ({:?})", self.kind, self.name)
        }
    }
}

impl Machine {
    /// Checks that the device state of the source's machine, this one, can be
    /// loaded into `destination`.
    ///
    /// # Errors
    ///
    /// The first of the [`differences`](Self::differences).
    pub fn fits(&self, destination: &Self) -> Result<(), MachineMismatch> {
        let first = self.differences(destination).into_iter().next();
        first.map_or(Ok(()), Err)
    }

    /// Why the device state of the source's machine, this one, cannot be loaded into `destination`:
    /// everything that differs, at most 16 differences of each kind: devices at other addresses,
    /// numbers of other devices, memory.
    pub fn differences(&self, destination: &Self) -> Vec<MachineMismatch> {
        let empty = Self::default();
        if *self == empty || *destination == empty {
            return Vec::new();
        }
        let mut found = other_places(&self.devices, &destination.devices);
        found.extend(other_numbers(&self.devices, &destination.devices));
        found.extend(self.other_memory(destination));
        found
    }

    fn other_memory(&self, destination: &Self) -> Vec<MachineMismatch> {
        let here: BTreeMap<_, _> = destination
            .auxiliary
            .iter()
            .map(|piece| (&piece.name, piece))
            .collect();
        let mismatch = |piece: &AuxiliaryBlock| match here.get(&piece.name) {
            None => Some(MachineMismatch::NoMemory {
                name: piece.name.clone(),
                bytes: piece.bytes,
            }),
            Some(there) if !there.can_load(piece) => Some(MachineMismatch::Memory {
                name: piece.name.clone(),
                source_has: piece.bytes,
                destination_has: there.bytes,
            }),
            Some(_) => None,
        };
        let found = self.auxiliary.iter().filter_map(mismatch);
        found.take(MAX_OF_A_KIND).collect()
    }
}

fn other_places(source: &[Device], destination: &[Device]) -> Vec<MachineMismatch> {
    let by_place = |devices: &'_ [Device]| -> BTreeMap<Box<str>, Device> {
        let placed = devices.iter().filter(|device| !device.place.is_empty());
        placed
            .map(|device| (device.place.clone(), device.clone()))
            .collect()
    };
    let (source, destination) = (by_place(source), by_place(destination));
    let mismatch = |place: &str, source: Option<&Device>, destination: Option<&Device>| {
        let what = |device: Option<&Device>| device.map_or("nothing".into(), Device::described);
        MachineMismatch::Device {
            place: place.into(),
            source_has: what(source),
            destination_has: what(destination),
        }
    };
    let of_source = source.iter().filter_map(|(place, device)| {
        let there = destination.get(place);
        let is_like = there.is_some_and(|there| device.is_like(there));
        (!is_like).then(|| mismatch(place, Some(device), there))
    });
    let only_there = destination
        .iter()
        .filter(|(place, _)| !source.contains_key(*place))
        .map(|(place, device)| mismatch(place, None, Some(device)));
    of_source.chain(only_there).take(MAX_OF_A_KIND).collect()
}

fn other_numbers(source: &[Device], destination: &[Device]) -> Vec<MachineMismatch> {
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let unplaced = |device: &&Device| device.place.is_empty();
    for device in source.iter().filter(unplaced) {
        kinds.entry(&device.kind).or_default().0 += 1;
    }
    for device in destination.iter().filter(unplaced) {
        kinds.entry(&device.kind).or_default().1 += 1;
    }
    let differ = kinds
        .into_iter()
        .filter(|(_, (ours, theirs))| ours != theirs);
    let mismatch = |(kind, (source_has, destination_has)): (&str, _)| MachineMismatch::Number {
        kind: kind.into(),
        source_has,
        destination_has,
    };
    differ.take(MAX_OF_A_KIND).map(mismatch).collect()
}

/// A difference between the two machines.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MachineMismatch {
    /// Another device, or none, at one address.
    #[error(
        "comparing the two guests: at {place} the source has {source_has} and the destination \
         {destination_has}; start the destination with the source's devices, each with the same \
         addr= (or port, unit, …)"
    )]
    Device {
        /// The address.
        place: String,
        /// The source's device.
        source_has: String,
        /// The destination's device.
        destination_has: String,
    },
    /// Another number of devices of one type.
    #[error(
        "comparing the two guests: the source has {source_has} and the destination \
         {destination_has} devices of the type {kind}; start the destination with the source's \
         devices"
    )]
    Number {
        /// The type.
        kind: Box<str>,
        /// The number at the source.
        source_has: usize,
        /// The number at the destination.
        destination_has: usize,
    },
    /// The destination does not have a block of memory.
    #[error(
        "comparing the two guests: the source's memory {name:?} of {bytes} bytes is missing at the \
         destination ({})",
        advice(name, *bytes)
    )]
    NoMemory {
        /// Its name.
        name: Box<str>,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A block of memory has another length.
    #[error(
        "comparing the two guests: the memory {name:?} is {source_has} bytes long at the source \
         and {destination_has} at the destination ({})",
        advice(name, *source_has)
    )]
    Memory {
        /// Its name.
        name: Box<str>,
        /// Its length at the source, in bytes.
        source_has: u64,
        /// Its length at the destination, in bytes.
        destination_has: u64,
    },
}

impl MachineMismatch {
    /// Whether a block of memory differs, and not a device.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::NoMemory { .. } | Self::Memory { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(place: &str, kind: &str, pci: u32) -> Device {
        Device {
            place: place.into(),
            kind: kind.into(),
            name: if place.is_empty() { "" } else { "d" }.into(),
            pci,
        }
    }

    fn memory(name: &str, bytes: u64, most: u64) -> AuxiliaryBlock {
        AuxiliaryBlock {
            name: name.into(),
            bytes,
            most,
        }
    }

    fn machine() -> Machine {
        Machine {
            devices: vec![
                device("pcie.0/02.0", "virtio-net-pci", 0x1af4_1000),
                device("pcie.0/1f.0", "ICH9-LPC", 0x8086_2918),
                device("", "vmgenid", 0),
            ],
            auxiliary: vec![
                memory("pc.bios", 0x4_0000, 0x4_0000),
                memory("/rom@etc/acpi/tables", 0x2_0000, 0x20_0000),
            ],
        }
    }

    fn changed(change: impl FnOnce(&mut Machine)) -> Machine {
        let mut machine = machine();
        change(&mut machine);
        machine
    }

    #[test]
    fn differences_that_loading_ignores_are_accepted() {
        for other in [
            machine(),
            Machine::default(),
            changed(|machine| machine.devices.reverse()),
            changed(|machine| machine.devices[0].name = "other".into()),
            changed(|machine| machine.devices[1].kind = "ich9-lpc-of-the-future".into()),
            changed(|machine| machine.auxiliary[1].bytes = 0x4_0000),
        ] {
            assert_eq!(machine().fits(&other), Ok(()));
            assert_eq!(other.fits(&machine()), Ok(()));
        }
        // The device state has no section for memory that only the destination has.
        let more = changed(|machine| machine.auxiliary.push(memory("more", 1, 1)));
        assert_eq!(machine().fits(&more), Ok(()));
    }

    #[test]
    fn every_difference_is_named_with_both_values() {
        let text = |change: fn(&mut Machine)| {
            let text = machine().fits(&changed(change)).unwrap_err().to_string();
            let text = text.strip_prefix("comparing the two guests: ").unwrap();
            let end = text.find(';').or_else(|| text.find(" (give"));
            text[..end.unwrap()].to_owned()
        };
        assert_eq!(
            text(|machine| machine.devices[0] = device("pcie.0/02.0", "e1000", 0x8086_100e)),
            "at pcie.0/02.0 the source has virtio-net-pci (\"d\") and the destination e1000 (\"d\")"
        );
        assert_eq!(
            text(|machine| machine.devices[0].place = "pcie.0/03.0".into()),
            "at pcie.0/02.0 the source has virtio-net-pci (\"d\") and the destination nothing"
        );
        assert_eq!(
            text(|machine| machine.devices.push(device("pcie.0/04.0", "VGA", 1))),
            "at pcie.0/04.0 the source has nothing and the destination VGA (\"d\")"
        );
        assert_eq!(
            text(|machine| drop(machine.devices.pop())),
            "the source has 1 and the destination 0 devices of the type vmgenid"
        );
        assert_eq!(
            text(|machine| machine.auxiliary[0].bytes = 0x8_0000),
            "the memory \"pc.bios\" is 262144 bytes long at the source and 524288 at the \
             destination"
        );
        assert_eq!(
            text(|machine| drop(machine.auxiliary.remove(0))),
            "the source's memory \"pc.bios\" of 262144 bytes is missing at the destination"
        );
        let long = changed(|machine| machine.auxiliary[1].bytes = 0x40_0000);
        assert!(long.fits(&machine()).is_err());
    }

    #[test]
    fn all_differences_are_reported_up_to_a_bound() {
        let other = changed(|machine| {
            machine.devices[0] = device("pcie.0/02.0", "e1000", 0x8086_100e);
            machine.devices[1].place = "pcie.0/1e.0".into();
            machine.devices[2].kind = "pvpanic".into();
            machine.auxiliary.clear();
        });
        let all = machine().differences(&other);
        let count = |is: fn(&MachineMismatch) -> bool| all.iter().filter(|one| is(one)).count();
        // Slot 1e.0 has nothing at the source, 1f.0 nothing at the destination.
        assert_eq!(
            count(|one| matches!(one, MachineMismatch::Device { .. })),
            3
        );
        assert_eq!(
            count(|one| matches!(one, MachineMismatch::Number { .. })),
            2
        );
        assert_eq!(count(MachineMismatch::is_memory), 2);
        assert_eq!(all.len(), 7);
        let many = changed(|machine| {
            let more = (0..100).map(|slot| device(&format!("more/{slot}"), "e1000", 0));
            machine.devices.extend(more);
        });
        assert_eq!(machine().differences(&many).len(), MAX_OF_A_KIND);
    }
}
