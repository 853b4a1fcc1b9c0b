//! QEMU's own migration, for comparison.

use crate::{LabError, Vm};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// QEMU's migration modes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QemuMigrationMode {
    /// Pre-copy with one connection.
    Precopy,
    /// Pre-copy with this many connections for pages.
    Multifd(u32),
    /// One round of pre-copy, then post-copy.
    Postcopy,
    /// One round of pre-copy, then post-copy with a second connection for requested pages.
    PostcopyPreempt,
}

/// The parameters of a migration by QEMU.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QemuMigration {
    /// The mode.
    pub mode: QemuMigrationMode,
    /// Bandwidth limit, bytes a second; 0 = no limit.
    pub bandwidth: u64,
    /// Downtime limit of pre-copy, ms.
    pub downtime_ms: u64,
    /// Starts post-copy before the first round is complete: most pages are still at the source
    /// then.
    pub switch_at_once: bool,
    /// Bandwidth limit of post-copy, bytes a second, except for requested pages; 0 = no limit.
    pub postcopy_bandwidth: u64,
    /// What [`Multifd`](QemuMigrationMode::Multifd) compresses pages with, as QEMU names it:
    /// `none`, `zlib`, `zstd`.
    pub multifd_compression: &'static str,
    /// Time limit.
    pub timeout: Duration,
}

impl QemuMigration {
    /// No bandwidth limit, QEMU's own downtime limit of 300 ms, five minutes.
    pub fn new(mode: QemuMigrationMode) -> Self {
        Self {
            mode,
            bandwidth: 0,
            downtime_ms: 300,
            switch_at_once: false,
            postcopy_bandwidth: 0,
            multifd_compression: "none",
            timeout: Duration::from_secs(300),
        }
    }
}

/// The result of a migration by QEMU.
#[derive(Clone, Debug)]
pub struct QemuMigrationReport {
    /// From the command to completion at the source.
    pub total: Duration,
    /// From the source's `STOP` to the destination's `RESUME`, by the host's wall clock.
    pub downtime: Duration,
    /// When post-copy started, if it did.
    pub postcopy_started: Option<Instant>,
    /// When the source reported completion.
    pub ended: Instant,
    /// The source's `query-migrate` at the end.
    pub info: Value,
}

impl QemuMigration {
    /// Moves the guest of `source` to `destination`, which listens at `uri` (`tcp:HOST:PORT` or
    /// `unix:PATH`) and was started with [`crate::VmConfig::incoming`].
    ///
    /// # Errors
    /// When QEMU refuses, fails, or exceeds the time limit.
    pub fn run(
        &self,
        source: &Vm,
        destination: &Vm,
        uri: &str,
    ) -> Result<QemuMigrationReport, LabError> {
        for vm in [source, destination] {
            self.configure(vm)?;
        }
        destination
            .qmp()
            .execute("migrate-incoming", json!({ "uri": uri }))?;
        let (stops, resumes) = (
            source.qmp().events().len(),
            destination.qmp().events().len(),
        );
        let started = Instant::now();
        source.qmp().execute("migrate", json!({ "uri": uri }))?;
        let mut postcopy_started = None;
        let info = loop {
            let info = source.qmp().execute("query-migrate", json!({}))?;
            let status = info["status"].as_str().unwrap_or_default();
            match status {
                "completed" => break info,
                "failed" | "cancelled" | "postcopy-paused" => {
                    return Err(failed(source, status, &info));
                }
                _ if started.elapsed() > self.timeout => {
                    let _ = source.qmp().execute("migrate_cancel", json!({}));
                    return Err(failed(source, status, &info));
                }
                // Rounds are counted from 1: the second one starts when the first is complete.
                "active"
                    if self.is_postcopy()
                        && postcopy_started.is_none()
                        && (self.switch_at_once
                            || info["ram"]["dirty-sync-count"].as_u64() >= Some(2)) =>
                {
                    source.qmp().execute("migrate-start-postcopy", json!({}))?;
                    postcopy_started = Some(Instant::now());
                }
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let ended = Instant::now();
        let stop = source.qmp().wait_event("STOP", stops, self.timeout)?;
        let resume = destination
            .qmp()
            .wait_event("RESUME", resumes, self.timeout)?;
        Ok(QemuMigrationReport {
            total: ended - started,
            downtime: resume.happened.saturating_sub(stop.happened),
            postcopy_started,
            ended,
            info,
        })
    }

    fn is_postcopy(&self) -> bool {
        matches!(
            self.mode,
            QemuMigrationMode::Postcopy | QemuMigrationMode::PostcopyPreempt
        )
    }

    fn configure(&self, vm: &Vm) -> Result<(), LabError> {
        let mut capabilities = Vec::new();
        match self.mode {
            QemuMigrationMode::Precopy => {}
            QemuMigrationMode::Multifd(_) => capabilities.push("multifd"),
            QemuMigrationMode::Postcopy => capabilities.push("postcopy-ram"),
            QemuMigrationMode::PostcopyPreempt => {
                capabilities.extend(["postcopy-ram", "postcopy-preempt"]);
            }
        }
        let capabilities: Vec<_> = capabilities
            .into_iter()
            .map(|name| json!({ "capability": name, "state": true }))
            .collect();
        vm.qmp().execute(
            "migrate-set-capabilities",
            json!({ "capabilities": capabilities }),
        )?;
        let mut parameters = json!({
            "max-bandwidth": self.bandwidth,
            "downtime-limit": self.downtime_ms,
            "max-postcopy-bandwidth": self.postcopy_bandwidth,
        });
        if let QemuMigrationMode::Multifd(channels) = self.mode {
            parameters["multifd-channels"] = json!(channels);
            parameters["multifd-compression"] = json!(self.multifd_compression);
        }
        vm.qmp()
            .execute("migrate-set-parameters", parameters)
            .map(drop)
    }
}

fn failed(vm: &Vm, status: &str, info: &Value) -> LabError {
    LabError::QemuMigration {
        vm: vm.name().to_owned(),
        status: status.to_owned(),
        reason: info["error-desc"]
            .as_str()
            .unwrap_or("no reason given")
            .to_owned(),
    }
}
