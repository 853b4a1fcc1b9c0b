//! Ends the source's QEMU after its guest has moved (`--quit-source`).

use std::time::{Duration, Instant};

use hikkoshi_engine::Cancel;
use hikkoshi_linux::Process;
use serde_json::json;
use thiserror::Error;

use super::QemuSource;
use crate::identity::QemuIdentity;
use crate::identity::namespaces::FindProcessError;
use crate::qmp::monitor;
use crate::qmp::{Client, ConnectError, QmpError, migration};

/// How long QEMU may take to end: it flushes its disks first.
const QUIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How often to look.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The source's QEMU was not ended.
#[derive(Debug, Error)]
pub enum QuitError {
    /// It is not known whether its process still exists.
    #[error(transparent)]
    Find(#[from] FindProcessError),
    /// Its monitor could not be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A command failed.
    #[error("ending the source's QEMU")]
    Qmp(#[from] QmpError),
    /// Its guest runs.
    #[error("ending the source's QEMU: its guest runs (state {state}), so it was left alone")]
    Runs {
        /// QEMU's name for the state.
        state: String,
    },
    /// It does not end.
    #[error("process {pid} of the source's QEMU has not ended {} s after the QMP command 'quit'", QUIT_TIMEOUT.as_secs())]
    Remains {
        /// Its number.
        pid: u32,
    },
}

impl QemuSource {
    /// Ends QEMU, whose guest has moved away with every page. Succeeds if it has ended already.
    ///
    /// # Errors
    ///
    /// See [`QuitError`]. A QEMU whose guest runs is left alone.
    pub fn quit(&mut self) -> Result<(), QuitError> {
        if !self.qemu.process.is_alive() {
            return Ok(());
        }
        let process = std::sync::Arc::clone(&self.qemu.process);
        quit(self.monitor()?, &process)?;
        // Nothing is left to be restored.
        self.detached = true;
        Ok(())
    }
}

/// Ends this QEMU, whose guest has moved away with every page. Succeeds if it has ended already.
///
/// # Errors
///
/// See [`QuitError`]. A QEMU whose guest runs is left alone.
pub fn quit_source(identity: &QemuIdentity) -> Result<(), QuitError> {
    let Some(process) = identity.process()? else {
        return Ok(());
    };
    let mut client = None;
    let client = monitor::get_or_connect(
        &mut client,
        &identity.qmp,
        &process,
        monitor::RECONNECT_TIMEOUTS,
        &Cancel::new(),
    );
    match client {
        Ok(client) => quit(client, &process),
        Err(_) if !process.is_alive() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn quit(client: &mut Client, process: &Process) -> Result<(), QuitError> {
    let state = migration::run_state(client)?;
    if state.running {
        return Err(QuitError::Runs {
            state: state.status,
        });
    }
    let said = client.execute("quit", json!({}));
    let deadline = Instant::now() + QUIT_TIMEOUT;
    while process.is_alive() {
        if Instant::now() > deadline {
            // QEMU may close the connection before it answers.
            said?;
            return Err(QuitError::Remains { pid: process.pid() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
