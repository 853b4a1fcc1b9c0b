//! Restores everything that was changed in QEMU.

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationGuest};

use super::{QemuDestination, ReleaseDestinationError};
use crate::migration_settings::{self, Settings};
use crate::qmp::COMMAND_TIMEOUT;
use crate::qmp::reconnect::{self, ConnectTimeouts, MonitorError};
use crate::stream::close_fd;

impl QemuDestination {
    pub(super) fn restore_settings(&mut self) -> Result<(), MonitorError> {
        self.stop_listening();
        let timeouts = ConnectTimeouts {
            failing: COMMAND_TIMEOUT,
            silent: COMMAND_TIMEOUT,
        };
        let (monitor, process) = (&*self.monitor, &self.process);
        let never = CancelFlag::new();
        let client =
            reconnect::get_or_connect(&mut self.client, monitor, process, timeouts, &never)?;
        migration_settings::apply(client, &self.settings)?;
        Ok(close_fd(client)?)
    }

    pub(super) fn release_qemu(&mut self) -> Result<(), ReleaseDestinationError> {
        let mut first: Result<(), ReleaseDestinationError> = Ok(());
        if let Some(userfault) = &self.userfault {
            match userfault.close_remote() {
                Ok(()) => self.userfault = None,
                Err(error) => first = Err(error.into()),
            }
        }
        self.kill_daemon();
        // Before the socket is closed: QEMU may end then.
        if !self.has_ended()
            && let Err(error) = self.end_server()
        {
            match error {
                MonitorError::Qmp(error) if error.is_closed() => {}
                error if first.is_ok() => first = Err(ReleaseDestinationError::Disks(error)),
                error => {
                    tracing::warn!(error = %Report::new(&error), "ending the NBD server of QEMU")
                }
            }
        }
        self.socket = None;
        if let Some(mut piped) = self.piped.take() {
            // A guest that will not run here, in a QEMU that cannot receive another one. But a
            // guest that may run must not be ended.
            piped.end_unless_it_runs(self.never_ran);
            piped.remove();
        }
        if self.settings != Settings::default() && !self.has_ended() {
            match self.restore_settings() {
                // A QEMU that has exited needs no restoring.
                Ok(()) => self.settings = Settings::default(),
                Err(MonitorError::Qmp(error)) if error.is_closed() => {
                    self.settings = Settings::default();
                }
                Err(error) if first.is_ok() => first = Err(error.into()),
                Err(error) => {
                    tracing::warn!(error = %Report::new(&error), "restoring QEMU's migration settings")
                }
            }
        }
        if let Some(exit_watch) = &self.exit_watch {
            exit_watch.enable();
        }
        first
    }
}

impl Drop for QemuDestination {
    fn drop(&mut self) {
        if self.loading {
            // Pages may be missing, and closing the userfaultfd would silently turn
            // them into zeros.
            if let Some(piped) = &mut self.piped {
                piped.keep();
            }
            return self.abandon_userfault();
        }
        if let Err(error) = self.release_qemu() {
            tracing::warn!(error = %Report::new(&error), "restoring what was changed in QEMU");
        }
    }
}
