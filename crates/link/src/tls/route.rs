//! Which receiver a connection is for: a label in the first TLS message, which is not encrypted.
//!
//! Several receivers can share one port. A program in front of them reads the label, without any
//! key, and passes the connection on ([`Front`](crate::Front)). The label is an application
//! protocol (ALPN, RFC 7301) that the source offers beside the real one, and that no destination
//! chooses.

use std::fmt;

use data_encoding::HEXLOWER;
use rustls::server::Acceptor;

use super::fingerprint::Fingerprint;

/// The application protocol by which a source asks for an invitation. It keeps the connection open
/// until it has moved its guest or has given up.
pub(crate) const REQUEST_PROTOCOL: &[u8] = b"hikkoshi/1 invite";

/// The application protocol by which a host is asked about (`inquiry/`).
pub(crate) const INQUIRY_PROTOCOL: &[u8] = b"hikkoshi/1 inquire";

/// The prefix of the label; the fingerprint of the destination's key follows.
const PREFIX: &[u8] = b"hikkoshi/1 to ";

/// The fingerprint of the key of the destination that a source wants to reach. It is not a secret,
/// and it proves nothing: the receiver authenticates the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route(Fingerprint);

impl Route {
    pub(crate) fn to(destination: Fingerprint) -> Self {
        Self(destination)
    }

    /// The application protocol that names it.
    pub(crate) fn label(self) -> Vec<u8> {
        [PREFIX, self.to_string().as_bytes()].concat()
    }

    pub(crate) fn of_label(label: &[u8]) -> Option<Self> {
        let text = label.strip_prefix(PREFIX)?;
        let bytes = HEXLOWER.decode(text).ok()?;
        Some(Self(Fingerprint::from_bytes(bytes.try_into().ok()?)))
    }
}

/// What a source wants of a front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A connection to this receiver.
    Receiver(Route),
    /// An invitation, for its certificate.
    Invitation,
    /// An answer about the host, for its certificate.
    Answer,
}

impl Wanted {
    /// What the source of a whole TLS record with a ClientHello wants; `None`: it does not say, or
    /// it is no ClientHello.
    pub(crate) fn of_client_hello(mut record: &[u8]) -> Option<Self> {
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut record).ok()?;
        let accepted = acceptor.accept().ok()??;
        let hello = accepted.client_hello();
        hello.alpn()?.find_map(|protocol| match protocol {
            REQUEST_PROTOCOL => Some(Self::Invitation),
            INQUIRY_PROTOCOL => Some(Self::Answer),
            other => Route::of_label(other).map(Self::Receiver),
        })
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_label_names_its_route() {
        let route = Route::to(Fingerprint::of_key(b"a key"));
        assert_eq!(Route::of_label(&route.label()), Some(route));
        assert_eq!(route.to_string().len(), 32);
        let label = route.label();
        let cut = &label[..label.len() - 1];
        let upper = label.to_ascii_uppercase();
        for other in [&b""[..], b"hikkoshi/1", PREFIX, cut, &upper] {
            assert_eq!(Route::of_label(other), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let record = [&[22, 3, 1, 2, 0][..], &bytes].concat();
            prop_assert_eq!(Wanted::of_client_hello(&record), None);
        }
    }
}
