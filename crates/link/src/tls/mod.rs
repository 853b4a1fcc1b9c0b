//! TLS 1.3 on every link, with both sides authenticated.
//!
//! Two ways to know each other:
//!
//! - **Invitation**: each side makes a key of its own. The destination shows
//!   one short text ([`Invitation`]): where it listens, the fingerprint of its
//!   key, and a secret. The source accepts no other key; it proves that it
//!   knows the secret by a MAC over the fingerprints of both keys, and TLS
//!   proves that it has its own. The first source to begin a migration is the
//!   only one from then on: all links of that migration, those of a later
//!   connection too, are known by that source's key (`admission.rs`).
//! - **Authority**: both sides have certificates of an authority that both
//!   trust ([`Certificates`]); the destination's must name the host that the
//!   source connects to.
//!
//! What either side needs to come back to the same migration, after its
//! process has ended, is a small record: [`SourceCredentials`] and
//! [`DestinationCredentials`].
//!
//! rustls shakes hands (`handshake.rs`); `config.rs` says what is negotiated.
//! The records after that are made and opened here (`seal.rs`, `open.rs`), with
//! the keys that rustls gives out for that purpose: so the two directions of a
//! link share nothing, and neither allocates.

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
