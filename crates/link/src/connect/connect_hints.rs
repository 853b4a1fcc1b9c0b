//! What to check when a connection attempt fails.

use std::io::{self, ErrorKind};

/// What the operator should check after a connection attempt failed with `error`: empty if the
/// error is enough, or a text in parentheses after a space.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            " (does 'hikkoshi receive' run there, and listen on this port? A firewall can refuse \
             connections, too)"
        }
        ErrorKind::TimedOut => {
            " (does 'hikkoshi receive' run there, or does a firewall drop packets to this port?)"
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            " (is the address right, is there a route to it, and does a firewall reject it?)"
        }
        ErrorKind::NotFound => " (there is no such socket: does 'hikkoshi receive' run there?)",
        ErrorKind::PermissionDenied => {
            " (this user is not allowed to connect: run as the user who runs 'hikkoshi receive', \
             or as root; a firewall can also be the cause)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HandshakeError;

    #[test]
    fn the_advice_depends_on_the_error() {
        let message = |kind: ErrorKind| HandshakeError::Connect(kind.into()).to_string();
        assert!(message(ErrorKind::ConnectionRefused).contains("listen on this port?"));
        assert!(message(ErrorKind::TimedOut).contains("or does a firewall drop"));
        assert!(message(ErrorKind::NetworkUnreachable).contains("is there a route"));
        assert!(message(ErrorKind::NotFound).contains("no such socket"));
        let other = io::Error::other("another error");
        let other = HandshakeError::Connect(other).to_string();
        assert_eq!(other, "the connection failed");
    }
}
