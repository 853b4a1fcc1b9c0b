//! A source with a certificate asks a front for an invitation.
//!
//! A destination that receives one guest authenticates a certificate itself. A [`Front`] has many
//! receivers, and makes one for a guest when a source asks for it:
//!
//! ```text
//! source                               front
//!   │── TLS, application protocol ─────▶│  both have certificates of an authority that the other
//!   │   "hikkoshi/1 invite"             │  trusts; the front's names its host
//!   │── the guest's name ──────────────▶│  decides by the certificate's names
//!   │◀── an invitation, or why not ─────│
//! ```
//!
//! The migration is one by that invitation, on new connections. So certificates are needed only
//! here; the application protocol keeps such a connection from being taken for a link.
//!
//! The source keeps this connection open until it has moved its guest or has given up. A receiver
//! that is still waiting for it when the connection ends ends, too.
//!
//! Each message is two bytes, the length (big-endian), and text. The front's has a byte before
//! that: what the text is.
//!
//! [`Front`]: crate::Front

mod front;
mod peer_certificate;
mod source;

pub use front::InvitationRequest;
pub(crate) use front::{BadRequest, accept_request};
pub use peer_certificate::PeerCertificate;
pub use source::{KeptRequest, RequestError, request_invitation};

use crate::Stream;
use crate::tls::{self, Opener, Sealer, SecureError, TimeLimits};

/// The longest text, in bytes.
pub(crate) const MAX_TEXT: usize = 2048;

/// The longest name of a guest, in bytes.
pub(crate) const MAX_NAME: usize = 64;

/// The text is an invitation.
const INVITED: u8 = 1;

/// The text says why there is no invitation.
const REFUSED: u8 = 2;

/// A connection with TLS, on which messages are exchanged.
#[derive(Debug)]
struct Connection {
    stream: Stream,
    opener: Opener,
    sealer: Sealer,
}

impl Connection {
    fn send(&mut self, bytes: &[u8], limits: TimeLimits<'_>) -> Result<(), SecureError> {
        tls::send(&mut self.sealer, bytes, &mut &self.stream, limits)
    }

    fn receive<const N: usize>(&mut self, limits: TimeLimits<'_>) -> Result<[u8; N], SecureError> {
        let mut bytes = [0; N];
        tls::receive(&mut self.opener, &mut bytes, &mut &self.stream, limits)?;
        Ok(bytes)
    }

    /// Reads a length and that many bytes of text; `None`: it is longer than `longest`, or is not
    /// text.
    fn receive_text(
        &mut self,
        longest: usize,
        limits: TimeLimits<'_>,
    ) -> Result<Option<String>, SecureError> {
        let len = usize::from(u16::from_be_bytes(self.receive(limits)?));
        if len > longest {
            return Ok(None);
        }
        let mut text = vec![0; len];
        tls::receive(&mut self.opener, &mut text, &mut &self.stream, limits)?;
        Ok(String::from_utf8(text).ok())
    }
}

/// A text with its length. What is too long is cut.
fn with_length(text: &str) -> Vec<u8> {
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
