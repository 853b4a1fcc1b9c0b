//! Two hosts and what is between them.

use hikkoshi_lab::{HostPair, LabError, Namespace};
use serde_json::Value;
use std::fs;

use crate::error::BenchError;
use crate::plan::NetworkKind;

/// A line that is ready to be used.
#[derive(Debug)]
pub enum Network {
    /// One namespace of its own: its loopback carries nothing else.
    Loopback(Namespace),
    /// Two namespaces.
    HostPair(HostPair),
}

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn new(kind: NetworkKind, congestion: Option<&str>) -> Result<Self, BenchError> {
        let network = match kind {
            NetworkKind::Loopback => Self::Loopback(Namespace::new("host")?),
            NetworkKind::Gbit(_) => Self::HostPair(HostPair::new(kind.shape())?),
            NetworkKind::GbitPerFlow(_) => {
                let link = HostPair::new(None)?;
                if let Some(shape) = kind.shape() {
                    link.shape_each_flow(shape)?;
                }
                Self::HostPair(link)
            }
        };
        network.set_congestion_control(congestion)?;
        Ok(network)
    }

    /// Makes it between two hosts that are there already.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn between(
        (source, destination): (Namespace, Namespace),
        kind: NetworkKind,
        congestion: Option<&str>,
    ) -> Result<Self, BenchError> {
        let network = Self::HostPair(HostPair::between(source, destination, kind.shape())?);
        network.set_congestion_control(congestion)?;
        Ok(network)
    }

    fn set_congestion_control(&self, congestion: Option<&str>) -> Result<(), BenchError> {
        if let Some(name) = congestion {
            for host in [self.source(), self.destination()] {
                const PATH: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
                host.run(|| fs::write(PATH, name))?
                    .map_err(|source| BenchError::File {
                        doing: "choosing the congestion control in",
                        path: PATH.into(),
                        source,
                    })?;
            }
        }
        Ok(())
    }

    /// The device that the source sends on.
    pub fn device(&self) -> &'static str {
        match self {
            Self::Loopback(_) => "lo",
            Self::HostPair(_) => HostPair::DEVICE,
        }
    }

    /// Where the source is.
    pub fn source(&self) -> &Namespace {
        match self {
            Self::Loopback(host) => host,
            Self::HostPair(link) => link.source(),
        }
    }

    /// Where the destination is.
    pub fn destination(&self) -> &Namespace {
        match self {
            Self::Loopback(host) => host,
            Self::HostPair(link) => link.destination(),
        }
    }

    /// Where the destination listens.
    pub fn address(&self) -> &'static str {
        match self {
            Self::Loopback(_) => "127.0.0.1:9001",
            Self::HostPair(_) => "10.77.0.2:9001",
        }
    }

    /// Bytes carried so far, both directions, headers of Ethernet, IP and TCP included.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn bytes(&self) -> Result<u64, LabError> {
        match self {
            Self::Loopback(host) => {
                let text = host.ip(&["-json", "-statistics", "link", "show", "dev", "lo"])?;
                let value: Value = serde_json::from_str(&text).unwrap_or_default();
                Ok(value[0]["stats64"]["tx"]["bytes"].as_u64().unwrap_or(0))
            }
            Self::HostPair(link) => link.bytes().map(|(there, back)| there + back),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_destinations() {
        assert!(format!("{}:9001", HostPair::DESTINATION) == "10.77.0.2:9001");
    }
}
