//! A host with a libvirt daemon, in namespaces of its own.

use super::LibvirtVersion;
use crate::{GuestNetwork, Lab, LabError, Namespace, artifacts, spawn};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("../../libvirt/host.sh");

/// A host with a libvirt daemon: mount, PID, host name and network namespaces of its own, with its
/// own `/run` and `/etc/libvirt` (`guest/lab/libvirt/host.sh`). The lab's folder and the build
/// folder, with all disk images, have the same path on all hosts.
///
/// On drop, all processes of the host end, its domains too.
#[derive(Debug)]
pub struct LibvirtHost {
    name: &'static str,
    address: &'static str,
    folder: PathBuf,
    version: LibvirtVersion,
    process: Child,
    _namespace: Namespace,
    _lab: Lab,
}

impl LibvirtHost {
    /// [`LibvirtHost::folder`] on the host itself.
    pub const FOLDER: &str = "/srv/host";

    fn start(
        lab: &Lab,
        name: &'static str,
        namespace: &Namespace,
        address: &'static str,
        version: LibvirtVersion,
        userfaultfd: bool,
    ) -> Result<Self, LabError> {
        let mut command = namespace.command("unshare");
        command
            .args(["--uts", "--mount", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "bash", "-c", SCRIPT, "host.sh"])
            .args([&artifacts::build()?, lab.folder()])
            .args(["sh", "-c", "echo ready; exec cat"])
            .env("HOST_NAME", name)
            .env("HOST_LIBVIRT", version.number())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if userfaultfd {
            command.env("HOST_USERFAULTFD", "1");
        }
        Ok(Self {
            name,
            address,
            folder: lab.folder().join(name),
            version,
            process: spawn::spawn(command)?,
            _namespace: namespace.clone(),
            _lab: lab.clone(),
        })
    }

    /// Waits until the daemon answers.
    fn wait_ready(&mut self) -> Result<(), LabError> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.process.stdout {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if line == "ready\n" {
            return Ok(());
        }
        let mut stderr = String::new();
        let _ = self.process.kill();
        if let Some(from) = &mut self.process.stderr {
            let _ = from.read_to_string(&mut stderr);
        }
        Err(LabError::Command {
            command: format!("starting libvirt on {}", self.name),
            status: line,
            stderr,
        })
    }

    /// The host's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The version of its libvirt.
    pub fn version(&self) -> LibvirtVersion {
        self.version
    }

    /// Its address on the network of the hosts.
    pub fn address(&self) -> &'static str {
        self.address
    }

    /// The URI of its daemon, for other hosts.
    pub fn uri(&self) -> String {
        format!("qemu+tcp://{}/system", self.address)
    }

    /// A folder that is [`FOLDER`](Self::FOLDER) on this host.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The process IDs of everything that runs on the host, as this process sees them.
    pub fn processes(&self) -> Vec<u32> {
        let namespace = |pid: u32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let own = namespace(self.process.id(), "pid_for_children");
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        all.filter(|&pid| own.is_some() && namespace(pid, "pid") == own)
            .collect()
    }

    /// A command that runs on the host. Its process is not the started one: that one waits for it,
    /// and the kernel kills it when that one ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let process = self.process.id();
        let namespace = |kind: &str| format!("/proc/{process}/ns/{kind}");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount={}", namespace("mnt")))
            .arg(format!("--pid={}", namespace("pid_for_children")))
            .arg(format!("--net={}", namespace("net")))
            .arg(format!("--uts={}", namespace("uts")))
            .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program);
        if self.version != LibvirtVersion::V9 {
            // It names the library of another version.
            command.env_remove("LD_LIBRARY_PATH");
        }
        command
    }

    /// Runs a shell script on the host, and returns its standard output.
    ///
    /// # Errors
    /// When a command of it fails.
    pub fn shell(&self, script: &str) -> Result<String, LabError> {
        let mut command = self.command("bash");
        spawn::run(command.args(["-euo", "pipefail", "-c", script]))
    }

    /// Runs `virsh` on the host, and returns its output, without spaces and newlines at its ends.
    ///
    /// # Errors
    /// When it fails.
    pub fn virsh(&self, words: &[&str]) -> Result<String, LabError> {
        let output = spawn::run(self.command("virsh").arg("-q").args(words))?;
        Ok(output.trim().to_owned())
    }

    /// The process IDs, on the host, of all programs with this name: at most 15 bytes, as the
    /// kernel keeps it. A host's root may have no `pgrep`.
    ///
    /// # Errors
    /// When no command runs on the host.
    pub fn pids_of(&self, program: &str) -> Result<Vec<u32>, LabError> {
        let script = format!(
            "grep --files-with-matches --line-regexp '{program}' /proc/[0-9]*/comm || true"
        );
        let files = self.shell(&script)?;
        let pids = files
            .lines()
            .filter_map(|file| file.split('/').nth(2)?.parse().ok());
        Ok(pids.collect())
    }

    /// The state of a domain, as `virsh domstate` prints it: `running`, `paused`, `shut off`.
    /// `absent` if the daemon has no such domain.
    ///
    /// # Errors
    /// When `virsh` fails for another reason.
    pub fn state(&self, domain: &str) -> Result<String, LabError> {
        match self.virsh(&["domstate", domain]) {
            // The second one if it ends while `virsh` asks.
            Err(LabError::Command { stderr, .. })
                if ["failed to get domain", "Domain not found"]
                    .iter()
                    .any(|absent| stderr.contains(absent)) =>
            {
                Ok("absent".to_owned())
            }
            other => other,
        }
    }

    /// Kills the daemon. Its domains continue to run.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_daemon(&self) -> Result<(), LabError> {
        let kill = "pid=$(</run/libvirtd.pid); kill -KILL $pid
                    while kill -0 $pid 2>/dev/null; do sleep 0.01; done";
        self.shell(kill).map(drop)
    }

    /// Stops the daemon, which does nothing any more until it is continued or killed: it hangs.
    ///
    /// # Errors
    /// When it does not run.
    pub fn stop_daemon(&self) -> Result<(), LabError> {
        self.shell("kill -STOP $(</run/libvirtd.pid)").map(drop)
    }

    /// Continues the daemon that was stopped, and waits until it answers.
    ///
    /// # Errors
    /// When it does not run.
    pub fn continue_daemon(&self) -> Result<(), LabError> {
        self.shell("kill -CONT $(</run/libvirtd.pid); virsh -q uri")
            .map(drop)
    }

    /// Starts the daemon that was killed, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_daemon(&self) -> Result<(), LabError> {
        self.shell("libvirtd --daemon --listen; virsh -q uri")
            .map(drop)
    }

    /// The daemon's warnings and errors so far, for messages.
    pub fn daemon_log(&self) -> String {
        let log = "cat /var/log/libvirt/libvirtd.log /var/log/libvirt/qemu/*.log 2>/dev/null | tail -n 40 || true";
        self.shell(log).unwrap_or_default()
    }
}

impl Drop for LibvirtHost {
    fn drop(&mut self) {
        // The host's first process reads from this pipe.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Two hosts with libvirt on a switch, and a client of their guests.
#[derive(Debug)]
pub struct LibvirtHosts {
    /// The host where domains start.
    pub source: LibvirtHost,
    /// The host that they move to.
    pub destination: LibvirtHost,
    network: GuestNetwork,
}

impl LibvirtHosts {
    /// The bridge of each host, for [`DomainConfig::bridge`](crate::libvirt::DomainConfig::bridge).
    pub const BRIDGE: &str = "br0";

    /// Starts both daemons, as libvirt is configured by default, with the usual versions
    /// ([`LibvirtVersion::usual`]).
    ///
    /// # Errors
    /// When the kernel does not allow it, or a daemon does not start.
    pub fn start(lab: &Lab) -> Result<Self, LabError> {
        Self::start_with(lab, LibvirtVersion::usual()?, false)
    }

    /// Starts both daemons with these versions of libvirt, the source's first.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_versions(lab: &Lab, versions: [LibvirtVersion; 2]) -> Result<Self, LabError> {
        Self::start_with(lab, versions, false)
    }

    /// Starts both daemons on hosts where QEMU may open userfaultfds, which its own post-copy
    /// needs.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_with_userfaultfd(lab: &Lab) -> Result<Self, LabError> {
        Self::start_with(lab, LibvirtVersion::usual()?, true)
    }

    fn start_with(
        lab: &Lab,
        [source, destination]: [LibvirtVersion; 2],
        userfaultfd: bool,
    ) -> Result<Self, LabError> {
        let network = GuestNetwork::new()?;
        let start = |name, namespace, address, version| {
            LibvirtHost::start(lab, name, namespace, address, version, userfaultfd)
        };
        let mut hosts = Self {
            source: start("source", network.source(), GuestNetwork::SOURCE, source)?,
            destination: start(
                "destination",
                network.destination(),
                GuestNetwork::DESTINATION,
                destination,
            )?,
            network,
        };
        hosts.source.wait_ready()?;
        hosts.destination.wait_ready()?;
        Ok(hosts)
    }

    /// Starts another host, from which domains move to the same destination. It is configured by
    /// default, and has the source's version of libvirt.
    ///
    /// # Errors
    /// When the kernel does not allow it, or its daemon does not start.
    pub fn third(&self, lab: &Lab) -> Result<LibvirtHost, LabError> {
        let (namespace, address) = (self.network.third_host()?, GuestNetwork::THIRD);
        let version = self.source.version;
        let mut host = LibvirtHost::start(lab, "third", &namespace, address, version, false)?;
        host.wait_ready()?;
        Ok(host)
    }

    /// The network of the hosts, their guests and the client.
    pub fn network(&self) -> &GuestNetwork {
        &self.network
    }
}
