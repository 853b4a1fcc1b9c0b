//! `receive --template`: starts the destination's QEMU from a file with its command line.
//!
//! QEMU is a process of its own: it continues when `receive` ends, unless the guest stays at
//! the source. If a receiver of a daemon is killed before the handover, the daemon ends its QEMU
//! ([`WaitingMark`]).

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::{connect_unix, is_served};
use rustix::process::{Pid, Signal, kill_process_group};

use super::operator_file;
use super::waiting_mark::WaitingMark;
use crate::args::{DEFAULT_GUEST_NAME, Receive, Words};
use crate::commands::signals;
use crate::journal::{JournalFile, absolute};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;

/// How long QEMU may take to open its QMP socket.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How often to look for the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How much of QEMU's log is in an error message, in bytes.
const LOG_TAIL: u64 = 1024;

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
        let run = absolute(&args.run.journals.path());
        let name = args.name.as_deref().unwrap_or(DEFAULT_GUEST_NAME);
        let preparing = |error: io::Error| {
            failed(format!(
                "preparing the files of the guest {name}: {}",
                Report::new(&error)
            ))
        };
        make_folder(&run).map_err(preparing)?;
        // First: a machine of this name that has a guest must not be marked.
        let mark = WaitingMark::lock(&run, name).map_err(preparing)?;
        let machine = MachineFiles::new(&run, name).map_err(preparing)?;
        let words = operator_file::read(template).and_then(|text| machine.words(&text));
        let words = words.map_err(|why| {
            let what = format!("the template {}: {why}", template.display());
            Exit::new(ExitStatus::Usage, Reason::Usage, what)
        })?;
        let start = || {
            // Appended to, so that it can be cut while QEMU writes to it.
            let log = OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&machine.log)?;
            log.set_len(0)?;
            Command::new(&words.program)
                .args(&words.arguments)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                // A signal from the terminal is not for it.
                .process_group(0)
                .spawn()
        };
        if args.receiver.is_some() {
            mark.set().map_err(preparing)?;
        }
        let child = start().map_err(|error| {
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
                return Err(format!("it has ended ({status}): {}", tail(log)));
            }
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
                    tail(log)
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

/// The folder of the machines in the run folder.
pub(super) fn machines(run: &Path) -> PathBuf {
    run.join("machines")
}

/// Makes this folder, if necessary.
fn make_folder(run: &Path) -> io::Result<()> {
    JournalFile::make_folder(run)?;
    let folder = machines(run);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The end of the name of a QMP socket.
const QMP: &str = "qmp";

/// The end of the name of a log: QEMU's output.
const LOG: &str = "log";

/// The largest log, in bytes. The run folder is in memory, and a guest can cause warnings of QEMU.
const MAX_LOG: u64 = 1 << 20;

/// How much of a log that was too large is kept, in bytes.
const KEPT_LOG: u64 = 64 << 10;

/// Logs of machines that have ended, that are kept.
const MAX_LOGS: usize = 64;

/// Cuts logs of machines that are too large, and removes the oldest of machines that have ended.
pub(super) fn limit_logs(run: &Path) -> io::Result<()> {
    let files = match fs::read_dir(machines(run)) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut logs = Vec::new();
    for entry in files {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != LOG) {
            continue;
        }
        let log = fs::metadata(&path)?;
        if log.len() > MAX_LOG {
            cut(&path)?;
        }
        logs.push((log.modified()?, path));
    }
    if logs.len() > MAX_LOGS {
        logs.retain(|(_, path)| !is_served(&path.with_extension(QMP)).unwrap_or(true));
        logs.sort_unstable();
        let old = logs.len().saturating_sub(MAX_LOGS);
        for (_, path) in &logs[..old] {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Keeps the end of a log. What is written meanwhile may be lost.
fn cut(log: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(log)?;
    file.seek(SeekFrom::End(
        -i64::try_from(KEPT_LOG).map_err(io::Error::other)?,
    ))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    file.set_len(0)?;
    file.write_all(b"(the messages before this line were removed)\n")?;
    file.write_all(&end)
}

/// The QMP socket of the guest's machine.
pub(super) fn socket(run: &Path, name: &str) -> PathBuf {
    machines(run).join(format!("{name}.{QMP}"))
}

/// Whether this may be the QMP socket of a machine.
pub(super) fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == QMP)
}

/// Whether this path without symbolic links is that of the QMP socket of a machine in this run
/// folder.
pub(super) fn is_machine(run: &Path, path: &Path) -> bool {
    let folder = fs::canonicalize(machines(run));
    is_socket(path) && folder.is_ok_and(|folder| path.parent() == Some(&folder))
}

/// The files of one machine, in the run folder.
#[derive(Debug)]
struct MachineFiles {
    name: String,
    folder: PathBuf,
    qmp: PathBuf,
    log: PathBuf,
}

impl MachineFiles {
    /// A machine of the same name must not run.
    fn new(run: &Path, name: &str) -> io::Result<Self> {
        let folder = machines(run);
        let files = Self {
            name: name.to_owned(),
            qmp: socket(run, name),
            log: folder.join(format!("{name}.{LOG}")),
            folder,
        };
        if is_served(&files.qmp)? {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!(
                    "a QEMU with this name runs already ({}); --name names another one",
                    files.qmp.display()
                ),
            ));
        }
        // One that has ended has left it.
        match fs::remove_file(&files.qmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(files),
        }
    }

    /// The command line, with this machine's names in it, and with the options by which QEMU waits
    /// for the guest.
    fn words(&self, template: &str) -> Result<Words, String> {
        let lines = template
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        let lines: Vec<_> = lines
            // As in a command that was copied from a shell.
            .map(|line| line.trim_end().strip_suffix('\\').unwrap_or(line))
            .collect();
        let mut words: Words = lines.join("\n").parse()?;
        // QEMU accepts its options with two dashes as well.
        let has = |option: &str| {
            let mut words = words.arguments.iter();
            words.any(|word| word == option || word.strip_prefix('-') == Some(option))
        };
        if has("-incoming") {
            return Err("leave -incoming out: it is added".to_owned());
        }
        if has("-daemonize") {
            return Err(
                "leave -daemonize out: QEMU could not be ended, and its output not kept, if \
                        it were another process than the one that is started"
                    .to_owned(),
            );
        }
        let has_qmp = words.arguments.iter().any(|word| word.contains("{qmp}"));
        if !has_qmp {
            words.arguments.push("-qmp".to_owned());
            words
                .arguments
                .push("unix:{qmp},server=on,wait=off".to_owned());
        }
        words
            .arguments
            .extend(["-incoming", "defer"].map(str::to_owned));
        let path = |path: &Path| {
            let text = path.to_str().ok_or("the run folder's path is not UTF-8")?;
            // In the value of an option of QEMU.
            Ok::<_, String>(text.replace(',', ",,"))
        };
        let (qmp, folder) = (path(&self.qmp)?, path(&self.folder)?);
        for word in &mut words.arguments {
            *word = word
                .replace("{name}", &self.name)
                .replace("{qmp}", &qmp)
                .replace("{folder}", &folder);
        }
        Ok(words)
    }
}

/// The end of QEMU's log.
fn tail(log: &Path) -> String {
    let read = || {
        let mut file = fs::File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL)))?;
        let mut end = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut end)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&end).trim().to_owned())
    };
    match read() {
        Ok(text) if !text.is_empty() => text,
        _ => format!("see {}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::listening_process::ListeningProcess;
    use super::*;
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};

    #[test]
    fn names_are_put_into_the_command_line() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path().join("a,b");
        make_folder(&run).unwrap();
        let machine = MachineFiles::new(&run, "web1").unwrap();
        let text = "# the web servers\nqemu-system-x86_64 -name {name} \\\n  -m 256\n  \
                    -drive 'file=/disks/{name}.img,if=virtio' -blockdev {\"node-name\":\"x\"}\n";
        let words = machine.words(text).unwrap();
        assert_eq!(words.program, "qemu-system-x86_64");
        let qmp = machine.qmp.to_str().unwrap().replace(',', ",,");
        let expected = [
            "-name",
            "web1",
            "-m",
            "256",
            "-drive",
            "file=/disks/web1.img,if=virtio",
            "-blockdev",
            "{node-name:x}",
            "-qmp",
            &format!("unix:{qmp},server=on,wait=off"),
            "-incoming",
            "defer",
        ];
        assert_eq!(words.arguments, expected);
        let own = machine
            .words("q -qmp unix:{qmp},server=on,wait=off")
            .unwrap();
        assert_eq!(own.arguments.len(), 4);
        for bad in [
            "",
            "# only a comment",
            "q -incoming defer",
            "q --incoming defer",
            "q -daemonize",
            "q 'x",
        ] {
            assert!(machine.words(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_machine_that_runs_keeps_its_name() {
        let run = tempfile::tempdir().unwrap();
        make_folder(run.path()).unwrap();
        let first = MachineFiles::new(run.path(), "a").unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&first.qmp).unwrap();
        let error = MachineFiles::new(run.path(), "a").unwrap_err().to_string();
        assert!(error.contains("--name"), "{error}");
        drop(listener);
        MachineFiles::new(run.path(), "a").unwrap();
        assert!(!first.qmp.exists());
    }

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
    fn logs_do_not_fill_the_folder() {
        let run = tempfile::tempdir().unwrap();
        limit_logs(run.path()).unwrap();
        make_folder(run.path()).unwrap();
        let log = machines(run.path()).join("a.log");
        let mut qemu = OpenOptions::new();
        let mut qemu = qemu.create(true).append(true).open(&log).unwrap();
        let line = [b'x'; 99];
        for _ in 0..=(MAX_LOG / 100) {
            qemu.write_all(&line).unwrap();
            qemu.write_all(b"\n").unwrap();
        }
        limit_logs(run.path()).unwrap();
        qemu.write_all(b"the last\n").unwrap();
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.starts_with("(the messages before") && text.ends_with("x\nthe last\n"));
        assert!(text.len() as u64 <= KEPT_LOG + 100);
        // One whose machine runs is kept, however old it is.
        let _qemu = std::os::unix::net::UnixListener::bind(socket(run.path(), "a")).unwrap();
        for number in 0..=MAX_LOGS {
            let file = fs::File::create(machines(run.path()).join(format!("n{number}.log")));
            let age = Duration::from_secs(1 + u64::try_from(MAX_LOGS - number).unwrap());
            let time = std::time::SystemTime::now() - age;
            file.unwrap().set_modified(time).unwrap();
        }
        let file = fs::File::options().write(true).open(&log).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        limit_logs(run.path()).unwrap();
        let is_there = |name: &str| machines(run.path()).join(name).exists();
        assert!(is_there("a.log") && !is_there("n0.log") && is_there("n1.log"));
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
