//! A host and several others, which it reaches over one line.

use super::host_pair::RateLimit;
use super::namespace::Namespace;
use crate::LabError;

/// The device of each host that connects it to the switch.
const DEVICE: &str = "line";
const BRIDGE: &str = "bridge";

/// A source and several destinations at a switch. The source's line to the switch has a rate limit
/// in each direction; those of the destinations have none.
#[derive(Debug)]
pub struct SharedLine {
    source: Namespace,
    destinations: Vec<Namespace>,
    _switch: Namespace,
}

impl SharedLine {
    /// Creates the hosts and the switch.
    ///
    /// # Errors
    /// When the kernel does not allow or support it.
    pub fn new(destinations: u8, rate_limit: RateLimit) -> Result<Self, LabError> {
        let switch = Namespace::new("switch")?;
        switch.bridge(BRIDGE, "10.77.0.254/24")?;
        let join = |role: &str, number: u8| {
            let host = Namespace::new(role)?;
            let port = format!("port{number}");
            switch.join(&port, &host, DEVICE)?;
            switch.plug(&port, BRIDGE)?;
            let address = format!("{}/24", Self::address(number));
            host.ip(&["address", "add", &address, "dev", DEVICE])?;
            Ok::<_, LabError>(host)
        };
        let source = join("source", 0)?;
        rate_limit.apply(&source, DEVICE)?;
        rate_limit.apply(&switch, "port0")?;
        let destinations = (1..=destinations)
            .map(|number| join("destination", number))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            source,
            destinations,
            _switch: switch,
        })
    }

    /// The address of a host: 0 is the source, the destinations follow.
    #[must_use]
    pub fn address(number: u8) -> String {
        format!("10.77.0.{}", number + 1)
    }

    /// The source's host.
    #[must_use]
    pub fn source(&self) -> &Namespace {
        &self.source
    }

    /// The destinations' hosts.
    #[must_use]
    pub fn destinations(&self) -> &[Namespace] {
        &self.destinations
    }
}
