//! TLS 1.3 on every link, with both sides authenticated.
//!
//! There are two ways to authenticate:
//!
//! - **Invitation**: each side generates a key. The destination prints one line of text
//!   ([`Invitation`]): its address, the fingerprint of its key, and a secret. The source accepts no
//!   other key. It proves that it knows the secret by a MAC over the fingerprints of both keys, and
//!   TLS proves that it has its own key. From the first migration on, the destination accepts only
//!   that migration's source: the source's key authenticates all its links, also after a reconnect
//!   (`authorization.rs`).
//! - **Authority**: both sides have certificates of an authority that both trust
//!   ([`Certificates`]); the destination's certificate must name the host that the source connects
//!   to.
//!
//! To continue a migration after its process has ended, each side saves a small record:
//! [`SourceCredentials`] and [`DestinationCredentials`].
//!
//! rustls does the handshake (`handshake.rs`), with the configuration in `config.rs`. This crate
//! seals and opens the records after it (`seal.rs`, `open.rs`), with the keys that rustls exports.
//! So the two directions of a link have separate state, and neither allocates memory.

mod authorization;
mod certificate_check;
mod certificates;
mod config;
mod credentials;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod identity;
mod invitation;
mod keys;
mod open;
mod seal;
mod verify;

#[cfg(test)]
mod tests;

pub use certificate_check::{CertificateProblem, Validity};
pub use certificates::{Certificates, CertificatesError};
pub use config::{TlsClient, TlsServer};
pub use credentials::{DestinationCredentials, SourceCredentials};
pub use handshake::{SecureError, TimeLimits};
pub use invitation::{Fingerprint, Invitation, InvitationError};

pub(crate) use handshake::{accept, connect, receive, send};
pub(crate) use open::Opener;
pub use seal::Sealer;
