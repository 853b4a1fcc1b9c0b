//! Networks with a guest, and a client in each that connects to the guest.

use super::namespace::Namespace;
use crate::{LabError, Nic};

/// A switch with a client, and the devices of each host that connect to it.
#[derive(Debug)]
struct Segment {
    bridge: &'static str,
    tap: &'static str,
    uplink: &'static str,
    /// The first three bytes of each address.
    subnet: &'static str,
    mac: &'static str,
}

const SEGMENTS: [Segment; 2] = [
    Segment {
        bridge: "br0",
        tap: "tap0",
        uplink: "up0",
        subnet: "10.88.0",
        mac: "52:54:00:12:34:56",
    },
    Segment {
        bridge: "br1",
        tap: "storage",
        uplink: "up1",
        subnet: "10.89.0",
        mac: "52:54:00:12:34:57",
    },
];

/// A client with a switch, and two hosts connected to it, each with a bridge and a tap device; or
/// two such clients with separate switches, and both hosts connected to each.
///
/// The guest's card is on its host's tap. When the guest moves, its address moves to the other
/// host's tap, and the switch learns that from the guest's announcement, as in a real rack. The
/// hosts reach each other through the switch as well.
#[derive(Debug)]
pub struct GuestNetwork {
    clients: Vec<Namespace>,
    source: Namespace,
    destination: Namespace,
    queues: u32,
}

impl GuestNetwork {
    /// The guest's address, on either host.
    pub const GUEST: &str = "10.88.0.2";
    /// The address of the guest's second card.
    pub const SECOND_GUEST: &str = "10.89.0.2";
    /// The source host's address.
    pub const SOURCE: &str = "10.88.0.11";
    /// The destination host's address.
    pub const DESTINATION: &str = "10.88.0.12";
    /// The address of a third host.
    pub(crate) const THIRD: &str = "10.88.0.13";
    /// The device of each host that connects its bridge to the switch.
    pub const UPLINK: &str = SEGMENTS[0].uplink;

    /// Creates the client and both hosts.
    ///
    /// # Errors
    /// When the kernel does not allow or support it.
    pub fn new() -> Result<Self, LabError> {
        Self::with(1, 1)
    }

    /// Creates the client and both hosts, with so many queues for the guest's card.
    ///
    /// # Errors
    /// When the kernel does not allow or support it.
    pub fn with_queues(queues: u32) -> Result<Self, LabError> {
        Self::with(1, queues)
    }

    /// Creates two clients, each with its own switch, and both hosts. The guest has two cards.
    ///
    /// # Errors
    /// When the kernel does not allow or support it.
    pub fn two() -> Result<Self, LabError> {
        Self::with(2, 1)
    }

    fn with(segments: usize, queues: u32) -> Result<Self, LabError> {
        let client = |number: usize| Namespace::new(&format!("client{number}"));
        let network = Self {
            clients: (0..segments).map(client).collect::<Result<_, _>>()?,
            source: Namespace::new("source")?,
            destination: Namespace::new("destination")?,
            queues,
        };
        let hosts = [
            (&network.source, 11, "port-source"),
            (&network.destination, 12, "port-dest"),
        ];
        for (segment, client) in SEGMENTS.iter().zip(&network.clients) {
            let address = |last: u8| format!("{}.{last}/24", segment.subnet);
            client.bridge(segment.bridge, &address(1))?;
            for (host, last, port) in hosts {
                host.bridge(segment.bridge, &address(last))?;
                client.join(port, host, segment.uplink)?;
                client.plug(port, segment.bridge)?;
                host.plug(segment.uplink, segment.bridge)?;
                host.tap(segment.tap, segment.bridge, queues > 1)?;
            }
        }
        Ok(network)
    }

    /// Connects another host to the first client's switch, with the bridge and the uplink of the
    /// other hosts, and the address [`THIRD`](Self::THIRD).
    ///
    /// # Errors
    /// When the kernel does not allow it, or there is a third host already.
    pub(crate) fn third_host(&self) -> Result<Namespace, LabError> {
        let (segment, client) = (&SEGMENTS[0], self.client());
        let host = Namespace::new("third")?;
        let port = "port-third";
        host.bridge(segment.bridge, &format!("{}/24", Self::THIRD))?;
        client.join(port, &host, segment.uplink)?;
        client.plug(port, segment.bridge)?;
        host.plug(segment.uplink, segment.bridge)?;
        Ok(host)
    }

    /// The client's namespace; the first one's.
    pub fn client(&self) -> &Namespace {
        &self.clients[0]
    }

    /// The clients' namespaces.
    pub fn clients(&self) -> &[Namespace] {
        &self.clients
    }

    /// The host that the guest starts on.
    pub fn source(&self) -> &Namespace {
        &self.source
    }

    /// The host that the guest moves to.
    pub fn destination(&self) -> &Namespace {
        &self.destination
    }

    /// The guest's network card, the first one; the same on both hosts.
    pub fn nic(&self) -> Nic {
        self.nic_on(&SEGMENTS[0])
    }

    /// The guest's network cards; the same on both hosts.
    pub fn nics(&self) -> impl Iterator<Item = Nic> {
        let segments = SEGMENTS.iter().take(self.clients.len());
        segments.map(|segment| self.nic_on(segment))
    }

    fn nic_on(&self, segment: &Segment) -> Nic {
        Nic {
            tap: segment.tap.to_owned(),
            mac: segment.mac.to_owned(),
            address: format!("{}.2/24", segment.subnet),
            queues: self.queues,
            model: "virtio-net-pci",
            vhost: false,
        }
    }
}
