//! Real QEMU processes for the tests. They always end with the test.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, SourceGuest};
use hikkoshi_lab::QemuVersion;
use hikkoshi_qemu::qmp::{Client, Monitor, MonitorAddress, MonitorSocket, wait_until_started};
use hikkoshi_qemu::{QemuDestination, QemuIdentity, QemuSource};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The monitor of a QEMU whose QMP socket is ours.
pub(crate) fn monitor(identity: &QemuIdentity) -> Arc<dyn Monitor> {
    match &identity.monitor {
        MonitorAddress::Socket(path) => Arc::new(MonitorSocket::new(path)),
        other => panic!("{other}"),
    }
}

/// The QEMUs to test with, from the oldest to the newest: label and program. All that are set up if
/// `HIKKOSHI_QEMU_VERSIONS` is `all` (`make matrix`), else two. Fails if there is none.
pub(crate) fn versions() -> Vec<(String, PathBuf)> {
    let versions = match std::env::var("HIKKOSHI_QEMU_VERSIONS").as_deref() {
        Ok("all") => &QemuVersion::ALL[..],
        _ => &QemuVersion::OLDEST_AND_NEWEST[..],
    };
    let found: Vec<_> = versions
        .iter()
        .filter_map(|version| match version.runner() {
            Ok(run) => Some((version.label().to_owned(), run)),
            Err(error) => {
                print_always(&format!("NOT TESTED with QEMU {version}: {error}"));
                None
            }
        })
        .collect();
    assert!(!found.is_empty(), "no QEMU has been set up: run make setup");
    found
}

/// Prints a line even if the test passes. The test harness captures the output of the
/// printing macros and shows it only if the test fails.
pub(crate) fn print_always(text: &str) {
    let test = std::thread::current();
    let line = format!("{}: {text}\n", test.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Runs a test once for each QEMU version, and prints the accelerator.
pub(crate) fn with_each(test: impl Fn(&Program)) {
    for (label, run) in versions() {
        print_always(&format!("QEMU {label}, accelerator {}", accelerator()));
        test(&Program { label, run });
    }
}

/// A QEMU version.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub label: String,
    pub run: PathBuf,
}

impl Program {
    pub(crate) fn is_old(&self) -> bool {
        self.label == "7.2"
    }

    /// The newest QEMU of the tests.
    pub(crate) fn is_newest(&self) -> bool {
        self.label == QemuVersion::V11_1.label()
    }

    /// The newest QEMU refuses what is deprecated: a later one may not have it.
    fn without_deprecated(&self) -> &'static [&'static str] {
        match self.is_newest() {
            true => &QemuVersion::WITHOUT_DEPRECATED,
            false => &[],
        }
    }
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A file on tmpfs, removed when dropped.
#[derive(Debug)]
pub(crate) struct RamPath(pub PathBuf);

impl RamPath {
    pub(crate) fn new() -> Self {
        Self::in_folder(Path::new("/dev/shm"))
    }

    pub(crate) fn in_folder(folder: &Path) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hikkoshi-qemu-test-{}-{number}", std::process::id());
        Self(folder.join(name))
    }

    /// An empty disk image of 1 MiB.
    pub(crate) fn image() -> Self {
        let image = Self::new();
        File::create(&image.0).unwrap().set_len(1 << 20).unwrap();
        image
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for RamPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A running QEMU.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
    pid: u32,
    folder: TempDir,
    pub ram: RamPath,
    paths: Vec<RamPath>,
}

/// The accelerator: `kvm` if it is available, unless `HIKKOSHI_TEST_ACCEL` names another.
/// QEMU does not choose, so that the test's result is clear.
pub(crate) fn accelerator() -> String {
    std::env::var("HIKKOSHI_TEST_ACCEL").unwrap_or_else(|_| {
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        if kvm.is_ok() { "kvm" } else { "tcg" }.to_owned()
    })
}

fn socket(folder: &TempDir, name: &str) -> String {
    let path = folder.path().join(name);
    format!("unix:{},server=on,wait=off", path.display())
}

/// Options for the usual guest: one backend `ram` of `mib` MiB in `ram`.
pub(crate) fn usual(mib: u32, ram: &RamPath) -> Vec<String> {
    options(&format!(
        "-m {mib} -object memory-backend-file,id=ram,size={mib}M,mem-path={},share=on \
         -machine q35,memory-backend=ram",
        ram.as_str()
    ))
}

/// An option for a guest that executes QEMU's own firmware, and so writes to its memory.
pub(crate) const FIRMWARE: &str = "-bios bios-256k.bin";

/// Splits a line of options at blanks.
pub(crate) fn options(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Qemu {
    /// Starts the usual guest with 32 MiB, and more options.
    pub(crate) fn usual(program: &Program, more: &str) -> Self {
        let ram = RamPath::new();
        let mut all = usual(32, &ram);
        all.extend(options(more));
        Self::start(program, ram, &all)
    }

    /// Another one with the same memory, and more options.
    pub(crate) fn with_the_same_memory(&self, program: &Program, more: &str) -> Self {
        let ram = RamPath(self.ram.0.clone());
        let mut all = usual(32, &ram);
        all.extend(options(more));
        Self::start(program, ram, &all)
    }

    /// A usual QEMU with this accelerator. `None` if this machine does not have it.
    pub(crate) fn usual_under(program: &Program, accelerator: &str, more: &str) -> Option<Self> {
        if accelerator == "kvm" && File::options().write(true).open("/dev/kvm").is_err() {
            return None;
        }
        let ram = RamPath::new();
        let mut all = usual(32, &ram);
        all.extend(options(more));
        Some(Self::start_halting(program, accelerator, ram, &all))
    }

    /// Starts QEMU with just these options (and a QMP socket). Its guest only halts.
    pub(crate) fn start(program: &Program, ram: RamPath, options: &[String]) -> Self {
        Self::start_halting(program, &accelerator(), ram, options)
    }

    /// The guest runs, but uses no processor time: its firmware consists of HLT instructions.
    fn start_halting(
        program: &Program,
        accelerator: &str,
        ram: RamPath,
        options: &[String],
    ) -> Self {
        const HLT: u8 = 0xf4;
        let folder = tempfile::tempdir().unwrap();
        let firmware = folder.path().join("firmware");
        std::fs::write(&firmware, [HLT; 64 << 10]).unwrap();
        let mut all = vec!["-bios".to_owned(), firmware.display().to_string()];
        // QEMU takes the last one.
        all.extend_from_slice(options);
        Self::start_in(folder, program, accelerator, ram, &all)
    }

    /// Starts QEMU under this accelerator with just these options; its guest executes QEMU's
    /// firmware.
    pub(crate) fn start_under(
        program: &Program,
        accelerator: &str,
        ram: RamPath,
        options: &[String],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::start_in(folder, program, accelerator, ram, options)
    }

    fn start_in(
        folder: TempDir,
        program: &Program,
        accelerator: &str,
        ram: RamPath,
        options: &[String],
    ) -> Self {
        let errors = File::create(folder.path().join("stderr")).unwrap();
        // A guest that runs would keep QEMU busy when it has started.
        let waits = ["-S", "-incoming"].map(str::to_owned);
        let starts = !options.iter().any(|option| waits.contains(option));
        let child = Command::new(&program.run)
            .args(["-display", "none", "-nodefaults", "-no-user-config"])
            .args(["-accel", accelerator])
            .args(program.without_deprecated())
            .arg("-qmp")
            .arg(socket(&folder, "qmp"))
            .arg("-qmp")
            .arg(socket(&folder, "owner"))
            .args(options)
            .args(starts.then_some("-S"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut qemu = Self {
            pid: child.id(),
            child,
            folder,
            ram,
            paths: Vec::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        // QEMU listens before it creates the machine: wait for an answer.
        while {
            wait_until_started(&qemu.owners());
            Client::connect(&qemu.owners(), Duration::from_secs(20)).is_err()
        } {
            // (With -daemonize the process that we started exits successfully.)
            let ended = qemu.child.try_wait().unwrap();
            assert!(
                ended.is_none_or(|status| status.success()) && Instant::now() < deadline,
                "QEMU does not start: {}",
                qemu.errors()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        qemu.pid = qemu.client().peer().unwrap();
        // The test's options may contain another accelerator.
        let (query, expected) = match program.is_newest() {
            true => ("query-accelerators", json!(accelerator.split(',').next())),
            false => ("query-kvm", json!(accelerator.starts_with("kvm"))),
        };
        let used = qemu.execute(query, json!({}));
        assert_eq!(
            used["enabled"], expected,
            "QEMU does not run its guest under {accelerator}: {used}"
        );
        if starts {
            qemu.execute("cont", json!({}));
        }
        qemu
    }

    /// Keeps a path until QEMU has ended.
    pub(crate) fn keep(&mut self, path: RamPath) {
        self.paths.push(path);
    }

    pub(crate) fn qmp(&self) -> PathBuf {
        self.folder.path().join("qmp")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// The owner's QMP socket. The migration uses the other one.
    pub(crate) fn owners(&self) -> PathBuf {
        self.folder.path().join("owner")
    }

    /// A QMP session of the owner. Only one at a time is possible.
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.owners(), Duration::from_secs(20)).unwrap()
    }

    pub(crate) fn execute(&self, command: &str, arguments: Value) -> Value {
        self.client().execute(command, arguments).unwrap()
    }

    /// Resumes the guest at the source as a person does, who knows that it was not handed over:
    /// by [`RESUME_BY_HAND`](hikkoshi_qemu::RESUME_BY_HAND).
    pub(crate) fn resume_by_hand(&self) {
        let node = "moved-by-hikkoshi";
        assert!(hikkoshi_qemu::RESUME_BY_HAND.contains(node));
        let mut client = self.client();
        let deleted = client.execute("blockdev-del", json!({ "node-name": node }));
        assert!(deleted.is_ok_and(|answer| answer == json!({})));
        client.execute("cont", json!({})).unwrap();
    }

    /// What the human monitor answers.
    pub(crate) fn human(&self, line: &str) -> String {
        let answer = self.execute("human-monitor-command", json!({ "command-line": line }));
        answer.as_str().unwrap().to_owned()
    }

    /// What moves the guest away.
    pub(crate) fn source(&self) -> QemuSource {
        QemuSource::attach(&self.qmp()).unwrap()
    }

    /// What receives a guest.
    pub(crate) fn destination(&self) -> QemuDestination {
        QemuDestination::attach(&self.qmp()).unwrap()
    }

    /// QEMU's name for the guest's state.
    pub(crate) fn state(&self) -> String {
        self.execute("query-status", json!({}))["status"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Like [`Self::state`], after QEMU's own migration has ended completely: QEMU reports that it
    /// completed or failed shortly before it changes to the next state and closes its stream.
    pub(crate) fn state_at_rest(&self) -> String {
        let mut state = String::new();
        eventually("the end of QEMU's migration", || {
            state = self.state();
            state != "finish-migrate"
        });
        state
    }

    /// Everything in QEMU that a migration changes and must restore.
    pub(crate) fn traces(&self) -> Traces {
        self.state_at_rest();
        let mut client = self.client();
        Traces {
            capabilities: client
                .execute("query-migrate-capabilities", json!({}))
                .unwrap(),
            parameters: client
                .execute("query-migrate-parameters", json!({}))
                .unwrap(),
            userfaults: self.descriptors("userfaultfd"),
            // QEMU 7.2 removes a set only while the guest runs.
            descriptor_sets: match client.execute("query-status", json!({})).unwrap()["running"] {
                Value::Bool(true) => {
                    let sets = client.execute("query-fdsets", json!({})).unwrap();
                    sets.as_array().unwrap().len()
                }
                _ => 0,
            },
            sockets: 0,
        }
        .with_sockets(self.descriptors("socket:"))
    }

    /// Whether QEMU is marked as paused for a move.
    pub(crate) fn is_marked(&self) -> bool {
        let objects = self.execute("qom-list", json!({ "path": "/objects" }));
        let mut objects = objects.as_array().unwrap().iter();
        objects.any(|object| object["name"] == "hikkoshi-paused")
    }

    /// The number of QEMU's descriptors whose target's name contains this.
    pub(crate) fn descriptors(&self, what: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .filter(|link| link.to_string_lossy().contains(what))
            .count()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// How QEMU ended, once it has.
    pub(crate) fn wait(&mut self) -> (Option<i32>, Option<i32>) {
        let status = self.child.wait().unwrap();
        (status.code(), status.signal())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// See [`Qemu::traces`].
#[derive(Debug, PartialEq)]
pub(crate) struct Traces {
    capabilities: Value,
    parameters: Value,
    userfaults: usize,
    descriptor_sets: usize,
    sockets: usize,
}

impl Traces {
    fn with_sockets(self, sockets: usize) -> Self {
        Self { sockets, ..self }
    }
}

/// The device state of a paused guest.
pub(crate) fn device_state(source: &mut QemuSource) -> Vec<u8> {
    let mut state = Vec::new();
    let saved = source.save_device_state(&mut state, &CancelFlag::new());
    saved.unwrap();
    state
}

/// Checks that the message of `error`, with its causes, contains all of `parts`. Returns it.
#[track_caller]
pub(crate) fn says(error: &dyn Error, parts: &[&str]) -> String {
    let text = Report::new(error).to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    text
}

/// Waits until a condition is true, for at most 30 s.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A file system mounted for one test; needs root.
#[derive(Debug)]
pub(crate) struct Mounted(TempDir);

impl Mounted {
    /// Mounts a file system of this kind, with these options.
    pub(crate) fn new(kind: &str, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", kind, "-o", options, "hikkoshi-test"])
            .arg(folder.path())
            .status()
            .unwrap();
        assert!(status.success(), "mounting needs root");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, because QEMU may still be exiting.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
