//! The error of a guest adapter.

use std::error::Error;
use std::fmt;

/// An error of a guest adapter.
///
/// The text says what was being done, to what, what went wrong and what to do next; the engine adds
/// only where the guest is.
#[derive(Debug)]
pub struct GuestError {
    inner: Box<dyn Error + Send + Sync>,
    explains_end: bool,
    for_peer: Option<String>,
}

impl GuestError {
    /// Wraps an adapter's error.
    pub fn new(inner: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            inner: inner.into(),
            explains_end: false,
            for_peer: None,
        }
    }

    /// This error, which also says why the machine's process has ended, if it has. Otherwise
    /// that it has ended is reported instead of errors that follow from it.
    #[must_use]
    pub fn explaining_end(self) -> Self {
        Self {
            explains_end: true,
            ..self
        }
    }

    /// This error, of which the peer is sent only this text: the rest is about this host.
    #[must_use]
    pub fn with_text_for_peer(self, text: String) -> Self {
        Self {
            for_peer: Some(text),
            ..self
        }
    }

    /// What the peer is sent instead of the error and its sources.
    pub(crate) fn text_for_peer(&self) -> Option<&str> {
        self.for_peer.as_deref()
    }

    pub(crate) fn explains_end(&self) -> bool {
        self.explains_end
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Error for GuestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner.source()
    }
}
