//! The connection to a libvirt daemon, and the event loop of the library.

use std::ops::Deref;
use std::sync::OnceLock;
use std::thread;

use virt::connect::Connect;
use virt::error::Error;

use crate::DomainError;

/// A daemon that answers no keep-alive message for 5 × 3 s counts as gone.
const KEEP_ALIVE: (i32, u32) = (3, 5);

/// One reference to a connection, given back on drop. (The binding does not do that.)
#[derive(Debug)]
pub(crate) struct Connection(Connect);

impl Connection {
    /// Connects to the daemon `uri`.
    pub(crate) fn open(uri: &str) -> Result<Self, DomainError> {
        run_events().map_err(|what| DomainError::Events { what })?;
        let connection = Connect::open(Some(uri)).map_err(|error| DomainError::Connect {
            uri: uri.to_owned(),
            what: error.message().to_owned(),
        })?;
        if let Err(error) = connection.set_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1) {
            tracing::debug!(error = error.message(), "libvirt's keep-alive");
        }
        Ok(Self(connection))
    }

    /// Whether the daemon is still there.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.is_alive().unwrap_or(false)
    }
}

impl Clone for Connection {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Deref for Connection {
    type Target = Connect;

    fn deref(&self) -> &Connect {
        &self.0
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Err(error) = self.0.close() {
            tracing::debug!(error = error.message(), "closing a connection to libvirt");
        }
    }
}

/// Runs libvirt's event loop on a thread, once in a process. It must be registered before the first
/// connection is opened.
fn run_events() -> Result<(), String> {
    static RUNNING: OnceLock<Result<(), String>> = OnceLock::new();
    let run = || {
        let text = |error: Error| error.message().to_owned();
        // It would print each error.
        virt::error::clear_error_callback();
        virt::event::event_register_default_impl().map_err(text)?;
        thread::Builder::new()
            .name("libvirt-events".to_owned())
            .spawn(|| {
                while let Ok(()) = virt::event::event_run_default_impl() {}
                tracing::warn!("libvirt's event loop has ended");
            })
            .map_err(|error| error.to_string())?;
        Ok(())
    };
    RUNNING.get_or_init(run).clone()
}
