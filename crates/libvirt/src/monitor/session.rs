//! A session on a domain's monitor, which the daemon lends.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, ConnectError, MonitorAddress};

use super::serve;
use crate::DomainError;
use crate::call::Call;
use crate::daemon::Daemon;

/// How long to wait until a session is open.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a session may take to begin: the daemon is connected to, and QEMU tells its version.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

impl Daemon {
    /// Opens a session on the monitor.
    pub(crate) fn session(
        &self,
        monitor: &MonitorAddress,
        process: &Arc<Process>,
    ) -> Result<Client, DomainError> {
        let stream = self.begin_session(monitor, process)?;
        Ok(Client::over(stream, monitor, Arc::clone(process), TIMEOUT)?)
    }

    /// Begins a session, or continues to wait for one that was begun. QEMU may be silent for long,
    /// and its commands through libvirt with it.
    fn begin_session(
        &self,
        monitor: &MonitorAddress,
        process: &Arc<Process>,
    ) -> Result<UnixStream, DomainError> {
        let pid = process.pid();
        loop {
            let earlier = self.beginning().take().filter(|(of, _)| *of == pid);
            let is_earlier = earlier.is_some();
            let (_, begun) = match earlier {
                Some(earlier) => earlier,
                None => {
                    let (daemon, process) = (self.clone(), Arc::clone(process));
                    let call = Call::start(move || serve::start(&daemon, &process));
                    (pid, call.map_err(|error| self.not_lent(error.to_string()))?)
                }
            };
            match begun.wait(SESSION_TIMEOUT) {
                // It may have failed long ago.
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) if is_earlier => {}
                Ok(begun) => return begun,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.not_lent("its thread has ended".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    *self.beginning() = Some((pid, begun));
                    return Err(DomainError::Monitor(ConnectError::NoGreeting {
                        monitor: Box::new(monitor.clone()),
                        after: SESSION_TIMEOUT,
                        accepted: false,
                    }));
                }
            }
        }
    }
}
