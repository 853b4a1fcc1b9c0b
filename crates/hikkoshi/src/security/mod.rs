//! How the links are protected: from the command line or the journal to what the engine takes.

mod acceptor;
mod certificates;
mod connector;
mod errors;
mod invitation_address;
mod renewed_certificate;

pub(crate) use acceptor::Acceptor;
pub(crate) use certificates::{readable_key, warn_of_readable_key};
pub(crate) use connector::{certified, invited, invited_by_certificate, remote, resumed_remote};
pub(crate) use invitation_address::advertised;
pub(crate) use renewed_certificate::RenewedCertificate;
