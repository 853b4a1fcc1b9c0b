//! A source's destination: the address, and how to protect the links.

use crate::Address;
use crate::tls::TlsClient;

/// A destination's address, and how the links to it are protected.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Where the destination listens.
    pub address: Address,
    /// `None`: the links are not protected.
    pub tls: Option<TlsClient>,
    /// Whether to connect to loopback addresses only, whatever the name resolves to later.
    pub loopback_only: bool,
}

impl From<Address> for Remote {
    /// Without TLS.
    fn from(address: Address) -> Self {
        Self {
            address,
            tls: None,
            loopback_only: false,
        }
    }
}
