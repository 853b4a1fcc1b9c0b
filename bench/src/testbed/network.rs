//! The two hosts and the network between them.

use hikkoshi_lab::relay::{Carries, PassAll, Relay, RelayListener, RelaySocket};
use hikkoshi_lab::{HostPair, LabError, Namespace};
use serde_json::Value;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BenchError;
use crate::plan::NetworkKind;

/// The destination's address in one namespace, and the relay's.
const DESTINATION: &str = "127.0.0.1:9001";
const RELAY: &str = "127.0.0.1:9002";

/// A network that is ready for use.
#[derive(Debug)]
pub(crate) enum Network {
    /// One namespace, whose loopback device carries nothing else.
    Loopback(Namespace),
    /// One namespace, and a relay between the source and the destination. (The kernels that the
    /// bench runs on may not have `netem`.)
    Delayed { host: Namespace, _relay: Relay },
    /// Two namespaces joined by a veth pair.
    HostPair(HostPair),
}

impl Network {
    /// Creates the network.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub(crate) fn new(kind: NetworkKind, congestion: Option<&str>) -> Result<Self, BenchError> {
        let network = match kind {
            NetworkKind::Loopback => Self::Loopback(Namespace::new("host")?),
            NetworkKind::RoundTrip(ms) => {
                let host = Namespace::new("host")?;
                let each_way = Duration::from_millis(ms) / 2;
                let relay = delay(&host, each_way)?;
                Self::Delayed {
                    host,
                    _relay: relay,
                }
            }
            NetworkKind::Veth | NetworkKind::Gbit(_) | NetworkKind::Mbit(_) => {
                Self::HostPair(HostPair::new(kind.rate_limit())?)
            }
            NetworkKind::GbitPerFlow(_) => {
                let link = HostPair::new(None)?;
                if let Some(rate_limit) = kind.rate_limit() {
                    link.limit_each_flow(rate_limit)?;
                }
                Self::HostPair(link)
            }
        };
        network.set_congestion_control(congestion)?;
        Ok(network)
    }

    /// Creates the network between two existing hosts.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub(crate) fn between(
        (source, destination): (Namespace, Namespace),
        kind: NetworkKind,
        congestion: Option<&str>,
    ) -> Result<Self, BenchError> {
        let network = Self::HostPair(HostPair::between(source, destination, kind.rate_limit())?);
        network.set_congestion_control(congestion)?;
        Ok(network)
    }

    fn set_congestion_control(&self, congestion: Option<&str>) -> Result<(), BenchError> {
        if let Some(name) = congestion {
            for host in [self.source(), self.destination()] {
                const PATH: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
                host.run(|| fs::write(PATH, name))?
                    .map_err(|source| BenchError::File {
                        doing: "setting the congestion control in",
                        path: PATH.into(),
                        source,
                    })?;
            }
        }
        Ok(())
    }

    /// The device that the source sends on.
    pub(crate) fn device(&self) -> &'static str {
        match self {
            Self::Loopback(_) | Self::Delayed { .. } => "lo",
            Self::HostPair(_) => HostPair::DEVICE,
        }
    }

    /// The source's host.
    pub(crate) fn source(&self) -> &Namespace {
        match self {
            Self::Loopback(host) | Self::Delayed { host, .. } => host,
            Self::HostPair(link) => link.source(),
        }
    }

    /// The destination's host.
    pub(crate) fn destination(&self) -> &Namespace {
        match self {
            Self::Loopback(host) | Self::Delayed { host, .. } => host,
            Self::HostPair(link) => link.destination(),
        }
    }

    /// The address that the destination listens at.
    pub(crate) fn address(&self) -> &'static str {
        match self {
            Self::Loopback(_) | Self::Delayed { .. } => DESTINATION,
            Self::HostPair(_) => "10.77.0.2:9001",
        }
    }

    /// The address that the source connects to.
    pub(crate) fn address_for_source(&self) -> &'static str {
        match self {
            Self::Delayed { .. } => RELAY,
            _ => self.address(),
        }
    }

    /// Bytes carried so far, both directions, including Ethernet, IP and TCP headers.
    ///
    /// # Errors
    /// When `ip` fails.
    pub(crate) fn bytes(&self) -> Result<u64, LabError> {
        match self {
            Self::Loopback(host) | Self::Delayed { host, .. } => {
                let text = host.ip(&["-json", "-statistics", "link", "show", "dev", "lo"])?;
                let value: Value = serde_json::from_str(&text).unwrap_or_default();
                let bytes = value[0]["stats64"]["tx"]["bytes"].as_u64().unwrap_or(0);
                // The device also carries what the relay passes on.
                let times = if matches!(self, Self::Delayed { .. }) {
                    2
                } else {
                    1
                };
                Ok(bytes / times)
            }
            Self::HostPair(link) => link.bytes().map(|(there, back)| there + back),
        }
    }
}

/// A relay in the host that delays everything between the two sides.
fn delay(host: &Namespace, delay: Duration) -> Result<Relay, BenchError> {
    let failed = |source| BenchError::Relay { at: RELAY, source };
    let listener = host.run(|| RelayListener::bind(RELAY))?.map_err(failed)?;
    let host = host.clone();
    let connect = move || {
        let connected = host.run(|| RelaySocket::connect(DESTINATION));
        connected.map_err(std::io::Error::other)?
    };
    Relay::start(
        listener,
        connect,
        Carries::Bytes { delay },
        Arc::new(PassAll),
    )
    .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_destination() {
        assert!(format!("{}:9001", HostPair::DESTINATION) == "10.77.0.2:9001");
    }
}
