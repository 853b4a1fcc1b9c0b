//! The error of a guest adapter.

use std::error::Error;
use std::fmt;

/// An error of a guest adapter.
///
/// The text says what was being done, to what, what went wrong and what to do next; the engine adds
/// only where the guest is.
#[derive(Debug)]
pub struct GuestError(Box<dyn Error + Send + Sync>);

impl GuestError {
    /// Wraps an adapter's error.
    pub fn new(inner: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(inner.into())
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for GuestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
