//! Machines that get their incoming stream from a pipe, with real QEMUs: what `piped/` does for
//! libvirt's domains, without libvirt.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use hikkoshi_linux::Process;
use hikkoshi_memory::RamWriter;
use hikkoshi_qemu::qmp::{Client, MonitorSocket};
use hikkoshi_qemu::{
    LoadedGuest, MachineOwner, NotRun, Overcommit, OwnedCard, PipedGuest, PipedMachine,
    QemuDestination, QemuSource, StreamPipe, stream,
};
use rustix::fs::OFlags;
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
    _folder: tempfile::TempDir,
}

impl Destination {
    fn start(program: &Program) -> Self {
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
        let mut client = qemu.client();
        let name = json!({ "fdname": "pipe" });
        client
            .execute_with_fd("getfd", name, reader.as_fd())
            .unwrap();
        client
            .execute("migrate-incoming", json!({ "uri": "fd:pipe" }))
            .unwrap();
        Self {
            qemu,
            path,
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

    /// The same, with this owner.
    fn attach_with(&self, source: &QemuSource, owner: Box<dyn MachineOwner>) -> QemuDestination {
        let mut never = || Ok::<(), std::io::Error>(());
        let machine = PipedMachine {
            process: Arc::new(Process::open(self.qemu.pid()).unwrap()),
            pipe: StreamPipe::open(&self.path, &mut never).unwrap(),
            owner,
        };
        assert!(machine.pipe.is_open_in(&machine.process).unwrap());
        let guest = PipedGuest {
            description: source.describe(),
            processors: source.processors(),
            machine: source.machine(),
        };
        let monitor = Arc::new(MonitorSocket::new(self.qemu.qmp()));
        let cancel = CancelFlag::new();
        QemuDestination::attach_piped(machine, guest, monitor, Overcommit::Refuse, &cancel).unwrap()
    }

    /// QEMU's descriptors of the pipe.
    fn descriptors(&self) -> usize {
        self.qemu.descriptors(self.path.to_str().unwrap())
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
        let (from, to) = (source(program), Destination::start(program));
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
        assert_eq!(to.descriptors(), 2, "QEMU holds the pipe itself");
        destination.resume(true, &CancelFlag::new()).unwrap();
        assert_eq!(to.qemu.state(), "running");
        assert_eq!((to.descriptors(), to.path.exists()), (0, false));
        destination.release().unwrap();
        source.release().unwrap();
        assert_eq!(to.qemu.state(), "running");
    });
}

/// The engine is killed when the guest may have been handed over.
#[test]
fn another_program_ends_the_stream() {
    with_each(|program| {
        let (from, to) = (source(program), Destination::start(program));
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
    });
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
    with_each(|program| {
        let from = source(program);
        let mut source = QemuSource::attach(&from.qmp()).unwrap();
        let mut to = Destination::start(program);
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
    });
}
