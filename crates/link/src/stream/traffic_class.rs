//! How a link's packets are marked, for networks and hosts that look.

use hikkoshi_wire::Role;

/// What kind of traffic a link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficClass {
    /// Somebody waits for it: the urgent and the control link.
    Urgent,
    /// Nobody does.
    Bulk,
}

impl TrafficClass {
    /// The mark of a link.
    pub fn of(role: Role) -> Self {
        match role {
            Role::Background { .. } => Self::Bulk,
            _ => Self::Urgent,
        }
    }

    /// The differentiated services code point (RFC 2474), the upper six bits of
    /// `IP_TOS` or `IPV6_TCLASS`. AF21 for urgent: RFC 4594, section 4.7, has
    /// it for answers that a user waits for, and RFC 8325, section 4.2.6, gives
    /// it best effort or better on Wi-Fi. AF11 for bulk: RFC 4594, section 4.8,
    /// "high-throughput data". Not expedited forwarding (EF), which is for
    /// little traffic that was admitted, and not lower effort (RFC 8622), which
    /// may be starved: a move has to end.
    pub(crate) fn dscp(self) -> u32 {
        match self {
            Self::Urgent => 18,
            Self::Bulk => 10,
        }
    }

    /// `SO_PRIORITY`, for this host's queues; up to 6 nobody needs a privilege
    /// (`socket(7)`). The numbers are `linux/pkt_sched.h`'s: interactive and
    /// bulk, which `pfifo_fast` serves first and last.
    pub fn priority(self) -> u32 {
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

    /// A marked connection to `host`: its priority, and the socket.
    fn marked(host: &str, mark: TrafficClass) -> TcpStream {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let kept = stream.try_clone().unwrap();
        Stream::tcp(stream).unwrap().mark(mark);
        kept
    }

    #[test]
    fn the_kernel_has_what_was_marked() {
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
    fn only_background_is_bulk() {
        assert_eq!(TrafficClass::of(Role::Control), TrafficClass::Urgent);
        assert_eq!(TrafficClass::of(Role::Urgent), TrafficClass::Urgent);
        assert_eq!(
            TrafficClass::of(Role::Background { index: 3 }),
            TrafficClass::Bulk
        );
    }
}
