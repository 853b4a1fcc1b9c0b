//! What a source connects to, and what to check when that fails.

pub(crate) mod connect_hints;
mod remote;

pub use remote::Remote;
