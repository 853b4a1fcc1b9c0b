//! Machines that get their incoming stream from a pipe, with real QEMUs: what `piped/` does for
//! libvirt's domains, without libvirt.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
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
    AttachError, LoadedGuest, MachineOwner, NotRun, Overcommit, OwnedCard, PipedGuest,
    PipedMachine, QemuDestination, QemuSource, StreamPipe, stream,
};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use serde_json::json;

use crate::support::{FIRMWARE, Program, Qemu, device_state, eventually, with_each};

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
        let mut client = self.wait_loaded();
        if self.refuses {
            return Err(NotRun {
                what: "it does not want to".to_owned(),
                never_ran: true,
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
    Qemu::usual(program, &format!("-vga std -smp 2 {FIRMWARE}"))
}

/// A QEMU that reads its incoming stream from a pipe.
struct Destination {
    qemu: Qemu,
    path: PathBuf,
    /// What QEMU will read, or, with a helper, what that reads.
    named: Mutex<Option<File>>,
    /// Whether there is a helper, as of libvirt 12.9.
    helped: bool,
    /// The pipe that QEMU reads: device and inode.
    stream: Mutex<Option<(u64, u64)>>,
    _folder: tempfile::TempDir,
}

impl Destination {
    fn start(program: &Program) -> Self {
        Self::start_with(program, false)
    }

    /// `helped`: a helper as libvirt's is between the pipe and QEMU.
    fn start_with(program: &Program, helped: bool) -> Self {
        Self::start_with_devices(program, helped, "")
    }

    fn start_with_devices(program: &Program, helped: bool, devices: &str) -> Self {
        let line = format!("-vga std -smp 2 -S -incoming defer {FIRMWARE} {devices}");
        let qemu = Qemu::usual(program, &line);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        StreamPipe::make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // Without waiting for a writer.
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        let named = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(&path)
            .unwrap();
        Self {
            qemu,
            path,
            named: Mutex::new(Some(named)),
            helped,
            stream: Mutex::new(None),
            _folder: folder,
        }
    }

    /// Lets QEMU read its stream from there.
    fn incoming(&self, from: &File) {
        let metadata = from.metadata().unwrap();
        *self.stream.lock().unwrap() = Some((metadata.dev(), metadata.ino()));
        let mut client = self.qemu.client();
        let name = json!({ "fdname": "pipe" });
        client.execute_with_fd("getfd", name, from.as_fd()).unwrap();
        client
            .execute("migrate-incoming", json!({ "uri": "fd:pipe" }))
            .unwrap();
    }

    /// Starts a helper that reads the pipe, takes from it what comes before QEMU's stream, and lets
    /// QEMU read the rest.
    fn help(&self, pipe: &mut StreamPipe, named: File) -> Child {
        // A helper waits when it reads.
        rustix::fs::fcntl_setfl(&named, OFlags::empty()).unwrap();
        let (input, output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        // As libvirt's.
        let block = 1 << 20;
        rustix::pipe::fcntl_setpipe_size(&input, block).unwrap();
        let helper = Command::new("dd")
            .args(["bs=1M", "iflag=fullblock", "status=none"])
            .stdin(named)
            .stdout(output)
            .spawn()
            .unwrap();
        let mut never = || Ok::<(), std::io::Error>(());
        pipe.write(&vec![7; block], &mut never).unwrap();
        let mut input = File::from(input);
        let mut head = vec![0; block];
        input.read_exact(&mut head).unwrap();
        assert!(head.iter().all(|byte| *byte == 7));
        let qemu = Process::open(self.qemu.pid()).unwrap();
        assert!(!pipe.reaches(&qemu).unwrap());
        self.incoming(&input);
        helper
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
        self.try_attach(source, owner).unwrap()
    }

    fn try_attach(
        &self,
        source: &QemuSource,
        owner: Box<dyn MachineOwner>,
    ) -> Result<QemuDestination, AttachError> {
        let process = Arc::new(Process::open(self.qemu.pid()).unwrap());
        let mut pipe = StreamPipe::open(&self.path).unwrap().unwrap();
        let named = self.named.lock().unwrap().take().unwrap();
        let helper = if self.helped {
            Some(self.help(&mut pipe, named))
        } else {
            self.incoming(&named);
            None
        };
        eventually("the pipe to be QEMU's", || pipe.reaches(&process).unwrap());
        if let Some(mut helper) = helper {
            // It has passed on everything, and is not needed any more.
            assert!(helper.wait().unwrap().success());
        }
        let machine = PipedMachine {
            process,
            pipe,
            owner,
        };
        let guest = PipedGuest {
            description: source.describe(),
            processors: source.hardware().processors,
            machine: source.hardware().machine,
        };
        let monitor = Arc::new(MonitorSocket::new(self.qemu.qmp()));
        let cancel = CancelFlag::new();
        QemuDestination::attach_piped(machine, guest, monitor, Overcommit::Refuse, &cancel)
    }

    /// QEMU's descriptors of its stream.
    fn descriptors(&self) -> usize {
        let stream = self.stream.lock().unwrap();
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.qemu.pid()));
        let files = entries.unwrap().flatten();
        let files = files.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        let is_it = |file: &std::fs::Metadata| Some((file.dev(), file.ino())) == *stream;
        files.filter(is_it).count()
    }
}

/// Pauses, saves, and copies the memory, as the engine does.
fn transfer(source: &mut QemuSource, destination: &QemuDestination) -> Vec<u8> {
    source.pause().unwrap();
    let state = device_state(source);
    let (from, to) = (source.ram(), destination.ram());
    let mut writer = RamWriter::open(to).unwrap();
    writer.clear_all().unwrap();
    for pages in from.layout().all().chunks(1024) {
        let mut bytes = vec![0; usize::try_from(pages.bytes()).unwrap()];
        from.read(pages, &mut bytes).unwrap();
        writer.write(pages, &bytes).unwrap();
    }
    state
}

/// Moves the guest up to *ready*.
fn load(source: &mut QemuSource, destination: &mut QemuDestination) {
    destination.prepare().unwrap();
    let state = transfer(source, destination);
    destination.load_device_state(state).unwrap();
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
    });
}

fn move_through(program: &Program, to: &Destination) {
    let from = source(program);
    let mut source = from.source();
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
    load(&mut source, &mut destination);
    assert_eq!(to.qemu.state(), "inmigrate", "not completed before the end");
    assert_eq!(to.descriptors(), 2, "it holds the pipe itself");
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
    });
}

fn end_by_another(program: &Program, to: &Destination) {
    let from = source(program);
    let mut source = from.source();
    let mut destination = to.attach(&source, false);
    load(&mut source, &mut destination);
    let info = destination.reattach_info().get();
    // A cancelled engine ends nothing.
    let cancelled = CancelFlag::new();
    cancelled.cancel();
    let error = destination.resume(true, &cancelled).unwrap_err();
    assert!(error.to_string().contains("resuming the guest"), "{error}");
    assert!(!destination.never_ran());
    drop(destination);
    assert_eq!(to.descriptors(), 2);
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
        let mut source = from.source();
        for (refuses, running) in [(true, true), (false, false)] {
            let mut to = Destination::start(program);
            let mut destination = to.attach(&source, refuses);
            load(&mut source, &mut destination);
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

/// Its monitor cannot be asked for it; and its owner does not compare what writes guest memory.
#[test]
fn a_device_that_no_mode_supports_is_refused() {
    let devices = "-object memory-backend-memfd,id=window,size=1M,share=on \
                   -device ivshmem-plain,id=extra,memdev=window";
    with_each(|program| {
        let from = source(program);
        let mut source = from.source();
        let mut to = Destination::start_with_devices(program, false, devices);
        let error = to.try_attach(&source, to.owner(false)).unwrap_err();
        let said = Report::new(&error).to_string();
        assert!(
            said.contains("the device extra is a ivshmem-plain"),
            "{said}"
        );
        to.qemu.wait();
        assert!(!to.path.exists());
        source.release().unwrap();
        assert_eq!(from.state(), "running");
    });
}

/// Its owner hangs when the guest was handed over: the stream is not ended.
#[test]
fn a_guest_whose_owner_does_not_answer_is_given_back() {
    with_each(|program| {
        let from = source(program);
        let mut source = from.source();
        let mut to = Destination::start(program);
        let owner = Owner {
            monitor: to.qemu.owners(),
            refuses: false,
            hangs: true,
        };
        let mut destination = to.attach_with(&source, Box::new(owner));
        load(&mut source, &mut destination);
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
    let mut pipe = opened.unwrap();
    assert!(!pipe.is_abandoned());
    drop(helper.stdout.take());
    eventually("it to be noticed", || pipe.is_abandoned());
    drop(pipe);
    assert!(helper.wait().unwrap().success());
}

/// In both cases QEMU says that it is paused.
#[test]
fn a_guest_that_has_run_differs_from_one_that_never_ran() {
    with_each(|program| {
        let (from, to) = (source(program), Destination::start(program));
        let mut source = from.source();
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
        load(&mut source, &mut destination);
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

#[test]
fn a_bad_device_state_behind_a_helper_is_an_error() {
    with_each(|program| drop(refuse(program, Destination::start_with(program, true))));
}

fn refuse(program: &Program, mut to: Destination) -> Destination {
    let from = source(program);
    let mut source = from.source();
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
