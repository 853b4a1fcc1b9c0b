//! The sockets of machines that other programs start with one command line, any number of them.

use super::VmProcess;
use super::start::PreparedVm;
use crate::{Lab, LabError, VmConfig};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::socket_peercred;
use std::ffi::OsString;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where these machines connect to: with their console, and with their monitor.
#[derive(Debug)]
pub(crate) struct MachineSockets {
    prepared: PreparedVm,
    /// Connections whose machine has not made the other one yet.
    halves: Mutex<Vec<Half>>,
}

/// A connection of a machine: its console, or else its monitor.
#[derive(Debug)]
struct Half {
    pid: u32,
    is_console: bool,
    stream: UnixStream,
}

/// A machine that has connected: its process, its console and its monitor.
pub(crate) type Connected = (u32, VmProcess, UnixStream, UnixStream);

impl MachineSockets {
    /// Prepares everything that the command line needs.
    pub(crate) fn prepare(config: &VmConfig, lab: &Lab, name: &str) -> Result<Self, LabError> {
        Ok(Self {
            prepared: config.prepare(lab, name)?,
            halves: Mutex::default(),
        })
    }

    /// QEMU's command line.
    pub(crate) fn command_line(&self) -> Vec<OsString> {
        self.prepared.command_line()
    }

    /// The next machine. `None`: none has connected within `wait`.
    pub(crate) fn accept(&self, wait: Duration) -> Result<Option<Connected>, LabError> {
        let listeners = [
            &self.prepared.console_listener.0,
            &self.prepared.harness_listener,
        ];
        let mut polled = listeners.map(|listener| PollFd::new(listener, PollFlags::IN));
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let doing = || LabError::file("waiting at the sockets of", self.prepared.name.as_str());
        match rustix::event::poll(&mut polled, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(doing()(error.into())),
        }
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        for (listener, is_console) in listeners.into_iter().zip([true, false]) {
            while let Some(half) = Half::accept(listener, is_console) {
                let other = halves
                    .iter()
                    .position(|one| one.pid == half.pid && one.is_console != is_console);
                let Some(other) = other else {
                    halves.push(half);
                    continue;
                };
                let other = halves.swap_remove(other);
                let Some(pid) = rustix::process::Pid::from_raw(half.pid.cast_signed()) else {
                    continue;
                };
                // Otherwise it has ended already.
                let Ok(process) = VmProcess::adopt(pid) else {
                    continue;
                };
                let (console, monitor) = match is_console {
                    true => (half.stream, other.stream),
                    false => (other.stream, half.stream),
                };
                return Ok(Some((half.pid, process, console, monitor)));
            }
        }
        Ok(None)
    }
}

impl Half {
    fn accept(listener: &UnixListener, is_console: bool) -> Option<Self> {
        loop {
            let (stream, _) = listener.accept().ok()?;
            // One that has hung up already is none.
            if let (Ok(peer), Ok(())) = (socket_peercred(&stream), stream.set_nonblocking(false)) {
                return Some(Self {
                    pid: peer.pid.as_raw_nonzero().get().cast_unsigned(),
                    is_console,
                    stream,
                });
            }
        }
    }
}
