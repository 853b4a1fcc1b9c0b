//! The tap devices that QEMU has open.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use hikkoshi_linux::Process;
use hikkoshi_network_frames::TunQueue;

use super::cards::Card;

/// A tap device that QEMU has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TapInterface {
    /// Its name in its network namespace.
    pub(super) name: String,
    /// QEMU's descriptors of it, one for each queue. The guest need not use all of them: QEMU
    /// detaches the others (`TUNSETQUEUE`), and the kernel delivers nothing to them.
    pub(super) descriptors: Vec<i32>,
}

/// The tap devices that the process has open, by name.
pub(super) fn read(process: &Process) -> io::Result<Vec<TapInterface>> {
    let numbers = process.descriptors()?.into_iter();
    let known = numbers.filter_map(|number| {
        // It may have been closed since.
        let (_, info) = process.describe_descriptor(number).ok()?;
        Some((number, info))
    });
    Ok(among(known))
}

/// The tap devices among descriptors with this `fdinfo`. Only a tun device names an interface
/// there; the descriptor's path depends on the root in which it was opened.
fn among(descriptors: impl Iterator<Item = (i32, String)>) -> Vec<TapInterface> {
    let mut found: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for (number, info) in descriptors {
        if let Some(name) = interface_name(&info) {
            found.entry(name.to_owned()).or_default().push(number);
        }
    }
    let interfaces = found.into_iter();
    interfaces
        .map(|(name, descriptors)| TapInterface { name, descriptors })
        .collect()
}

/// The line `iff:\ttap0` of a tun device's `fdinfo`.
fn interface_name(info: &str) -> Option<&str> {
    let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?;
    Some(name.trim()).filter(|name| !name.is_empty())
}

/// The network namespace of the device with these queues; `None` if it is this program's.
///
/// If the kernel does not report it, QEMU's is assumed. A QEMU that was given descriptors may be in
/// another one.
pub(super) fn namespace(queues: &[TunQueue], process: &Process) -> io::Result<Option<OwnedFd>> {
    let told = queues.iter().find_map(|queue| queue.namespace().ok());
    let theirs = match told {
        Some(namespace) => namespace,
        None => process.open_proc("ns/net")?.into(),
    };
    let ours = File::open("/proc/thread-self/ns/net")?;
    Ok((identity(&theirs)? != identity(&ours)?).then_some(theirs))
}

/// What tells namespaces apart.
fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The tap device of each card. A card whose device is not known for certain has none.
///
/// QEMU names the device that it opened itself, or the descriptor that it was given (of several,
/// that of each queue). It does not where a helper opened the device. Then the device is known if
/// exactly one card and one device are left.
pub(super) fn assign<'a>(
    cards: &'a [Card],
    interfaces: &'a [TapInterface],
) -> Vec<(&'a Card, Option<&'a TapInterface>)> {
    let named = |card: &Card| {
        interfaces.iter().find(|interface| {
            card.interface.as_ref() == Some(&interface.name)
                || card
                    .descriptor
                    .is_some_and(|number| interface.descriptors.contains(&number))
        })
    };
    let mut assigned: Vec<_> = cards
        .iter()
        .map(|card| (card, named(card).filter(|_| card.backend == "tap")))
        .collect();
    let is_left = |interface: &&TapInterface| {
        let taken = |(_, taken): &(_, Option<&TapInterface>)| *taken == Some(*interface);
        !assigned.iter().any(taken)
    };
    let left: Vec<_> = interfaces.iter().filter(is_left).collect();
    let mut without: Vec<_> = assigned
        .iter_mut()
        .filter(|(card, interface)| card.backend == "tap" && interface.is_none())
        .collect();
    if let ([only], [card]) = (left.as_slice(), without.as_mut_slice()) {
        card.1 = Some(only);
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(last: u8, backend: &str, interface: Option<&str>, descriptor: Option<i32>) -> Card {
        let address = [0x52, 0x54, 0, 0, 0, last];
        Card {
            name: format!("net{last}"),
            address,
            guest_address: address,
            backend: backend.to_owned(),
            interface: interface.map(str::to_owned),
            descriptor,
        }
    }

    fn interface(name: &str, descriptors: &[i32]) -> TapInterface {
        TapInterface {
            name: name.to_owned(),
            descriptors: descriptors.to_vec(),
        }
    }

    fn names(cards: &[Card], interfaces: &[TapInterface]) -> Vec<Option<String>> {
        let assigned = assign(cards, interfaces).into_iter();
        assigned
            .map(|(_, interface)| interface.map(|interface| interface.name.clone()))
            .collect()
    }

    #[test]
    fn devices_are_assigned_by_name_and_by_descriptor() {
        let cards = [
            card(0, "tap", Some("tap0"), None),
            card(1, "tap", None, Some(31)),
            card(2, "user", None, None),
        ];
        let interfaces = [interface("tap0", &[20, 21]), interface("vnet1", &[30, 31])];
        assert_eq!(
            names(&cards, &interfaces),
            [Some("tap0".to_owned()), Some("vnet1".to_owned()), None]
        );
    }

    #[test]
    fn the_last_device_belongs_to_the_last_card() {
        let cards = [
            card(0, "tap", Some("tap0"), None),
            card(1, "tap", None, None),
        ];
        let interfaces = [interface("tap0", &[20]), interface("vnet1", &[30])];
        let both = [Some("tap0".to_owned()), Some("vnet1".to_owned())];
        assert_eq!(names(&cards, &interfaces), both);
        // Nothing is guessed.
        let more = [
            interface("tap0", &[20]),
            interface("a", &[3]),
            interface("b", &[4]),
        ];
        assert_eq!(names(&cards, &more), [Some("tap0".to_owned()), None]);
        let unknown = [card(0, "tap", None, None), card(1, "tap", None, None)];
        assert_eq!(names(&unknown, &interfaces), [None, None]);
        assert_eq!(
            names(&[card(0, "user", None, None)], &[interface("tap0", &[20])]),
            [None]
        );
    }

    #[test]
    fn the_kernel_names_the_device() {
        let info = "pos:\t0\nflags:\t02104002\nmnt_id:\t26\nino:\t91\niff:\ttap0\n";
        assert_eq!(interface_name(info), Some("tap0"));
        assert_eq!(interface_name("pos:\t0\niff:\t\n"), None);
        assert_eq!(interface_name("pos:\t0\n"), None);
    }

    /// The link of a descriptor that was opened in another root has another path, or none.
    #[test]
    fn a_tap_device_is_known_by_what_the_kernel_says() {
        let info = |line: &str| format!("pos:\t0\nflags:\t02104002\nmnt_id:\t26\nino:\t91\n{line}");
        let tap = |name: &str| info(&format!("iff:\t{name}\n"));
        let all = [
            (3, info("")),
            (7, tap("tap1")),
            (9, tap("tap0")),
            (8, tap("tap1")),
        ];
        let found = among(all.into_iter());
        assert_eq!(found, [interface("tap0", &[9]), interface("tap1", &[7, 8])]);
    }
}
