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
pub(crate) struct Network {
    line: Line,
    /// Between the source and the destination. (The kernels that the bench runs on may not have
    /// `netem`.)
    relay: Option<Relay>,
}

/// The two hosts, and what is between them.
#[derive(Debug)]
enum Line {
    /// One namespace, whose loopback device carries nothing else.
    Loopback(Namespace),
    /// Two namespaces joined by a veth pair.
    HostPair(HostPair),
}

impl Network {
    /// Creates the network.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub(crate) fn new(kind: NetworkKind, congestion: Option<&str>) -> Result<Self, BenchError> {
        let line = match kind {
            NetworkKind::Loopback | NetworkKind::RoundTrip(_) => {
                Line::Loopback(Namespace::new("host")?)
            }
            NetworkKind::Veth | NetworkKind::Gbit(_) | NetworkKind::Mbit(_) => {
                Line::HostPair(HostPair::new(kind.rate_limit())?)
            }
            NetworkKind::GbitPerFlow(_) => {
                let link = HostPair::new(None)?;
                if let Some(rate_limit) = kind.rate_limit() {
                    link.limit_each_flow(rate_limit)?;
                }
                Line::HostPair(link)
            }
        };
        Self::over(line, kind, congestion)
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
        let link = HostPair::between(source, destination, kind.rate_limit())?;
        Self::over(Line::HostPair(link), kind, congestion)
    }

    fn over(line: Line, kind: NetworkKind, congestion: Option<&str>) -> Result<Self, BenchError> {
        let mut network = Self { line, relay: None };
        if let NetworkKind::RoundTrip(us) = kind {
            network.relay = Some(network.delay(Duration::from_micros(us) / 2)?);
        }
        network.set_congestion_control(congestion)?;
        Ok(network)
    }

    /// A relay in the source's host that delays everything, in each direction.
    fn delay(&self, delay: Duration) -> Result<Relay, BenchError> {
        let failed = |source| BenchError::Relay { at: RELAY, source };
        let (host, to) = (self.source().clone(), self.address());
        let listener = host.run(|| RelayListener::bind(RELAY))?.map_err(failed)?;
        let connect = move || {
            let connected = host.run(|| RelaySocket::connect(to));
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
        match &self.line {
            Line::Loopback(_) => "lo",
            Line::HostPair(_) => HostPair::DEVICE,
        }
    }

    /// The source's host.
    pub(crate) fn source(&self) -> &Namespace {
        match &self.line {
            Line::Loopback(host) => host,
            Line::HostPair(link) => link.source(),
        }
    }

    /// The destination's host.
    pub(crate) fn destination(&self) -> &Namespace {
        match &self.line {
            Line::Loopback(host) => host,
            Line::HostPair(link) => link.destination(),
        }
    }

    /// The address that the destination listens at.
    pub(crate) fn address(&self) -> &'static str {
        match &self.line {
            Line::Loopback(_) => DESTINATION,
            Line::HostPair(_) => "10.77.0.2:9001",
        }
    }

    /// The address that the source connects to.
    pub(crate) fn address_for_source(&self) -> &'static str {
        match self.relay {
            Some(_) => RELAY,
            None => self.address(),
        }
    }

    /// Bytes carried so far, both directions, including Ethernet, IP and TCP headers.
    ///
    /// # Errors
    /// When `ip` fails.
    pub(crate) fn bytes(&self) -> Result<u64, LabError> {
        match &self.line {
            Line::Loopback(host) => {
                let text = host.ip(&["-json", "-statistics", "link", "show", "dev", "lo"])?;
                let value: Value = serde_json::from_str(&text).unwrap_or_default();
                let bytes = value[0]["stats64"]["tx"]["bytes"].as_u64().unwrap_or(0);
                // The device also carries what the relay passes on.
                let times = if self.relay.is_some() { 2 } else { 1 };
                Ok(bytes / times)
            }
            Line::HostPair(link) => link.bytes().map(|(there, back)| there + back),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_destination() {
        assert!(format!("{}:9001", HostPair::DESTINATION) == "10.77.0.2:9001");
    }
}
