//! The source's end of new connections: addresses, connecting, and the first message of a link.

mod address;
mod advice;
pub(crate) mod handshake;
mod remote;

pub use address::{Address, AddressError, ResolveError};
pub use handshake::{HandshakeError, hello, open};
pub use remote::Remote;
