//! A host with a certificate asks a front about its host.
//!
//! ```text
//! asker                                front
//!   │── TLS, application protocol ─────▶│  both have certificates of an authority that the other
//!   │   "hikkoshi/1 inquire"            │  trusts; the front's names its host
//!   │── what is asked ─────────────────▶│  decides by the certificate's names
//!   │◀── the answer, or why not ────────│
//! ```
//!
//! The question is two bytes, its length (big-endian), and text. The answer is a byte that says
//! what follows: the answer's length in four bytes, and text; or the reason's in two bytes, and
//! text. What the texts mean is not known here. The application protocol keeps such a connection
//! from being taken for a link or a request for an invitation.

mod asker;
mod front;

pub use asker::{InquiryError, inquire};
pub use front::Inquiry;
pub(crate) use front::{BadInquiry, accept_inquiry};

/// The longest question, in bytes.
pub(crate) const MAX_QUESTION: usize = 64;

/// The longest answer to an inquiry, in bytes.
pub const MAX_ANSWER: usize = 4 << 20;

/// The text is the answer.
const ANSWER: u8 = 1;

/// The text says why there is no answer.
const REFUSED: u8 = 2;
