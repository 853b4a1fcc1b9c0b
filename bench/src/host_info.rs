//! The host that the bench ran on.

use std::fmt;
use std::fs;
use std::process::Command;

use hikkoshi_lab::QemuVersion;
use serde::{Deserialize, Serialize};

/// The properties of the host that matter for the results.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HostInfo {
    /// Date and time, UTC.
    pub date: String,
    /// Number of processors.
    pub cores: usize,
    /// Processor model.
    pub processor: String,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// QEMU's version line.
    pub qemu: String,
    /// TCP congestion control of the namespaces.
    pub congestion: String,
    /// `git describe` of the measured tree.
    pub revision: String,
}

impl HostInfo {
    /// Collects the properties of this host.
    pub(crate) fn collect(congestion: Option<&str>) -> Self {
        let file = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let field = |text: &str, name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let memory = field(&file("/proc/meminfo"), "MemTotal");
        let qemu = QemuVersion::V10_0.runner().map_or_else(
            |error| error.to_string(),
            |runner| output(Command::new(runner).arg("--version")),
        );
        Self {
            date: output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field(&file("/proc/cpuinfo"), "model name"),
            memory_mib: memory
                .split(' ')
                .next()
                .and_then(|kib| kib.parse::<u64>().ok())
                .unwrap_or(0)
                / 1024,
            kernel: file("/proc/sys/kernel/osrelease"),
            qemu: qemu.lines().next().unwrap_or_default().to_owned(),
            congestion: congestion.map_or_else(
                || file("/proc/sys/net/ipv4/tcp_congestion_control"),
                str::to_owned,
            ),
            revision: output(Command::new("git").args(["describe", "--always", "--dirty"])),
        }
    }
}

impl HostInfo {
    /// What is different at another time in what results depend on: its name, here and there. A
    /// tree with changes is never the same.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let revision = |host: &Self| host.revision.clone();
        if self.revision.ends_with("-dirty") {
            return Some(("revision", revision(self), "another state".to_owned()));
        }
        [
            ("revision", revision(self), revision(other)),
            ("processor", self.processor.clone(), other.processor.clone()),
            (
                "a host with as many processors as",
                self.cores.to_string(),
                other.cores.to_string(),
            ),
            ("kernel", self.kernel.clone(), other.kernel.clone()),
            ("QEMU", self.qemu.clone(), other.qemu.clone()),
            (
                "congestion control",
                self.congestion.clone(),
                other.congestion.clone(),
            ),
        ]
        .into_iter()
        .find(|(_, here, there)| here != there)
    }

    /// The host in two lines, for a plot.
    pub(crate) fn in_two_lines(&self) -> [String; 2] {
        [
            format!(
                "{}, revision {}: {} cores ({}), {} MiB, Linux {}",
                self.date, self.revision, self.cores, self.processor, self.memory_mib, self.kernel
            ),
            format!("{}, TCP {}", self.qemu, self.congestion),
        ]
    }
}

/// The output of a program, trimmed; empty on failure.
fn output(command: &mut Command) -> String {
    command
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

impl fmt::Display for HostInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} cores ({}), {} MiB, Linux {}, {}, TCP {}, revision {}",
            self.date,
            self.cores,
            self.processor,
            self.memory_mib,
            self.kernel,
            self.qemu,
            self.congestion,
            self.revision
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_another_revision_or_host_are_different() {
        let host = HostInfo {
            date: "2026-11-30".to_owned(),
            cores: 2,
            processor: "a processor".to_owned(),
            memory_mib: 24_000,
            kernel: "6.18".to_owned(),
            qemu: "QEMU 10.0".to_owned(),
            congestion: "bbr".to_owned(),
            revision: "53c92920".to_owned(),
        };
        let with = |change: fn(&mut HostInfo)| {
            let mut other = host.clone();
            change(&mut other);
            other
        };
        assert_eq!(host.difference(&with(|it| it.date.clear())), None);
        let other = with(|it| it.revision.push('1'));
        let difference = host.difference(&other).unwrap();
        assert_eq!(
            difference,
            ("revision", "53c92920".into(), "53c929201".into())
        );
        assert!(host.difference(&with(|it| it.cores = 4)).is_some());
        let dirty = with(|it| it.revision.push_str("-dirty"));
        assert!(dirty.difference(&dirty).is_some());
    }
}
