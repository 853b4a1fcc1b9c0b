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
mod source;

pub use front::InvitationRequest;
pub(crate) use front::{BadRequest, accept_request};
pub use source::{KeptRequest, RequestError, request_invitation};

/// The longest name of a guest, in bytes.
pub(crate) const MAX_NAME: usize = 64;

/// The text is an invitation.
const INVITED: u8 = 1;

/// The text says why there is no invitation.
const REFUSED: u8 = 2;
