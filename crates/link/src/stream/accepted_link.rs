//! An accepted connection.

use std::net::IpAddr;

use hikkoshi_wire::{MigrationId, Role};

use crate::Stream;
use crate::tls::Fingerprint;

/// A connection whose handshake is complete.
#[derive(Debug)]
pub struct AcceptedLink {
    /// The link's role.
    pub role: Role,
    /// The migration that it belongs to.
    pub id: MigrationId,
    /// The connection.
    pub stream: Stream,
    /// The peer's address, for messages.
    pub peer: String,
    /// The peer's IP address; `None` on a unix socket.
    pub from: Option<IpAddr>,
    /// The fingerprint of the source's key, if it was authenticated by invitation.
    pub source: Option<Fingerprint>,
}
