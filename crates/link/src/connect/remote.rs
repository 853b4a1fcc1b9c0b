//! Where a source finds its destination.

use crate::Address;
use crate::tls::TlsClient;

/// A destination's address, and how the links to it are protected.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Where it listens.
    pub address: Address,
    /// `None`: they are not.
    pub tls: Option<TlsClient>,
    /// Whether what is said must not leave this machine, wherever the address
    /// may lead when it is looked up.
    pub only_here: bool,
}

impl From<Address> for Remote {
    /// Without protection.
    fn from(address: Address) -> Self {
        Self {
            address,
            tls: None,
            only_here: false,
        }
    }
}
