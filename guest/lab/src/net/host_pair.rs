//! Two hosts joined by a network with an optional rate limit.

use super::namespace::Namespace;
use crate::LabError;
use std::time::Duration;

/// The rate limit of the network in each direction, by a token bucket (`tc tbf`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RateLimit {
    /// Bits a second.
    pub rate_bits: u64,
    /// Bytes that may be sent at once: at least one segment as passed down by the kernel (64 KiB),
    /// and about a millisecond of traffic.
    pub burst_bytes: u64,
    /// How long a packet may be queued before it is dropped.
    pub latency: Duration,
}

impl RateLimit {
    /// `gbit` Gbit/s with a burst of a millisecond and a queue of 50 ms.
    pub fn gbit(gbit: u64) -> Self {
        let rate_bits = gbit * 1_000_000_000;
        Self {
            rate_bits,
            burst_bytes: (rate_bits / 8 / 1000).max(128 * 1024),
            latency: Duration::from_millis(50),
        }
    }

    /// Limits what a namespace sends on a device.
    pub(super) fn apply(self, end: &Namespace, device: &str) -> Result<String, LabError> {
        let rate = format!("{}bit", self.rate_bits);
        let burst = self.burst_bytes.to_string();
        let latency = format!("{}ms", self.latency.as_millis());
        let device = ["qdisc", "replace", "dev", device, "root", "tbf"];
        let limit = ["rate", &rate, "burst", &burst, "latency", &latency];
        end.call("tc", &[device, limit].concat())
    }
}

/// Number of connections that can have a separate rate.
const FLOWS: u32 = 64;

/// Two namespaces joined by a veth pair.
#[derive(Debug)]
pub struct HostPair {
    source: Namespace,
    destination: Namespace,
    rate_limit: Option<RateLimit>,
}

impl HostPair {
    /// The name of the network device, at both ends.
    pub const DEVICE: &str = "line";
    /// The source's address.
    pub const SOURCE: &str = "10.77.0.1";
    /// The destination's address.
    pub const DESTINATION: &str = "10.77.0.2";

    /// Creates both namespaces and the network; without a rate limit its rate is not limited.
    ///
    /// # Errors
    /// When the kernel does not allow or support it.
    pub fn new(rate_limit: Option<RateLimit>) -> Result<Self, LabError> {
        Self::between(
            Namespace::new("source")?,
            Namespace::new("destination")?,
            rate_limit,
        )
    }

    /// Joins two existing namespaces, which have no such device yet.
    ///
    /// # Errors
    /// See [`HostPair::new`].
    pub fn between(
        source: Namespace,
        destination: Namespace,
        rate_limit: Option<RateLimit>,
    ) -> Result<Self, LabError> {
        source.join(Self::DEVICE, &destination, Self::DEVICE)?;
        let mut link = Self {
            source,
            destination,
            rate_limit: None,
        };
        for (end, address) in [
            (&link.source, Self::SOURCE),
            (&link.destination, Self::DESTINATION),
        ] {
            end.ip(&[
                "address",
                "add",
                &format!("{address}/24"),
                "dev",
                Self::DEVICE,
            ])?;
        }
        link.set_rate_limit(rate_limit)?;
        Ok(link)
    }

    /// The source's host.
    pub fn source(&self) -> &Namespace {
        &self.source
    }

    /// The destination's host.
    pub fn destination(&self) -> &Namespace {
        &self.destination
    }

    /// The current rate limit.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.rate_limit
    }

    /// Changes the rate limit.
    ///
    /// # Errors
    /// When `tc` refuses it.
    pub fn set_rate_limit(&mut self, rate_limit: Option<RateLimit>) -> Result<(), LabError> {
        for end in [&self.source, &self.destination] {
            match rate_limit {
                Some(rate_limit) => rate_limit.apply(end, Self::DEVICE)?,
                None if self.rate_limit.is_some() => {
                    end.call("tc", &["qdisc", "delete", "dev", Self::DEVICE, "root"])?
                }
                None => String::new(),
            };
        }
        self.rate_limit = rate_limit;
        Ok(())
    }

    /// Limits the rate of each connection by a separate token bucket (`tc htb`), and not the total;
    /// the network must have no other limit.
    ///
    /// Connections are classified by the low bits of the source port. A client's next connection to
    /// the same destination has a port that is a few even numbers higher (`__inet_hash_connect`),
    /// so the few connections of a migration never share a bucket.
    ///
    /// # Errors
    /// When `tc` refuses it.
    pub fn limit_each_flow(&self, rate_limit: RateLimit) -> Result<(), LabError> {
        let rate = format!("{}bit", rate_limit.rate_bits);
        let burst = rate_limit.burst_bytes.to_string();
        let queued =
            rate_limit.rate_bits / 8 * u64::try_from(rate_limit.latency.as_millis()).unwrap_or(0);
        let limit = (rate_limit.burst_bytes + queued / 1000).to_string();
        for (end, port) in [(&self.source, "sport"), (&self.destination, "dport")] {
            let tc = |words: &[&str]| {
                let (kind, rest) = words.split_at(1);
                let device = ["add", "dev", Self::DEVICE];
                end.call("tc", &[kind, &device, rest].concat()).map(drop)
            };
            // Packets without a class, such as ARP, are not limited.
            tc(&["qdisc", "root", "handle", "1:", "htb"])?;
            for flow in 0..FLOWS {
                let class = format!("1:{:x}", flow + 1);
                let (low, mask) = (
                    format!("{:#x}", flow * 2),
                    format!("{:#x}", (FLOWS - 1) * 2),
                );
                tc(&[
                    "class", "parent", "1:", "classid", &class, "htb", "rate", &rate, "burst",
                    &burst, "cburst", &burst, "quantum", "60000",
                ])?;
                tc(&["qdisc", "parent", &class, "bfifo", "limit", &limit])?;
                tc(&[
                    "filter", "parent", "1:", "protocol", "ip", "u32", "match", "ip", port, &low,
                    &mask, "flowid", &class,
                ])?;
            }
        }
        Ok(())
    }

    /// Cuts the network by `ip link set down`: nothing passes, and the connections get no error.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn cut(&self) -> Result<(), LabError> {
        self.source
            .ip(&["link", "set", Self::DEVICE, "down"])
            .map(drop)
    }

    /// Restores the network after [`HostPair::cut`].
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn restore(&self) -> Result<(), LabError> {
        self.source
            .ip(&["link", "set", Self::DEVICE, "up"])
            .map(drop)
    }

    /// Resets every TCP connection between the two, with an error at both ends.
    ///
    /// # Errors
    /// When the kernel does not support it (it needs `CONFIG_INET_DIAG_DESTROY`).
    pub fn reset_connections(&self) -> Result<(), LabError> {
        self.source
            .call("ss", &["--kill", "--tcp", "dst", Self::DESTINATION])?;
        self.destination
            .call("ss", &["--kill", "--tcp", "dst", Self::SOURCE])?;
        Ok(())
    }

    /// Bytes that the source and the destination have sent so far, including headers.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn bytes(&self) -> Result<(u64, u64), LabError> {
        let sent = |end: &Namespace| -> Result<u64, LabError> {
            let text = end.ip(&["-json", "-statistics", "link", "show", "dev", Self::DEVICE])?;
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            Ok(value[0]["stats64"]["tx"]["bytes"].as_u64().unwrap_or(0))
        };
        Ok((sent(&self.source)?, sent(&self.destination)?))
    }
}
