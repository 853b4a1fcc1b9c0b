//! Machines that get their incoming stream from a pipe, with real QEMUs: what `piped/` does for
//! libvirt's domains, without libvirt.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationGuest, DestinationProcess, SourceGuest};
use hikkoshi_linux::Process;
use hikkoshi_memory::RamWriter;
use hikkoshi_qemu::qmp::{Client, MonitorSocket};
use hikkoshi_qemu::{
    LoadedGuest, MachineOwner, NotRun, Overcommit, OwnedCard, PipedGuest, PipedMachine,
    QemuDestination, QemuSource, StreamPipe, stream,
};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use serde_json::json;

use crate::support::{Program, Qemu, eventually, with_each};

/// Runs the guest when QEMU has loaded the stream, as libvirt does.
#[derive(Debug)]
struct Owner {
    monitor: PathBuf,
    /// What it says instead.
    refuses: bool,
    /// It hangs before the stream is ended.
    hangs: bool,
}

impl Owner {
    /// A session, once the stream is loaded.
    fn wait_loaded(&self) -> Client {
        let mut client = Client::connect(&self.monitor, Duration::from_secs(20)).unwrap();
        eventually("the stream to be loaded", || {
            let info = client.execute("query-migrate", json!({})).unwrap();
            info["status"] == "completed"
        });
        client
    }
}

impl MachineOwner for Owner {
    fn failure(&mut self) -> Option<String> {
        None
    }

    fn cards(&self) -> Vec<OwnedCard> {
        Vec::new()
    }

    fn check_answers(&mut self) -> Result<(), String> {
        match self.hangs {
            true => Err("it does not answer".to_owned()),
            false => Ok(()),
        }
    }

    fn finish(&mut self, _: &LoadedGuest, _: &CancelFlag) -> Result<Instant, NotRun> {
        let refused = self.refuses;
        let mut client = self.wait_loaded();
        if refused {
            let what = "it does not want to".to_owned();
            return Err(NotRun {
                what,
                never_ran: refused,
            });
        }
        client.execute("cont", json!({})).unwrap();
        Ok(Instant::now())
    }

    fn forget(&mut self) {}
}

/// Pauses the guest again when it has run, and looks before and afterwards whether it has ever run.
#[derive(Debug)]
struct Pausing {
    owner: Owner,
    never_ran: Arc<Mutex<Vec<bool>>>,
}

impl MachineOwner for Pausing {
    fn failure(&mut self) -> Option<String> {
        None
    }

    fn cards(&self) -> Vec<OwnedCard> {
        Vec::new()
    }

    fn finish(&mut self, loaded: &LoadedGuest, _: &CancelFlag) -> Result<Instant, NotRun> {
        let mut client = self.owner.wait_loaded();
        let look = |client: &mut Client| {
            let never_ran = loaded.has_never_run(client).unwrap();
            self.never_ran.lock().unwrap().push(never_ran);
        };
        // Twice: to look changes nothing.
        look(&mut client);
        look(&mut client);
        let ran = Instant::now();
        for command in ["cont", "stop"] {
            client.execute(command, json!({})).unwrap();
        }
        look(&mut client);
        client.execute("cont", json!({})).unwrap();
        look(&mut client);
        Ok(ran)
    }

    fn forget(&mut self) {}
}

fn source(program: &Program) -> Qemu {
    Qemu::usual(program, "-vga std -smp 2")
}

/// A QEMU that reads its incoming stream from a pipe.
struct Destination {
    qemu: Qemu,
    path: PathBuf,
    /// What a helper will read, and where it will write it.
    helper_files: Mutex<Option<(File, OwnedFd)>>,
    helper: Mutex<Option<Child>>,
    _folder: tempfile::TempDir,
}

impl Destination {
    fn start(program: &Program) -> Self {
        Self::start_with(program, false)
    }

    /// `helped`: a helper as libvirt's is between the pipe and QEMU.
    fn start_with(program: &Program, helped: bool) -> Self {
        let qemu = Qemu::usual(program, "-vga std -smp 2 -S -incoming defer");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        StreamPipe::make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // Without waiting for a writer.
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        let reader = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(&path)
            .unwrap();
        let (input, helper_files) = if helped {
            let flags = PipeFlags::CLOEXEC;
            let (input, output) = rustix::pipe::pipe_with(flags).unwrap();
            // A helper waits when it reads.
            rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
            (input, Some((reader, output)))
        } else {
            (reader.into(), None)
        };
        let mut client = qemu.client();
        let name = json!({ "fdname": "pipe" });
        client
            .execute_with_fd("getfd", name, input.as_fd())
            .unwrap();
        client
            .execute("migrate-incoming", json!({ "uri": "fd:pipe" }))
            .unwrap();
        Self {
            qemu,
            path,
            helper_files: Mutex::new(helper_files),
            helper: Mutex::new(None),
            _folder: folder,
        }
    }

    fn owner(&self, refuses: bool) -> Box<dyn MachineOwner> {
        Box::new(Owner {
            monitor: self.qemu.owners(),
            refuses,
            hangs: false,
        })
    }

    /// Attaches for the guest of `source`.
    fn attach(&self, source: &QemuSource, refuses: bool) -> QemuDestination {
        self.attach_with(source, self.owner(refuses))
    }

    /// Attaches with this owner.
    fn attach_with(&self, source: &QemuSource, owner: Box<dyn MachineOwner>) -> QemuDestination {
        let process = Arc::new(Process::open(self.qemu.pid()).unwrap());
        let pipe = StreamPipe::open(&self.path).unwrap().unwrap();
        if let Some((input, output)) = self.helper_files.lock().unwrap().take() {
            assert!(pipe.reader_for(&process).unwrap().is_none());
            // Now that the pipe is open for writing.
            let helper = Command::new("dd")
                .args(["bs=1M", "iflag=fullblock", "status=none"])
                .stdin(input)
                .stdout(output)
                .spawn();
            *self.helper.lock().unwrap() = Some(helper.unwrap());
        }
        let mut reader = None;
        eventually("the pipe to be read", || {
            reader = pipe.reader_for(&process).unwrap();
            reader.is_some()
        });
        let reader = reader.unwrap();
        let helper = self.helper.lock().unwrap().as_ref().map(Child::id);
        assert_eq!(reader.pid(), helper.unwrap_or(process.pid()));
        let machine = PipedMachine {
            process,
            pipe,
            reader,
            owner,
        };
        let guest = PipedGuest {
            description: source.describe(),
            processors: source.hardware().processors,
            machine: source.hardware().machine,
        };
        let monitor = Arc::new(MonitorSocket::new(self.qemu.qmp()));
        let cancel = CancelFlag::new();
        QemuDestination::attach_piped(machine, guest, monitor, Overcommit::Refuse, &cancel).unwrap()
    }

    /// The reader's descriptors of the pipe.
    fn descriptors(&self) -> usize {
        let helper = self.helper.lock().unwrap().as_ref().map(Child::id);
        let folder = format!("/proc/{}/fd", helper.unwrap_or(self.qemu.pid()));
        // A helper that has ended has none.
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| *link == self.path).count()
    }

    /// Waits for the helper's end, and returns whether it has passed on everything.
    fn helper_has_succeeded(&self) -> bool {
        let mut helper = self.helper.lock().unwrap();
        helper.as_mut().unwrap().wait().unwrap().success()
    }
}

/// Pauses, saves, and copies the memory, as the engine does.
fn transfer(source: &mut QemuSource, destination: &QemuDestination) -> Vec<u8> {
    source.pause().unwrap();
    let mut state = Vec::new();
    source
        .save_device_state(&mut state, &CancelFlag::new())
        .unwrap();
    let (from, to) = (source.ram(), destination.ram());
    let writer = RamWriter::open(to).unwrap();
    writer.clear_all().unwrap();
    for pages in from.layout().all().chunks(1024) {
        let mut bytes = vec![0; usize::try_from(pages.bytes()).unwrap()];
        from.read(pages, &mut bytes).unwrap();
        writer.write(pages, &bytes).unwrap();
    }
    state
}

/// Where QEMU itself says that the blocks begin; 7.2 does not.
fn told(qemu: &Qemu) -> Vec<(String, u64)> {
    let text = json!({ "command-line": "info ramblock" });
    let text = qemu.execute("human-monitor-command", text);
    let lines = text.as_str().unwrap().lines().skip(1);
    let block = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let address = words.iter().rev().nth(1)?.strip_prefix("0x")?;
        let name = (*words.first()?).to_owned();
        Some((name, u64::from_str_radix(address, 16).unwrap()))
    };
    lines.filter_map(block).collect()
}

#[test]
fn a_guest_moves_through_a_pipe() {
    with_each(|program| {
        let to = Destination::start(program);
        move_through(program, &to);
    });
}

/// As with libvirt 12.9.
#[test]
fn a_guest_moves_through_a_pipe_that_a_helper_reads() {
    with_each(|program| {
        let to = Destination::start_with(program, true);
        move_through(program, &to);
        assert!(to.helper_has_succeeded());
    });
}

fn move_through(program: &Program, to: &Destination) {
    let from = source(program);
    let mut source = QemuSource::attach(&from.qmp()).unwrap();
    let mut destination = to.attach(&source, false);
    let layout = destination.ram();
    let names = layout.layout().blocks().map(|(block, _)| block.id.clone());
    let (_, addresses) = destination.process_memory().unwrap();
    let found: Vec<_> = names.zip(addresses).collect();
    assert!(found.len() > 3, "{found:?}");
    if !program.is_old() {
        let told = told(&to.qemu);
        for block in &found {
            assert!(told.contains(block), "{block:x?} of {told:x?}");
        }
    }
    destination.prepare().unwrap();
    let state = transfer(&mut source, &destination);
    destination.load_device_state(state).unwrap();
    assert_eq!(to.qemu.state(), "inmigrate", "not completed before the end");
    assert_eq!(to.descriptors(), 2, "its reader holds the pipe itself");
    destination.resume(true, &CancelFlag::new()).unwrap();
    assert_eq!(to.qemu.state(), "running");
    assert_eq!((to.descriptors(), to.path.exists()), (0, false));
    destination.release().unwrap();
    source.release().unwrap();
    assert_eq!(to.qemu.state(), "running");
}

/// The engine is killed when the guest may have been handed over.
#[test]
fn another_program_ends_the_stream() {
    with_each(|program| end_by_another(program, &Destination::start(program)));
}

#[test]
fn another_program_ends_the_stream_that_a_helper_reads() {
    with_each(|program| {
        let to = Destination::start_with(program, true);
        end_by_another(program, &to);
        assert!(to.helper_has_succeeded());
    });
}

fn end_by_another(program: &Program, to: &Destination) {
    let from = source(program);
    let mut source = QemuSource::attach(&from.qmp()).unwrap();
    let mut destination = to.attach(&source, false);
    destination.prepare().unwrap();
    let state = transfer(&mut source, &destination);
    destination.load_device_state(state).unwrap();
    let info = destination.reattach_info().get();
    // A cancelled engine ends nothing.
    let cancelled = CancelFlag::new();
    cancelled.cancel();
    let error = destination.resume(true, &cancelled).unwrap_err();
    assert!(error.to_string().contains("resuming the guest"), "{error}");
    assert!(!destination.never_ran());
    drop(destination);
    assert_eq!(to.descriptors(), 2);
    if to.helper.lock().unwrap().is_some() {
        // It may have been killed between the end, which a helper still has, and the close.
        let mut pipe = StreamPipe::open(&to.path).unwrap().unwrap();
        let mut never = || Ok::<(), std::io::Error>(());
        let tail = [0, 6, 0, 0x40, 0, 0];
        pipe.write(&tail, &mut never).unwrap();
        pipe.keep();
        drop(pipe);
    }
    let monitor = Arc::new(MonitorSocket::new(to.qemu.qmp()));
    let owner = |path: &Path| {
        assert_eq!(path, to.path);
        Some(to.owner(false))
    };
    let again = QemuDestination::reattach(&info, monitor, owner).unwrap();
    let mut destination = again.expect("QEMU runs");
    destination.resume(true, &CancelFlag::new()).unwrap();
    assert_eq!(to.qemu.state(), "running");
    assert_eq!((to.descriptors(), to.path.exists()), (0, false));
    destination.release().unwrap();
    source.release().unwrap();
}

#[test]
fn a_guest_that_was_not_run_is_given_back() {
    with_each(|program| {
        let from = source(program);
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        for (refuses, running) in [(true, true), (false, false)] {
            let mut to = Destination::start(program);
            let mut destination = to.attach(&source, refuses);
            destination.prepare().unwrap();
            let state = transfer(&mut source, &destination);
            destination.load_device_state(state).unwrap();
            destination.resume(running, &CancelFlag::new()).unwrap_err();
            assert!(destination.never_ran());
            to.qemu.wait();
            destination.release().unwrap();
            assert!(!to.path.exists());
            source.resume().unwrap();
            assert_eq!(from.state(), "running");
        }
        source.release().unwrap();
    });
}

/// Its owner hangs when the guest was handed over: the stream is not ended.
#[test]
fn a_guest_whose_owner_does_not_answer_is_given_back() {
    with_each(|program| {
        let from = source(program);
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        let mut to = Destination::start(program);
        let owner = Owner {
            monitor: to.qemu.owners(),
            refuses: false,
            hangs: true,
        };
        let mut destination = to.attach_with(&source, Box::new(owner));
        destination.prepare().unwrap();
        let state = transfer(&mut source, &destination);
        destination.load_device_state(state).unwrap();
        let error = destination.resume(true, &CancelFlag::new()).unwrap_err();
        let text = error_reporter::Report::new(&error).to_string();
        assert!(text.contains("it does not answer"), "{text}");
        assert!(destination.never_ran());
        to.qemu.wait();
        destination.release().unwrap();
        source.resume().unwrap();
        assert_eq!(from.state(), "running");
        source.release().unwrap();
    });
}

/// As libvirt, which has failed after it had read the head, and waits for its helper.
#[test]
fn a_helper_whose_output_is_closed_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    StreamPipe::make(&path).unwrap();
    let mut helper = Command::new("sh")
        .args(["-c", "exec cat <\"$0\""])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut opened = None;
    eventually("the pipe to be opened", || {
        opened = StreamPipe::open(&path).unwrap();
        opened.is_some()
    });
    let pipe = opened.unwrap();
    eventually("the helper", || pipe.helpers().len() == 1);
    assert!(!pipe.is_abandoned());
    drop(helper.stdout.take());
    assert!(pipe.is_abandoned());
    drop(pipe);
    assert!(helper.wait().unwrap().success());
}

/// In both cases QEMU says that it is paused.
#[test]
fn a_guest_that_has_run_differs_from_one_that_never_ran() {
    with_each(|program| {
        let (from, to) = (source(program), Destination::start(program));
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        let never_ran = Arc::new(Mutex::new(Vec::new()));
        let owner = Pausing {
            owner: Owner {
                monitor: to.qemu.owners(),
                refuses: false,
                hangs: false,
            },
            never_ran: Arc::clone(&never_ran),
        };
        let mut destination = to.attach_with(&source, Box::new(owner));
        destination.prepare().unwrap();
        let state = transfer(&mut source, &destination);
        destination.load_device_state(state).unwrap();
        destination.resume(true, &CancelFlag::new()).unwrap();
        // Paused twice, paused after it has run, and running.
        let looked = never_ran.lock().unwrap().clone();
        assert_eq!(looked, [true, true, false, false]);
        assert_eq!(to.qemu.state(), "running");
        destination.release().unwrap();
        source.release().unwrap();
    });
}

/// QEMU ends on a bad stream, and the guest stays where it is.
#[test]
fn a_bad_device_state_is_an_error() {
    with_each(|program| drop(refuse(program, Destination::start(program))));
}

/// Its owner waits for the helper's end, although QEMU has ended.
#[test]
fn a_helper_ends_with_a_qemu_that_refuses_the_device_state() {
    with_each(|program| {
        let to = refuse(program, Destination::start_with(program, true));
        assert!(!to.helper_has_succeeded());
    });
}

fn refuse(program: &Program, mut to: Destination) -> Destination {
    let from = source(program);
    let mut source = QemuSource::attach(&from.qmp()).unwrap();
    let mut destination = to.attach(&source, false);
    destination.prepare().unwrap();
    let mut state = transfer(&mut source, &destination);
    // The footer of the last section: what comes last is loaded, too, when the call returns.
    let footer = state.len() - stream::tail().len() - 5;
    assert_eq!(state[footer], 0x7e);
    state[footer] = 0;
    let error = destination.load_device_state(state).unwrap_err();
    let said = Report::new(&error).to_string();
    let part = "loading the device state: QEMU has ended";
    assert!(said.contains(part), "{said}");
    assert!(said.contains(". QEMU wrote: "), "{said}");
    assert!(said.contains("footer"), "{said}");
    destination.release().unwrap();
    to.qemu.wait();
    source.resume().unwrap();
    assert_eq!(from.state(), "running");
    source.release().unwrap();
    to
}
