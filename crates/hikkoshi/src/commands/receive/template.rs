//! `receive --template`: starts the destination's QEMU from a file with its command line.
//!
//! QEMU is a process of its own: it continues when `receive` ends, unless the guest stays at
//! the source. If a receiver of a daemon is killed before the handover, the daemon ends its QEMU
//! ([`WaitingMark`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::{connect_unix, is_served};
use hikkoshi_qemu::qmp::wait_until_started;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::{DEFAULT_GUEST_NAME, Receive};
use crate::commands::operator_file;
use crate::commands::signals;
use crate::journal::absolute;
use crate::machines::WaitingMark;
use crate::machines::{self, MachineFiles};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;

/// How long QEMU may take to open its QMP socket.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How often to look for the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A QEMU that was started for one guest. Dropping it leaves QEMU as it is.
#[derive(Debug)]
pub(super) struct TemplateQemu {
    child: Child,
    qmp: PathBuf,
    mark: Arc<WaitingMark>,
}

impl TemplateQemu {
    /// Starts it, and waits for its QMP socket.
    pub(super) fn start(
        args: &Receive,
        template: &Path,
        cancel: &CancelFlag,
    ) -> Result<Self, Exit> {
        let failed = |what: String| Exit::new(ExitStatus::AtSource, Reason::NotAttached, what);
        let run = absolute(&args.recovery.journals.path());
        let name = args.template.name.as_deref().unwrap_or(DEFAULT_GUEST_NAME);
        let preparing = |error: io::Error| {
            failed(format!(
                "preparing the files of the guest {name}: {}",
                Report::new(&error)
            ))
        };
        machines::make_folder(&run).map_err(preparing)?;
        // First: a machine of this name that has a guest must not be marked.
        let mark = WaitingMark::lock(&run, name).map_err(preparing)?;
        let machine = MachineFiles::new(&run, name).map_err(preparing)?;
        let words = operator_file::read(template).and_then(|text| machine.command_line(&text));
        let words = words.map_err(|why| {
            let what = format!("the template {}: {why}", template.display());
            Exit::new(ExitStatus::Usage, Reason::Usage, what)
        })?;
        if args.name_for_daemon().is_some() {
            mark.set().map_err(preparing)?;
        }
        let child = machine.spawn(&words).map_err(|error| {
            let _ = mark.clear();
            failed(format!(
                "starting {}: {}",
                words.program,
                Report::new(&error)
            ))
        })?;
        let mut qemu = Self {
            child,
            qmp: machine.qmp.clone(),
            mark: Arc::new(mark),
        };
        if let Err(why) = qemu.wait_for_socket(&machine.log, cancel) {
            qemu.end();
            return Err(failed(format!("starting {}: {why}", words.program)));
        }
        Ok(qemu)
    }

    /// Its QMP socket.
    pub(super) fn qmp(&self) -> &Path {
        &self.qmp
    }

    /// Its mark, which is set if a daemon wants to know it.
    pub(super) fn mark(&self) -> &Arc<WaitingMark> {
        &self.mark
    }

    fn wait_for_socket(&mut self, log: &Path, cancel: &CancelFlag) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it has ended ({status}): {}", machines::tail(log)));
            }
            wait_until_started(&self.qmp);
            // It is bound a moment before it accepts connections.
            match connect_unix(&self.qmp).map_err(|error| error.kind()) {
                Ok(_) | Err(io::ErrorKind::TimedOut) => return Ok(()),
                Err(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
                Err(kind) => return Err(io::Error::from(kind).to_string()),
            }
            if cancel.is_cancelled() {
                return Err("cancelled".to_owned());
            }
            if signals::is_withdrawn() {
                return Err("the invitation was withdrawn".to_owned());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "it has not opened its QMP socket {} in time: {}",
                    self.qmp.display(),
                    machines::tail(log)
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Ends QEMU if the guest is not here.
    pub(super) fn finish(mut self, status: ExitStatus) {
        match status {
            ExitStatus::AtSource | ExitStatus::Usage | ExitStatus::Failed => self.end(),
            // It has the guest, or an operator decides.
            ExitStatus::Moved
            | ExitStatus::Done
            | ExitStatus::Ocf(_)
            | ExitStatus::ShutDown
            | ExitStatus::Unfinished
            | ExitStatus::Lost => {}
        }
    }

    /// Ends the program, and a QEMU that it has started instead of becoming it.
    fn end(&mut self) {
        // As long as it was not waited for, no other process has its number. It leads a group of
        // processes, in which QEMU is unless the program has made another one.
        let group = Pid::from_child(&self.child);
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
        // Then the mark stays, and so does the socket: a daemon tries again.
        if self.mark.set().is_ok()
            && !self.mark.end_or_log()
            && is_served(&self.qmp).unwrap_or(true)
        {
            let qmp = self.qmp.display();
            streams::notice(&format!(
                "the QEMU that was started for the guest may still run ({qmp}): end it by hand"
            ));
            return;
        }
        let _ = fs::remove_file(&self.qmp);
        let _ = self.mark.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::ListeningProcess;
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};

    fn receive(template: &Path, run: &Path) -> Receive {
        use clap::Parser;
        let words = ["hikkoshi", "receive", "--listen", "unix:/s", "--template"];
        let words = words.map(std::ffi::OsString::from).into_iter();
        let more = [template.into(), "--journal".into(), run.into()];
        match crate::args::Args::parse_from(words.chain(more)).command {
            crate::args::Command::Receive(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_that_ends_is_reported_with_its_message() {
        let run = tempfile::tempdir().unwrap();
        let template = run.path().join("template");
        fs::write(&template, "sh -c 'echo no such machine >&2; exit 1'").unwrap();
        let args = receive(&template, run.path());
        let exit = TemplateQemu::start(&args, &template, &CancelFlag::new()).unwrap_err();
        assert!(exit.text().contains("no such machine"), "{exit:?}");
        let missing = run.path().join("missing");
        let exit = TemplateQemu::start(&args, &missing, &CancelFlag::new()).unwrap_err();
        assert_eq!(exit.status(), ExitStatus::Usage);
    }

    /// Where [`stands_in_for_qemu`] listens.
    const SOCKET: &str = "HIKKOSHI_TEST_QMP";

    #[test]
    #[ignore = "no test: a process that another test starts in the place of QEMU"]
    fn stands_in_for_qemu() {
        let Some(path) = std::env::var_os(SOCKET) else {
            return;
        };
        // Bound a moment before it accepts connections, as QEMU's.
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddrUnix::new(Path::new(&path)).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        net::listen(&socket, 64).unwrap();
        std::thread::sleep(Duration::from_secs(1000));
    }

    /// Starts the stand-in by this command, which is a shell's, and returns what has become of it
    /// at the end of a receiver with this status.
    fn runs_after(command: &str, status: ExitStatus) -> bool {
        let run = tempfile::tempdir().unwrap();
        let template = run.path().join("template");
        let program = std::env::current_exe().unwrap();
        let test = "commands::receive::template::tests::stands_in_for_qemu";
        let qemu = format!("{} --exact {test} --ignored", program.display());
        let command = command.replace("QEMU", &qemu);
        let text = format!("sh -c 'export {SOCKET}={{qmp}}; {command}'");
        fs::write(&template, text).unwrap();
        let args = receive(&template, run.path());
        let qemu = TemplateQemu::start(&args, &template, &CancelFlag::new()).unwrap();
        let listening = ListeningProcess::at(qemu.qmp()).unwrap();
        let ListeningProcess::Process(process) = listening else {
            panic!("{listening:?}");
        };
        let (qmp, mark) = (qemu.qmp().to_owned(), Arc::clone(qemu.mark()));
        qemu.finish(status);
        let runs = process.is_alive();
        assert_eq!(qmp.exists(), runs);
        assert!(!mark.is_set());
        process.kill().unwrap();
        runs
    }

    #[test]
    fn the_program_ends_if_the_guest_stays_and_runs_on_otherwise() {
        assert!(runs_after("exec QEMU", ExitStatus::Unfinished));
        assert!(!runs_after("exec QEMU", ExitStatus::AtSource));
    }

    /// It starts QEMU and waits for it, as `su` does; in a session of its own, as `sudo` can.
    #[test]
    fn a_qemu_that_the_program_has_started_ends_as_well() {
        for command in ["QEMU; true", "setsid --wait QEMU; true"] {
            assert!(!runs_after(command, ExitStatus::AtSource), "{command}");
        }
    }
}
