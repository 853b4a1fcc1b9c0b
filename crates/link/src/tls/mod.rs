//! TLS 1.3 on every link, with both sides authenticated.
//!
//! There are two ways to authenticate:
//!
//! - **Invitation**: each side generates a key. The destination prints one line of text
//!   ([`Invitation`]): its address, the fingerprint of its key, and a secret. The source accepts no
//!   other key. It proves that it knows the secret by a MAC over the fingerprints of both keys, and
//!   TLS proves that it has its own key. From the first migration on, the destination accepts only
//!   that migration's source: the source's key authenticates all its links, also after a reconnect
//!   (`source_authorization.rs`).
//! - **Authority**: both sides have certificates of an authority that both trust
//!   ([`Certificates`]); the destination's certificate must name the host that the source connects
//!   to.
//!
//! To continue a migration after its process has ended, each side saves a small record:
//! [`SourceCredentials`] and [`DestinationCredentials`].
//!
//! rustls does the handshake (`rustls_handshake.rs`; `invited_handshake.rs` adds the proof), with
//! the configuration in `config.rs`. This crate seals and opens the records after it
//! (`record_encrypt.rs`, `record_decrypt.rs`), with the keys that rustls exports. So the two
//! directions of a link have separate state, and neither allocates memory.

mod certificate_files;
mod certificates;
mod config;
mod credentials;
mod error;
mod fingerprint;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod invitation;
mod invited_handshake;
mod keys;
mod own_certificate;
mod peer_key;
mod receive_buffer;
mod record_decrypt;
mod record_encrypt;
mod route;
mod rustls_handshake;
mod secure_error;
mod source_authorization;
mod time_limits;

#[cfg(test)]
pub(crate) mod test_authority;
#[cfg(test)]
mod tests;

pub use certificates::Certificates;
pub use config::{TlsClient, TlsServer};
pub use credentials::{DestinationCredentials, SourceCredentials};
pub use error::{CertificateProblem, CertificatesError, Validity};
pub use fingerprint::Fingerprint;
pub use invitation::{Invitation, InvitationError};
pub use route::Route;
pub(crate) use route::{INQUIRY_PROTOCOL, REQUEST_PROTOCOL, Wanted};
pub use secure_error::SecureError;
pub use time_limits::TimeLimits;

pub(crate) use invited_handshake::{accept, accept_certified, connect, receive, send};
pub(crate) use record_decrypt::Opener;
pub use record_encrypt::Sealer;
