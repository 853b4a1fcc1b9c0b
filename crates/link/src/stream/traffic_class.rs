//! Traffic classes: how a link's packets are marked for networks and hosts.

use hikkoshi_wire::Role;

/// The kind of traffic that a link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrafficClass {
    /// The urgent and the control link: the guest or the other side waits for the data.
    Urgent,
    /// Background links, and the links for network frames and disks.
    Bulk,
}

impl TrafficClass {
    /// The traffic class of a link.
    pub(crate) fn of_role(role: Role) -> Self {
        match role {
            Role::Background { .. } | Role::Frames | Role::Disk { .. } => Self::Bulk,
            _ => Self::Urgent,
        }
    }

    /// The differentiated services code point (RFC 2474), the upper six bits of `IP_TOS` or
    /// `IPV6_TCLASS`. AF21 for urgent: RFC 4594, section 4.7, recommends it for responses that a
    /// user waits for, and RFC 8325, section 4.2.6, maps it to best effort or better on Wi-Fi. AF11
    /// for bulk: RFC 4594, section 4.8, "high-throughput data". Not expedited forwarding (EF),
    /// which is for a small amount of admitted traffic, and not lower effort (RFC 8622), which may
    /// be starved: a migration must make progress.
    pub(crate) fn dscp(self) -> u32 {
        match self {
            Self::Urgent => 18,
            Self::Bulk => 10,
        }
    }

    /// `SO_PRIORITY`, for this host's queues; values up to 6 need no privilege (`socket(7)`). The
    /// numbers are from `linux/pkt_sched.h`: interactive and bulk, which `pfifo_fast` serves first
    /// and last.
    pub(crate) fn priority(self) -> u32 {
        match self {
            Self::Urgent => 6,
            Self::Bulk => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;
    use socket2::SockRef;
    use std::net::{TcpListener, TcpStream};

    /// A marked connection to `host`.
    fn marked(host: &str, mark: TrafficClass) -> TcpStream {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let clone = stream.try_clone().unwrap();
        Stream::tcp(stream).unwrap().mark(mark);
        clone
    }

    #[test]
    fn the_kernel_has_the_traffic_class() {
        for mark in [TrafficClass::Urgent, TrafficClass::Bulk] {
            let stream = marked("127.0.0.1", mark);
            let socket = SockRef::from(&stream);
            assert_eq!(socket.tos_v4().unwrap(), mark.dscp() << 2);
            assert_eq!(socket.priority().unwrap(), mark.priority());
            let stream = marked("::1", mark);
            let socket = SockRef::from(&stream);
            assert_eq!(socket.tclass_v6().unwrap(), mark.dscp() << 2);
            assert_eq!(socket.priority().unwrap(), mark.priority());
        }
    }

    #[test]
    fn links_that_nothing_waits_for_are_bulk() {
        assert_eq!(TrafficClass::of_role(Role::Control), TrafficClass::Urgent);
        assert_eq!(TrafficClass::of_role(Role::Urgent), TrafficClass::Urgent);
        assert_eq!(
            TrafficClass::of_role(Role::Background { index: 3 }),
            TrafficClass::Bulk
        );
        assert_eq!(TrafficClass::of_role(Role::Frames), TrafficClass::Bulk);
        assert_eq!(
            TrafficClass::of_role(Role::Disk { index: 0 }),
            TrafficClass::Bulk
        );
    }
}
