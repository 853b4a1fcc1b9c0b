//! The address in an invitation: one at which the source can reach this host.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use error_reporter::Report;
use hikkoshi_link::Address;

use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// The address that an invitation names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InvitationAddress {
    /// The address of `--advertise`.
    Advertised(Address),
    /// The address of the listener.
    Bound,
    /// The listener is on all addresses of this host. This one was chosen, with the port of the
    /// listener.
    Chosen(IpAddr),
}

/// Addresses behind the default route, if there is one. They are reserved for documentation
/// (RFC 5737, RFC 3849). Nothing is sent there.
const REMOTE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

impl InvitationAddress {
    /// The address for an invitation to a listener on `listen`.
    ///
    /// A listener on all addresses gets the address of the default route. A host name would not do:
    /// the source may not know it, or may know another machine by it.
    pub(crate) fn new(advertise: Option<&Address>, listen: &Address) -> Result<Self, Exit> {
        Self::choose(advertise, listen, own_address)
    }

    fn choose(
        advertise: Option<&Address>,
        listen: &Address,
        own_address: impl Fn(IpAddr) -> Option<IpAddr>,
    ) -> Result<Self, Exit> {
        if let Some(address) = advertise {
            return Ok(Self::Advertised(address.clone()));
        }
        let refused = |why: String| Exit::new(ExitStatus::Usage, Reason::Usage, why);
        let found = listen
            .resolve()
            .map_err(|error| refused(Report::new(&error).to_string()))?;
        let Some(everywhere) = found.iter().find(|address| address.ip().is_unspecified()) else {
            return Ok(Self::Bound);
        };
        let [v4, v6] = REMOTE;
        // A listener at [::] takes IPv4, too (bindv6only is 0, unless it was set).
        let families: &[IpAddr] = if everywhere.is_ipv4() {
            &[v4]
        } else {
            &[v6, v4]
        };
        let own = families.iter().copied().find_map(own_address);
        own.map(Self::Chosen).ok_or_else(|| {
            let what = format!(
                "{listen} means all addresses of this host, and without a default route \
                 hikkoshi cannot choose one for the invitation"
            );
            refused(what).with(
                "give the address at which the source can reach this host with --advertise \
                 HOST:PORT, or listen on one address",
            )
        })
    }

    /// The address, once the listener is bound to `bound`.
    pub(crate) fn resolve(&self, bound: &Address) -> Result<Address, Exit> {
        let own = match self {
            Self::Advertised(address) => return Ok(address.clone()),
            Self::Bound => return Ok(bound.clone()),
            Self::Chosen(own) => *own,
        };
        let usage = |error: &dyn Error| Exit::caused(ExitStatus::Usage, Reason::Usage, error);
        let found = bound.resolve().map_err(|error| usage(&error))?;
        let port = found.first().map_or(0, SocketAddr::port);
        let text = SocketAddr::new(own, port).to_string();
        text.parse().map_err(|error| usage(&error))
    }

    /// What the user has to know about it.
    pub(crate) fn notice(&self) -> Option<String> {
        match self {
            Self::Chosen(own) => Some(format!(
                "the invitation names {own}, this host's address on its default route; if the \
                 source reaches this host at another address, give that with --advertise \
                 HOST:PORT"
            )),
            Self::Advertised(_) | Self::Bound => None,
        }
    }
}

/// The address for invitations of a program that is bound to `bound`: `given`, if it is.
pub(crate) fn advertised(given: Option<&Address>, bound: &Address) -> Result<Address, Exit> {
    InvitationAddress::new(given, bound)?.resolve(bound)
}

/// The address of this host on the route to `other`.
fn own_address(other: IpAddr) -> Option<IpAddr> {
    let any = match other {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Connecting a UDP socket looks up the route and sends nothing.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((other, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified() && !own.is_loopback()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(listen: &str, has: &[&str]) -> Result<InvitationAddress, Exit> {
        let has: Vec<IpAddr> = has.iter().map(|own| own.parse().unwrap()).collect();
        let own = |other: IpAddr| {
            has.iter()
                .copied()
                .find(|own| own.is_ipv4() == other.is_ipv4())
        };
        InvitationAddress::choose(None, &listen.parse().unwrap(), own)
    }

    #[test]
    fn a_listener_on_all_addresses_names_one_that_can_be_reached() {
        let both = ["10.1.2.3", "2001:db8::7"];
        for (listen, has, invited) in [
            ("0.0.0.0:7000", &both[..], "10.1.2.3:7001"),
            ("[::]:7000", &both, "[2001:db8::7]:7001"),
            ("[::]:7000", &both[..1], "10.1.2.3:7001"),
        ] {
            let address = chosen(listen, has).unwrap();
            // As bound: the port may have been 0.
            let bound = listen.replace("7000", "7001").parse().unwrap();
            assert_eq!(address.resolve(&bound).unwrap().to_string(), invited);
            let (host, _) = invited.rsplit_once(':').unwrap();
            let notice = address.notice().unwrap();
            assert!(notice.contains(host.trim_matches(['[', ']'])), "{notice}");
            assert!(notice.contains("--advertise"), "{notice}");
        }
        assert_eq!(
            chosen("10.1.2.3:7000", &[]).unwrap(),
            InvitationAddress::Bound
        );
        let error = chosen("0.0.0.0:7000", &both[1..]).unwrap_err();
        assert_eq!(error.status(), ExitStatus::Usage);
        assert!(format!("{error:?}").contains("--advertise"), "{error:?}");
        let named: Address = "vmhost:7000".parse().unwrap();
        let address = InvitationAddress::new(Some(&named), &"0.0.0.0:0".parse().unwrap()).unwrap();
        assert_eq!(
            address.resolve(&"0.0.0.0:9".parse().unwrap()).unwrap(),
            named
        );
    }
}
