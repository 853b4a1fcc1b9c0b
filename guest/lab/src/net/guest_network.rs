//! A network with a guest, and a client that connects to the guest.

use super::namespace::Namespace;
use crate::{LabError, Nic};

const BRIDGE: &str = "br0";
const TAP: &str = "tap0";
const UPLINK: &str = "up0";

/// A client with a switch, and two hosts connected to it, each with a bridge and a tap device.
///
/// The guest's card is on its host's tap. When the guest moves, its address moves to the other
/// host's tap, and the switch learns that from the guest's announcement, as in a real rack. The
/// hosts reach each other through the switch as well.
#[derive(Debug)]
pub struct GuestNetwork {
    client: Namespace,
    source: Namespace,
    destination: Namespace,
}

impl GuestNetwork {
    /// The client's address.
    const CLIENT: &str = "10.88.0.1";
    /// The guest's address, on either host.
    pub const GUEST: &str = "10.88.0.2";
    /// The source host's address.
    pub const SOURCE: &str = "10.88.0.11";
    /// The destination host's address.
    pub const DESTINATION: &str = "10.88.0.12";

    /// Creates the client and both hosts.
    ///
    /// # Errors
    /// When the kernel does not allow or support it.
    pub fn new() -> Result<Self, LabError> {
        let network = Self {
            client: Namespace::new("client")?,
            source: Namespace::new("source")?,
            destination: Namespace::new("destination")?,
        };
        network
            .client
            .bridge(BRIDGE, &format!("{}/24", Self::CLIENT))?;
        for (host, address, port) in [
            (&network.source, Self::SOURCE, "port-source"),
            (&network.destination, Self::DESTINATION, "port-dest"),
        ] {
            host.bridge(BRIDGE, &format!("{address}/24"))?;
            network.client.join(port, host, UPLINK)?;
            network.client.plug(port, BRIDGE)?;
            host.plug(UPLINK, BRIDGE)?;
            host.tap(TAP, BRIDGE)?;
        }
        Ok(network)
    }

    /// The client's namespace.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The host that the guest starts on.
    pub fn source(&self) -> &Namespace {
        &self.source
    }

    /// The host that the guest moves to.
    pub fn destination(&self) -> &Namespace {
        &self.destination
    }

    /// The guest's network card; the same on both hosts.
    pub fn nic(&self) -> Nic {
        Nic {
            tap: TAP.to_owned(),
            mac: "52:54:00:12:34:56".to_owned(),
            address: format!("{}/24", Self::GUEST),
        }
    }
}
