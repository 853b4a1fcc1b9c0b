//! A connection to a front, with TLS and the certificates of both sides, on which texts are
//! exchanged.

mod peer_certificate;

pub use peer_certificate::PeerCertificate;

use crate::Stream;
use crate::tls::{
    self, Opener, Sealer, SecureError, TimeLimits, TlsClient, TlsServer, accept_certified, connect,
};

/// The longest text with a length of two bytes, in bytes.
pub(crate) const MAX_TEXT: usize = 2048;

/// What is read at once of a long text: memory is not reserved for a length that is only announced.
const PIECE: usize = 16 << 10;

/// A connection with TLS.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    opener: Opener,
    sealer: Sealer,
}

impl Connection {
    /// Does the front's side of the handshake on `stream`. `server` has the application protocol.
    pub(crate) fn accept(
        stream: Stream,
        server: &TlsServer,
        limits: TimeLimits<'_>,
    ) -> Result<(Self, PeerCertificate), SecureError> {
        let (opener, sealer, certificate) = accept_certified(server, &mut &stream, limits)?;
        let connection = Self {
            stream,
            opener,
            sealer,
        };
        Ok((connection, PeerCertificate::new(certificate)))
    }

    /// Does the other side of the handshake. A certificate that the front does not accept is
    /// reported by what is read next.
    pub(crate) fn connect(
        stream: Stream,
        client: &TlsClient,
        limits: TimeLimits<'_>,
    ) -> Result<Self, SecureError> {
        let (opener, sealer) = connect(client, &mut &stream, limits)?;
        Ok(Self {
            stream,
            opener,
            sealer,
        })
    }

    pub(crate) fn send(&mut self, bytes: &[u8], limits: TimeLimits<'_>) -> Result<(), SecureError> {
        tls::send(&mut self.sealer, bytes, &mut &self.stream, limits)
    }

    pub(crate) fn receive<const N: usize>(
        &mut self,
        limits: TimeLimits<'_>,
    ) -> Result<[u8; N], SecureError> {
        let mut bytes = [0; N];
        tls::receive(&mut self.opener, &mut bytes, &mut &self.stream, limits)?;
        Ok(bytes)
    }

    /// Reads a length and that many bytes of text; `None`: it is longer than `longest`, or is not
    /// text.
    pub(crate) fn receive_text(
        &mut self,
        longest: usize,
        limits: TimeLimits<'_>,
    ) -> Result<Option<String>, SecureError> {
        let len = usize::from(u16::from_be_bytes(self.receive(limits)?));
        self.receive_bytes(len, longest, limits)
    }

    /// The same with a length of four bytes.
    pub(crate) fn receive_long_text(
        &mut self,
        longest: usize,
        limits: TimeLimits<'_>,
    ) -> Result<Option<String>, SecureError> {
        let len = u32::from_be_bytes(self.receive(limits)?);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.receive_bytes(len, longest, limits)
    }

    fn receive_bytes(
        &mut self,
        len: usize,
        longest: usize,
        limits: TimeLimits<'_>,
    ) -> Result<Option<String>, SecureError> {
        if len > longest {
            return Ok(None);
        }
        let mut text = Vec::new();
        while text.len() < len {
            let from = text.len();
            text.resize(len.min(from + PIECE), 0);
            tls::receive(
                &mut self.opener,
                &mut text[from..],
                &mut &self.stream,
                limits,
            )?;
        }
        Ok(String::from_utf8(text).ok())
    }
}

/// A text with its length in two bytes. What is too long is cut.
pub(crate) fn with_length(text: &str) -> Vec<u8> {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text.as_bytes()[..end];
    // At most MAX_TEXT.
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let sent = with_length(&"ä".repeat(MAX_TEXT));
        assert_eq!(sent.len(), 2 + MAX_TEXT);
        let sent = with_length(&format!("a{}", "ä".repeat(MAX_TEXT)));
        assert_eq!(sent.len(), 2 + MAX_TEXT - 1);
        assert!(std::str::from_utf8(&sent[2..]).is_ok());
    }

    proptest! {
        #[test]
        fn the_length_is_that_of_the_text(text in "\\PC{0,900}") {
            let sent = with_length(&text);
            let len = usize::from(u16::from_be_bytes([sent[0], sent[1]]));
            prop_assert_eq!(len, sent.len() - 2);
            prop_assert!(text.as_bytes().starts_with(&sent[2..]));
        }
    }
}
