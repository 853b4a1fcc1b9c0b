//! The network between the two hosts.

use hikkoshi_lab::RateLimit;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The network between the two hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) enum NetworkKind {
    /// TCP over the loopback device of one namespace.
    Loopback,
    /// Two namespaces and a veth pair, without a limit.
    Veth,
    /// Two namespaces and a veth pair, limited to this many Gbit/s.
    Gbit(u64),
    /// Two namespaces and a veth pair, limited to this many Mbit/s.
    Mbit(u64),
    /// A veth pair with this many Gbit/s for each connection, and no limit for all of them
    /// together.
    GbitPerFlow(u64),
    /// One namespace, and a relay that delays everything: a round trip takes this many
    /// microseconds. For hikkoshi only.
    RoundTrip(u64),
}

impl NetworkKind {
    /// The rate limit of the network or of each connection, if there is one: a burst of 512 KiB,
    /// and a queue of 50 ms.
    pub(crate) fn rate_limit(self) -> Option<RateLimit> {
        match self {
            Self::Loopback | Self::Veth | Self::RoundTrip(_) => None,
            Self::Gbit(gbit) | Self::GbitPerFlow(gbit) => Some(limit(gbit * 1_000_000_000)),
            Self::Mbit(mbit) => Some(limit(mbit * 1_000_000)),
        }
    }
}

fn limit(rate_bits: u64) -> RateLimit {
    RateLimit {
        rate_bits,
        burst_bytes: 512 * 1024,
        latency: Duration::from_millis(50),
    }
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Veth => f.write_str("veth"),
            Self::Gbit(gbit) => write!(f, "{gbit}gbit"),
            Self::Mbit(mbit) => write!(f, "{mbit}mbit"),
            Self::GbitPerFlow(gbit) => write!(f, "flow{gbit}gbit"),
            Self::RoundTrip(us) if us % 1000 == 0 => write!(f, "rtt{}ms", us / 1000),
            Self::RoundTrip(us) => write!(f, "rtt{us}us"),
        }
    }
}
