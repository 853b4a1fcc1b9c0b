//! A guest that any node of a cluster may start or receive.

use super::Cluster;
use crate::vm::{MachineSockets, VmProcess};
use crate::{Console, GuestReport, Lab, LabError, Qmp, Verdict, VmConfig, never_retried};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often what is waited for is looked at.
const POLL: Duration = Duration::from_millis(20);

/// A QEMU in which the guest is, or was, or that waited for it.
#[derive(Debug)]
pub struct Machine {
    name: String,
    node: String,
    pid: u32,
    qmp: Qmp,
    input: Mutex<UnixStream>,
    /// When it ended: since the Unix epoch.
    ended: Mutex<Option<Duration>>,
}

/// A time in which a machine ran the guest: since the Unix epoch. Without an end it still does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ran {
    /// The machine's name.
    pub machine: String,
    /// From here.
    pub from: Duration,
    /// To here.
    pub to: Option<Duration>,
}

/// A guest of a cluster: the machines in which it is. All of them have the same command line, the
/// template of [`ClusterGuest::template`].
#[derive(Debug)]
pub struct ClusterGuest {
    name: String,
    config: VmConfig,
    words: Vec<OsString>,
    console: Console,
    machines: Arc<Mutex<Vec<Arc<Machine>>>>,
    lab: Lab,
}

impl Machine {
    /// Its name: that of the guest, a number, and the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node that it is on.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether its QEMU exists.
    pub fn is_alive(&self) -> bool {
        self.ended().is_none()
    }

    fn ended(&self) -> Option<Duration> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image (device and inode) that its QEMU has open as a running guest has it: by the locks
    /// on it, of which QEMU takes one for each permission, on the bytes from 100 on
    /// (`file-posix.c`). A lock that hikkoshi keeps is on an image in memory.
    pub fn locked_image(&self) -> Option<(u64, u64)> {
        let is_lock = |line: &str| {
            let from = line.split_whitespace().rev().nth(1);
            let from = from.and_then(|from| from.parse::<u64>().ok());
            line.contains("OFDLCK") && from.is_some_and(|from| (100..300).contains(&from))
        };
        let folder = format!("/proc/{}/fdinfo", self.pid);
        let descriptors = fs::read_dir(folder).into_iter().flatten().flatten();
        descriptors.into_iter().find_map(|descriptor| {
            let number = descriptor.file_name();
            let open = Path::new("/proc")
                .join(self.pid.to_string())
                .join("fd")
                .join(number);
            let is_in_memory =
                fs::read_link(&open).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"));
            let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
            let is_locked = !is_in_memory && info.lines().any(is_lock);
            let image = is_locked.then(|| fs::metadata(open).ok()).flatten()?;
            Some((image.dev(), image.ino()))
        })
    }

    /// QEMU's status of the guest: `running`, `paused`, `inmigrate`, ….
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn status(&self) -> Result<String, LabError> {
        let answer = self.qmp.execute("query-status", json!({}))?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    /// Sends the workload a command (guest/README.md).
    ///
    /// # Errors
    /// When QEMU has ended.
    pub fn send(&self, line: &str) -> Result<(), LabError> {
        lock(&self.input)
            .write_all(format!("{line}\n").as_bytes())
            .map_err(LabError::file(
                "writing to the console of",
                self.name.as_str(),
            ))
    }

    /// The test's own QMP connection.
    pub fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    /// When it has run the guest, by QEMU's events.
    pub fn ran(&self) -> Vec<Ran> {
        let mut ran: Vec<Ran> = Vec::new();
        for event in self.qmp.events() {
            let open = ran.last_mut().filter(|last| last.to.is_none());
            match (event.name.as_str(), open) {
                ("RESUME", None) => ran.push(Ran {
                    machine: self.name.clone(),
                    from: event.happened,
                    to: None,
                }),
                ("STOP", Some(open)) => open.to = Some(event.happened),
                _ => {}
            }
        }
        if let (Some(last), Some(ended)) = (ran.last_mut(), self.ended())
            && last.to.is_none()
        {
            last.to = Some(ended.max(last.from));
        }
        ran
    }

    fn runs(&self) -> bool {
        self.ran().last().is_some_and(|last| last.to.is_none())
    }
}

impl ClusterGuest {
    /// A guest of this name; it does not exist yet.
    ///
    /// # Errors
    /// When something is not set up.
    pub fn new(lab: &Lab, name: &str, config: VmConfig) -> Result<Self, LabError> {
        let sockets = MachineSockets::prepare(&config, lab, name)?;
        let guest = Self {
            name: name.to_owned(),
            words: sockets.command_line(),
            config,
            console: Console::new(),
            machines: Arc::default(),
            lab: lab.clone(),
        };
        guest.collect(sockets)?;
        Ok(guest)
    }

    /// Collects the machines, as long as the guest exists.
    fn collect(&self, sockets: MachineSockets) -> Result<(), LabError> {
        let (name, console) = (self.name.clone(), self.console.clone());
        let machines = Arc::downgrade(&self.machines);
        let work = move || {
            let mut number = 0;
            while let Some(machines) = machines.upgrade() {
                match sockets.accept(POLL) {
                    Ok(Some((pid, process, output, monitor))) => {
                        number += 1;
                        let (guest, console) = (name.clone(), console.clone());
                        let add = move || {
                            let machine =
                                Machine::new(&guest, number, pid, output, monitor, &console);
                            // Otherwise it has ended at once.
                            let Some(machine) = machine else { return };
                            let machine = Arc::new(machine);
                            lock(&machines).push(Arc::clone(&machine));
                            drop(machines);
                            machine.wait(process);
                        };
                        let _ = std::thread::Builder::new()
                            .name(format!("machine-{name}"))
                            .spawn(add);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        never_retried(format_args!("a machine of {name}: {error}"));
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name(format!("machines-{}", self.name))
            .spawn(work)
            .map(drop)
            .map_err(|source| LabError::Start {
                program: "the thread of a guest's machines".to_owned(),
                source,
            })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its console, whichever machine it is in.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// The template by which nodes start its QEMU.
    pub fn template(&self) -> String {
        let words = self
            .words
            .iter()
            .map(|word| format!("'{}'", word.to_string_lossy()));
        let words: Vec<_> = words.collect();
        format!("# a test's\n{}\n", words.join(" \\\n"))
    }

    /// Writes its template on all nodes.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn install(&self, cluster: &Cluster) -> Result<(), LabError> {
        for node in cluster.nodes() {
            let path = node.etc().join(format!("{}.template", self.name));
            fs::write(&path, self.template()).map_err(LabError::file("writing", path))?;
        }
        Ok(())
    }

    /// All machines so far, in the order of their starts.
    pub fn machines(&self) -> Vec<Arc<Machine>> {
        lock(&self.machines).clone()
    }

    /// The machines whose QEMU exists.
    pub fn alive(&self) -> Vec<Arc<Machine>> {
        let mut machines = self.machines();
        machines.retain(|machine| machine.is_alive());
        machines
    }

    /// The machine that runs the guest now.
    pub fn running(&self) -> Option<Arc<Machine>> {
        self.machines().into_iter().find(|machine| machine.runs())
    }

    /// The machine on that node whose QEMU exists, the newest one.
    pub fn on(&self, node: &str) -> Option<Arc<Machine>> {
        let machines = self.alive().into_iter().rev();
        machines.into_iter().find(|machine| machine.node == node)
    }

    /// When which machine has run the guest, in order.
    pub fn ran(&self) -> Vec<Ran> {
        let mut ran: Vec<_> = self
            .machines()
            .iter()
            .flat_map(|machine| machine.ran())
            .collect();
        ran.sort_by_key(|ran| ran.from);
        ran
    }

    /// Two times in which it ran in two machines at once.
    pub fn ran_twice(&self) -> Option<[Ran; 2]> {
        let ran = self.ran();
        let pairs = ran.windows(2);
        let mut twice = pairs.filter(|pair| pair[0].to.is_none_or(|to| to > pair[1].from));
        twice.next().map(|pair| [pair[0].clone(), pair[1].clone()])
    }

    /// The machines that have one image of its disk open as a running guest has it; if there is a
    /// copy on each node, the most that have the same one.
    pub fn lock_disk(&self) -> Vec<Arc<Machine>> {
        let mut machines = self.alive();
        // One may have handed the disk over to another one between two looks.
        machines.retain(|machine| machine.locked_image().is_some());
        let mut images: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for machine in machines {
            if let Some(image) = machine.locked_image() {
                images.entry(image).or_default().push(machine);
            }
        }
        images
            .into_values()
            .max_by_key(Vec::len)
            .unwrap_or_default()
    }

    /// Makes the guest check every page where it runs now, and returns its verdict.
    ///
    /// # Errors
    /// When it runs nowhere, or there is no verdict within `timeout`.
    pub fn sweep(&self, timeout: Duration) -> Result<Verdict, LabError> {
        let from = self.console.len();
        let machine = self.running().ok_or_else(|| LabError::TimedOut {
            what: format!("{} to run", self.name),
            after: Duration::ZERO,
            seen: format!("{:?}", self.ran()),
        })?;
        machine.send("sweep")?;
        let what = format!("a verdict of {}", machine.name);
        self.console
            .wait_for(&what, from, timeout, |line| match &line.report {
                GuestReport::Verdict(verdict) => Some(*verdict),
                _ => None,
            })
    }

    /// Waits until the guest's workload has started on its newest machine, in run `number`.
    ///
    /// # Errors
    /// When that takes longer than `timeout`.
    pub fn wait_run(&self, number: u64, timeout: Duration) -> Result<(), LabError> {
        let what = format!("run {number} of {}", self.name);
        self.console
            .wait_for(&what, 0, timeout, |line| match &line.report {
                GuestReport::Runs(runs) if runs.run == number => Some(()),
                _ => None,
            })
    }

    /// How often the guest has booted, by the record on its first disk, and how far that is.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub fn record(&self) -> Result<(u64, u64), LabError> {
        let mut path = match self.config.disks().first() {
            Some(disk) => disk.image().path().to_owned(),
            None => PathBuf::from("(no disk)"),
        };
        // A disk of the node where it runs.
        if let (Ok(file), Some(machine)) =
            (path.strip_prefix(Cluster::local(&self.lab)), self.running())
        {
            path = self
                .lab
                .folder()
                .join(machine.node())
                .join("local")
                .join(file);
        }
        let block = fs::read(&path).map_err(LabError::file("reading", &path))?;
        let line = String::from_utf8_lossy(&block[..block.len().min(4096)]).into_owned();
        let field = |name: &str| {
            let mut words = line.split([' ', '\n']);
            words.find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        Ok((field("run=").unwrap_or(0), field("beat=").unwrap_or(0)))
    }

    /// Waits until the record goes on: the guest runs.
    ///
    /// # Errors
    /// When it does not within `timeout`.
    pub fn wait_beat(&self, timeout: Duration) -> Result<(), LabError> {
        let before = self.record()?;
        let deadline = Instant::now() + timeout;
        while self.record()? == before {
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: format!("the record of {} to go on", self.name),
                    after: timeout,
                    seen: format!("{before:?}; {:?}\n{}", self.ran(), self.console.tail()),
                });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Machine {
    /// Waits until QEMU answers.
    fn new(
        guest: &str,
        number: u32,
        pid: u32,
        output: UnixStream,
        monitor: UnixStream,
        console: &Console,
    ) -> Option<Self> {
        let node = fs::read_to_string(format!("/proc/{pid}/root/run/node")).unwrap_or_default();
        let node = node.trim().to_owned();
        let name = format!("{guest}-{number}@{node}");
        let input = output.try_clone().ok()?;
        console.follow(&name, output).ok()?;
        let qmp = Qmp::new(&name, monitor).ok()?;
        Some(Self {
            name,
            node,
            pid,
            qmp,
            input: Mutex::new(input),
            ended: Mutex::new(None),
        })
    }

    /// Waits for its end.
    fn wait(&self, mut process: VmProcess) {
        let _ = process.wait();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(now.unwrap_or_default());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
