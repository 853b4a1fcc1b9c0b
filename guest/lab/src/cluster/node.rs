//! A node of a cluster.

use crate::{Lab, LabError, Namespace, artifacts, spawn};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SCRIPT: &str = include_str!("../../cluster/node.sh");

/// The programs of a host, without what the user of this one has in its path.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How much of a log is in a message.
const LOG_LINES: usize = 60;

/// A node: mount, PID, host name and network namespaces of its own (`guest/lab/cluster/node.sh`).
#[derive(Debug)]
pub struct Node {
    name: &'static str,
    address: &'static str,
    folder: PathBuf,
    namespace: Namespace,
    process: Mutex<Option<Child>>,
    lab: Lab,
}

impl Node {
    pub(super) fn new(
        lab: &Lab,
        name: &'static str,
        address: &'static str,
        namespace: &Namespace,
    ) -> Result<Self, LabError> {
        let node = Self {
            name,
            address,
            folder: lab.folder().join(name),
            namespace: namespace.clone(),
            process: Mutex::new(None),
            lab: lab.clone(),
        };
        for folder in ["etc/hikkoshi", "etc/corosync", "pacemaker/cib", "local"] {
            let path = node.folder.join(folder);
            fs::create_dir_all(&path).map_err(LabError::file("creating the folder", path))?;
        }
        Ok(node)
    }

    pub(super) fn write_configuration(&self, corosync: &str, cib: &str) -> Result<(), LabError> {
        for (name, text) in [
            ("etc/corosync/corosync.conf", corosync),
            ("pacemaker/cib/cib.xml", cib),
        ] {
            let path = self.folder.join(name);
            fs::write(&path, text).map_err(LabError::file("writing", path))?;
        }
        Ok(())
    }

    /// Installs a program as hikkoshi, in the place of the one before, which may be running.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn install(&self, program: &Path) -> Result<(), LabError> {
        let new = self.folder.join("hikkoshi.new");
        spawn::run(Command::new("cp").arg(program).arg(&new))?;
        let path = self.folder.join("hikkoshi");
        fs::rename(new, &path).map_err(LabError::file("replacing", path))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its address.
    pub fn address(&self) -> &'static str {
        self.address
    }

    /// The folder that is `/etc/hikkoshi` on the node.
    pub fn etc(&self) -> PathBuf {
        self.folder.join("etc/hikkoshi")
    }

    /// The folder that is [`Cluster::local`](super::Cluster::local) on the node.
    pub fn local(&self) -> PathBuf {
        self.folder.join("local")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has power.
    pub fn is_on(&self) -> bool {
        self.lock().is_some()
    }

    /// Turns it on, and waits until Corosync answers there.
    ///
    /// # Errors
    /// When it does not start, with what it says.
    pub fn power_on(&self) -> Result<(), LabError> {
        let mut process = self.lock();
        if process.is_some() {
            return Ok(());
        }
        let stderr = self.folder.join("stderr");
        let file = File::create(&stderr).map_err(LabError::file("creating", &stderr))?;
        let mut command = self.namespace.command("unshare");
        command
            .args(["--uts", "--mount", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "bash", "-c", SCRIPT, "node.sh"])
            .args([&artifacts::build()?, self.lab.folder()])
            .args([self.name, self.address])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file);
        let mut child = spawn::spawn(command)?;
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if line != "ready\n" {
            let _ = child.kill();
            let _ = child.wait();
            return Err(LabError::Command {
                command: format!("starting the node {}", self.name),
                status: line,
                stderr: fs::read_to_string(&stderr).unwrap_or_default(),
            });
        }
        *process = Some(child);
        Ok(())
    }

    /// Turns it off: kills all of its processes, and waits until none is left.
    pub fn power_off(&self) {
        let Some(mut child) = self.lock().take() else {
            return;
        };
        let namespace = pid_namespace(child.id(), "pid_for_children");
        // The kernel kills the first process of the namespace then, and all others with it.
        let _ = child.kill();
        let _ = child.wait();
        while !processes_in(namespace.as_deref()).is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process IDs of everything that runs on the node, as this process sees them.
    pub fn processes(&self) -> Vec<u32> {
        let process = self.lock();
        let namespace = process
            .as_ref()
            .and_then(|process| pid_namespace(process.id(), "pid_for_children"));
        processes_in(namespace.as_deref())
    }

    /// The processes of the node whose command line has all of these words.
    pub fn processes_with(&self, words: &[&str]) -> Vec<u32> {
        let mut found = self.processes();
        found.retain(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let has = |word: &&str| {
                line.split(|&byte| byte == 0)
                    .any(|one| one == word.as_bytes())
            };
            words.iter().all(has)
        });
        found
    }

    /// A command that runs on the node. Its process is not the started one: that one waits for it,
    /// and the kernel kills it when that one ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let process = self.lock().as_ref().map_or(0, Child::id);
        let namespace = |kind: &str| format!("/proc/{process}/ns/{kind}");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount={}", namespace("mnt")))
            .arg(format!("--pid={}", namespace("pid_for_children")))
            .arg(format!("--net={}", namespace("net")))
            .arg(format!("--uts={}", namespace("uts")))
            .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program)
            .env_remove("LD_LIBRARY_PATH")
            .env("PATH", PATH);
        command
    }

    /// Runs a shell script on the node, and returns its standard output.
    ///
    /// # Errors
    /// When a command of it fails.
    pub fn shell(&self, script: &str) -> Result<String, LabError> {
        let mut command = self.command("bash");
        spawn::run(command.args(["-euo", "pipefail", "-c", script]))
    }

    /// The end of its logs.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for name in ["pacemaker/pacemaker.log", "hikkoshi"] {
            let log = fs::read(self.folder.join("log").join(name)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<_> = log.lines().collect();
            let from = lines.len().saturating_sub(LOG_LINES);
            text.push_str(&format!("{name}:\n{}\n", lines[from..].join("\n")));
        }
        text
    }

    /// The whole log of Pacemaker, with what the agents have said.
    pub fn pacemaker_log(&self) -> String {
        let log = fs::read(self.folder.join("log/pacemaker/pacemaker.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.power_off();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn pid_namespace(process: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// The processes in a PID namespace.
fn processes_in(namespace: Option<&Path>) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|&pid| namespace.is_some() && pid_namespace(pid, "pid").as_deref() == namespace)
        .collect()
}
