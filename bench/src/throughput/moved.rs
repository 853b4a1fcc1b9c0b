//! One move, measured.

use std::path::Path;

use hikkoshi_lab::{GuestReport, Lab, VmConfig};
use serde::Serialize;

use super::case::{Case, System};
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::CpuMeter;
use crate::mover::{HikkoshiMigration, OwnReport, qemu_migrate};
use crate::plan::Variant;
use crate::testbed::{LONG, Testbed};

/// The guest's memory, and how much of it has content, MiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sizes {
    pub(super) memory_mib: u64,
    pub(super) filled_mib: u64,
}

/// One move.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moved {
    pub(super) case: Case,
    pub(super) round: u32,
    /// From the command to the last page, s.
    pub(super) total_s: f64,
    /// From the source's pause to the destination's start, ms.
    pub(super) downtime_ms: f64,
    /// Content of the guest's memory that was moved, MiB for each second of `total_s`.
    pub(super) mib_per_second: f64,
    /// Processor time of both QEMUs and of both engines, s for each GiB of content.
    pub(super) cpu_seconds_per_gib: f64,
    /// That of both QEMUs alone, which run the guest as well.
    pub(super) qemu_cpu_seconds_per_gib: f64,
    /// What the network carried, both directions, bytes.
    pub(super) bytes: u64,
    /// Processors that other processes used meanwhile.
    pub(super) others_cores: f64,
    /// The system's own report.
    pub(super) report: OwnReport,
}

/// Boots a guest, moves it while it is idle, and lets it check all of its memory's content.
pub(super) fn moved(
    case: Case,
    round: u32,
    sizes: Sizes,
    program: &Path,
    args: &Args,
) -> Result<Moved, BenchError> {
    let lab = Lab::new()?;
    let config = |touched| {
        let ram = case.memory.ram(sizes.memory_mib);
        VmConfig::new()
            .ram(if touched { ram.prealloc() } else { ram })
            .workload(case.content.workload(sizes.filled_mib))
    };
    let configs = [config(false), config(case.touched)];
    let line = (case.line, args.congestion.as_deref());
    let testbed = Testbed::start_each(lab, configs, line, false)?;
    let pids = testbed.pids();
    touch_host_memory(sizes.memory_mib);
    let before = testbed.network.bytes()?;
    let meter = CpuMeter::start(&pids);
    let outcome = match (case.system, case.system.qemu()) {
        (
            System::Hikkoshi {
                mode,
                links,
                tls,
                compress,
            },
            _,
        ) => {
            let variant = if tls { Variant::Tls } else { Variant::Plain };
            let links = links.to_string();
            let mut more = vec!["--links", &links];
            more.extend(["--compress", compress]);
            HikkoshiMigration::start(&testbed, program, mode, variant, args, &more)?.finish(None)?
        }
        (_, Some(migration)) => qemu_migrate(&migration, &testbed, None)?,
        (_, None) => unreachable!("it is QEMU's or hikkoshi's"),
    };
    let (cpu_seconds, others_cores) = (meter.own_seconds(&pids), meter.others_cores(&pids));
    let qemu_cpu_seconds = meter.seconds_of(&pids);
    let bytes = testbed.network.bytes()?.saturating_sub(before);
    let (stop, resume) = testbed.switch()?;
    check(&testbed)?;
    let total_s = (outcome.ended - outcome.started).as_secs_f64();
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let filled_mib = sizes.filled_mib as f64;
    let per_gib = |seconds| seconds / (filled_mib / 1024.0);
    Ok(Moved {
        case,
        round,
        total_s,
        downtime_ms: resume.happened.saturating_sub(stop.happened).as_secs_f64() * 1e3,
        mib_per_second: filled_mib / total_s,
        cpu_seconds_per_gib: per_gib(cpu_seconds),
        qemu_cpu_seconds_per_gib: per_gib(qemu_cpu_seconds),
        bytes,
        others_cores,
        report: outcome.report,
    })
}

/// Touches this much of the host's free memory. Where the host is a virtual machine itself, memory
/// that it has not used for a while belongs to the machine below, and the first access to each page
/// costs more than all of its move.
fn touch_host_memory(mib: u64) {
    let bytes = usize::try_from(mib << 20).unwrap_or(0);
    drop(std::hint::black_box(vec![1_u8; bytes]));
}

/// Has the guest check every byte that it wrote.
fn check(testbed: &Testbed) -> Result<(), BenchError> {
    let guest = &testbed.destination;
    let first = guest.console().len();
    guest.send("scan")?;
    let what = "the end of the scan";
    let end = guest.wait_report(what, first, LONG, |report| match report {
        GuestReport::Scanned(scanned) => Some(*scanned),
        _ => None,
    })?;
    match end.ok {
        true => Ok(()),
        false => Err(BenchError::BadPages(end.bad)),
    }
}
