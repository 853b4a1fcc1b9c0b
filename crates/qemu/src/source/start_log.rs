//! Starts the dirty log.

use std::sync::Arc;

use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_linux::HostAddr;
use hikkoshi_userfault::{Features, RemoteUserfault};

use super::QemuSource;
use super::error::StartLogError;
use crate::attach::preflight::{self, untested};
use crate::qmp::reconnect::connected;

impl QemuSource {
    /// Opens a userfaultfd inside QEMU, and starts the log of its memory.
    pub(super) fn start_log(&mut self) -> Result<Arc<dyn DirtyLog>, StartLogError> {
        if self.log.is_some() {
            return Err(StartLogError::Twice);
        }
        hikkoshi_dirty::support()?;
        self.begin_move().map_err(StartLogError::Move)?;
        let client = connected(&mut self.client)?;
        self.needs_drain = preflight::needs_drain(client)?;
        // Also if the mode was known: a disk may have been plugged since.
        if let Some(refusal) = untested::check_drain(client, &mut self.drains)? {
            return Err(StartLogError::Refused(refusal));
        }
        let userfault = RemoteUserfault::create_in(&self.qemu.process, Features::FOR_DIRTY_LOG)?;
        let hosts: Vec<HostAddr> = self.qemu.addresses.iter().copied().map(HostAddr).collect();
        // On an error, dropping the userfaultfd closes it.
        let log = PagemapLog::start(
            Arc::clone(userfault.userfault()),
            self.qemu.ram.layout(),
            &hosts,
        )?;
        let log = Arc::new(log);
        self.userfault = Some(userfault);
        self.log = Some(Arc::clone(&log));
        Ok(log)
    }
}
