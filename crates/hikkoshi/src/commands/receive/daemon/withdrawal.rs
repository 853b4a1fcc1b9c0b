//! Withdraws invitations.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_qemu::QmpListener;
use rustix::process::Signal;

use super::children::Children;
use crate::output::streams;

/// How long a receiver may take to end: it ends its QEMU before.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How often to look whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Children {
    /// Withdraws the invitation of a guest that is awaited, and waits until its receiver has ended.
    /// A guest whose source has connected is not affected.
    pub(super) fn withdraw(&self, name: &str) -> Result<(), String> {
        let journals = self
            .journals()
            .map_err(|error| format!("looking for its journal: {}", Report::new(&error)))?;
        if journals.of(name).is_some() {
            return Err(format!("the guest {name} has arrived here already"));
        }
        let process = self
            .receiver(name)?
            .ok_or_else(|| format!("no guest with the name {name} is awaited"))?;
        process
            .signal(Signal::USR1)
            .map_err(|error| format!("ending its receiver: {}", Report::new(&error)))?;
        let begun = Instant::now();
        while process.is_alive() || self.state().running.contains_key(name) {
            if begun.elapsed() > END_TIMEOUT {
                return Err(format!(
                    "the source of the guest {name} has connected: 'hikkoshi cancel' there keeps \
                     the guest there"
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
        streams::notice(&format!("guest {name}: its invitation was withdrawn"));
        Ok(())
    }

    /// The process that receives this guest: a child, or one of an earlier daemon.
    fn receiver(&self, name: &str) -> Result<Option<Arc<Process>>, String> {
        let text = |error: io::Error| format!("finding its receiver: {}", Report::new(&error));
        let child = self.state().running.get(name).cloned();
        let starts = match child {
            Some(Some(process)) => return Ok(Some(process)),
            // It is being started, or it was started and could not be opened.
            Some(None) => true,
            None => false,
        };
        match QmpListener::at(&self.receivers.socket(name)).map_err(text)? {
            QmpListener::None if starts => {
                Err(format!("the receiver of the guest {name} is being started"))
            }
            QmpListener::None => Ok(None),
            QmpListener::Process(pid) => Process::open(pid).map(Arc::new).map(Some).map_err(text),
            QmpListener::Unknown => {
                Err(format!("the receiver of the guest {name} does not answer"))
            }
        }
    }
}
