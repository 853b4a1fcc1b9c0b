//! The ways to measure a guest.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hikkoshi_lab::Vm;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::BenchError;

/// How often QEMU is asked whether it has finished.
const POLL: Duration = Duration::from_millis(20);

/// A way to measure a guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) enum Method {
    /// `hikkoshi dirty-rate` with its default settings.
    Hikkoshi,
    /// `hikkoshi dirty-rate --max-cost 100`: all memory.
    HikkoshiWhole,
    /// QEMU's `calc-dirty-rate`, which compares checksums of 512 pages of each GiB.
    QemuSampling,
    /// QEMU's `calc-dirty-rate` with the mode `dirty-bitmap`.
    QemuBitmap,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Reported {
    /// The different pages that were written in the whole measurement.
    pub pages: f64,
    /// Its length.
    pub window_seconds: f64,
    /// The part of the memory that was measured, if it is known.
    pub measured_part: Option<f64>,
    /// Page faults of the guest in a second because of the log.
    pub faults_per_second: Option<f64>,
    /// What the program says it has cost, of one vCPU.
    pub stated_cost: Option<f64>,
}

impl Method {
    pub(super) const ALL: [Self; 4] = [
        Self::Hikkoshi,
        Self::HikkoshiWhole,
        Self::QemuSampling,
        Self::QemuBitmap,
    ];

    /// Measures the guest for this many seconds.
    pub(super) fn run(self, vm: &Vm, program: &Path, seconds: u64) -> Result<Reported, BenchError> {
        match self {
            Self::Hikkoshi => hikkoshi(vm, program, seconds, &[]),
            Self::HikkoshiWhole => hikkoshi(vm, program, seconds, &["--max-cost", "100"]),
            Self::QemuSampling => qemu(vm, seconds, "page-sampling"),
            Self::QemuBitmap => qemu(vm, seconds, "dirty-bitmap"),
        }
    }
}

fn hikkoshi(vm: &Vm, program: &Path, seconds: u64, more: &[&str]) -> Result<Reported, BenchError> {
    let side = "dirty-rate";
    let output = Command::new(program)
        .args([
            side,
            "--json",
            "-",
            "--seconds",
            &seconds.to_string(),
            "--qmp",
        ])
        .arg(vm.qmp_path())
        .args(more)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| BenchError::Program { side, source })?;
    let failed = |stderr: String| BenchError::Ended {
        side,
        status: output.status.to_string(),
        stderr,
    };
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let found: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
    let number = |pointer: &str| found.pointer(pointer).and_then(Value::as_f64);
    let sets = found
        .pointer("/total/working_sets")
        .and_then(Value::as_array);
    let whole = sets.and_then(|sets| sets.last());
    let of_whole = |name: &str| whole.and_then(|set| set[name].as_f64()).unwrap_or(0.0);
    let measured = number("/total/measured_bytes").zip(number("/total/bytes"));
    Ok(Reported {
        pages: of_whole("mean_pages"),
        window_seconds: of_whole("mean_window_ms") / 1e3,
        measured_part: measured.map(|(measured, all)| measured / all),
        faults_per_second: number("/cost/faults_per_second"),
        stated_cost: number("/cost/vcpu_share"),
    })
}

/// QEMU reports whole MiB a second: the different pages of the whole time, divided by it.
fn qemu(vm: &Vm, seconds: u64, mode: &str) -> Result<Reported, BenchError> {
    let start = json!({ "calc-time": seconds, "mode": mode });
    vm.qmp().execute("calc-dirty-rate", start)?;
    let rate = loop {
        let answer = vm.qmp().execute("query-dirty-rate", json!({}))?;
        if answer["status"] == "measured" {
            break answer["dirty-rate"].as_f64().unwrap_or(0.0);
        }
        std::thread::sleep(POLL);
    };
    let window_seconds = super::float(seconds);
    Ok(Reported {
        pages: rate * 256.0 * window_seconds,
        window_seconds,
        measured_part: None,
        faults_per_second: None,
        stated_cost: None,
    })
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hikkoshi => "hikkoshi",
            Self::HikkoshiWhole => "hikkoshi --max-cost 100",
            Self::QemuSampling => "calc-dirty-rate page-sampling",
            Self::QemuBitmap => "calc-dirty-rate dirty-bitmap",
        })
    }
}
