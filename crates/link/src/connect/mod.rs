//! The source's side of new connections: addresses, connecting, and the hello of both sides.

mod address;
mod advice;
pub(crate) mod handshake;
mod remote;

pub use address::{Address, AddressError, ResolveError};
pub use handshake::{HandshakeError, hello, open};
pub use remote::Remote;
