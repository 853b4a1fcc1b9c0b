//! A machine of a template whose guest is to boot from its disks.

use std::io;
use std::path::Path;
use std::process::Child;

use error_reporter::Report;
use hikkoshi_linux::is_served;
use hikkoshi_qemu::qmp::wait_until_started;
use rustix::process::{Pid, Signal, kill_process_group};

use super::waiting_mark::WaitingMark;
use super::{MachineFiles, logs};

/// A QEMU that was started, and whose guest does not run yet. Dropping this leaves it as it is.
#[derive(Debug)]
pub(crate) struct BootedMachine {
    child: Child,
    files: MachineFiles,
    /// No receiver may start a machine of the same name meanwhile.
    _mark: WaitingMark,
}

impl BootedMachine {
    /// Starts it in the run folder `run`; `template` is the content of the template.
    ///
    /// # Errors
    /// A machine of the same name runs or is being started, or the template cannot be used.
    pub(crate) fn start(run: &Path, name: &str, template: &str) -> Result<Self, String> {
        let preparing = |error: io::Error| {
            let error = Report::new(&error);
            format!("preparing the files of the guest {name}: {error}")
        };
        super::make_folder(run).map_err(preparing)?;
        let run = crate::journal::absolute(run);
        let mark = WaitingMark::lock(&run, name).map_err(preparing)?;
        let files = MachineFiles::new(&run, name).map_err(preparing)?;
        let words = files.boot_command_line(template);
        let mut words = words.map_err(|why| format!("the template: {why}"))?;
        // The guest does not run before QEMU's monitor can be used: a QEMU whose virtual processors
        // run is never seen to wait for clients.
        words.arguments.push("-S".to_owned());
        let child = files
            .spawn(&words)
            .map_err(|error| format!("starting {}: {}", words.program, Report::new(&error)))?;
        Ok(Self {
            child,
            files,
            _mark: mark,
        })
    }

    /// Whether its QMP socket is served, and can be connected to.
    pub(crate) fn is_served(&self) -> bool {
        let served = is_served(&self.files.qmp).unwrap_or(false);
        if served {
            wait_until_started(&self.files.qmp);
        }
        served
    }

    /// Whether the program that was started has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Why it does not run: what it has said.
    pub(crate) fn why_not(&mut self) -> String {
        let what = match self.child.try_wait() {
            Ok(Some(status)) => format!("it has ended ({status})"),
            _ => "it has not opened its QMP socket in time".to_owned(),
        };
        format!("{what}: {}", logs::tail(&self.files.log))
    }

    /// Ends it, and a QEMU that it has started instead of becoming it.
    pub(crate) fn end(&mut self) {
        let group = Pid::from_child(&self.child);
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
