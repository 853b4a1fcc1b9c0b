//! The guest as a QEMU by itself, moved by hikkoshi.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_lab::{Disk, Lab, Ram, RamBackend, Vm, VmConfig};
use serde_json::json;

use super::guest::{LINE, images, workload};
use super::writes::{Sample, Writes, record};
use super::{Moved, Sizes, System};
use crate::args::Args;
use crate::error::BenchError;
use crate::measure::{join, serve};
use crate::meter::MigrationTimeline;
use crate::mover::HikkoshiMigration;
use crate::plan::Variant;
use crate::testbed::{LONG, Testbed};

/// How long the guest writes before it is moved, without what the clients wait.
pub(super) const WARM_UP: Duration = Duration::from_secs(3);

/// The mode that is the default.
const MODE: &str = "hybrid";

/// Boots the guest, moves it, and checks its disk.
pub(super) fn moved(sizes: Sizes, program: &Path, args: &Args) -> Result<Moved, BenchError> {
    let lab = Lab::new()?;
    let [from, to] = images(&lab, sizes)?.map(Disk::new);
    let testbed = boot(lab, sizes, [&from, &to], args)?;
    let Some(network) = &testbed.guest_network else {
        unreachable!("this guest has a card");
    };
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    let (served, samples) = std::thread::scope(|scope| {
        let samples = scope.spawn(|| record(&stop, || sample(&testbed.source)));
        std::thread::sleep(WARM_UP);
        let pids = || testbed.pids().to_vec();
        let served = serve(network, &testbed.network, pids, || {
            let options = ["--copy-disks"];
            HikkoshiMigration::start(&testbed, program, MODE, Variant::Plain, args, &options)?
                .finish(None)
        });
        stop.store(true, Ordering::Relaxed);
        (served, join(samples))
    });
    let served = served?;
    let (left, resumed) = testbed.switch()?;
    let (started, ended) = (served.moved.started, served.moved.ended);
    let verdict = testbed.destination.sweep(LONG)?;
    if !verdict.ok {
        return Err(BenchError::BadPages(verdict.bad));
    }
    testbed.destination.quit(LONG)?;
    to.image().check()?;
    Ok(Moved {
        system: System::Hikkoshi,
        round: 0,
        total_ms: (ended - started).as_secs_f64() * 1e3,
        downtime_ms: resumed.happened.saturating_sub(left.happened).as_secs_f64() * 1e3,
        cost: served.cost,
        clients: served.answers.outcome(MigrationTimeline {
            started,
            stop: left.instant(),
            resume: resumed.instant(),
            ended,
        }),
        before: Writes::between(&samples, began, started),
        during: Writes::between(&samples, started, left.instant()),
        report: served.moved.report,
    })
}

fn sample(vm: &Vm) -> Option<Sample> {
    let stats = vm.qmp().execute("query-blockstats", json!({})).ok()?;
    Sample::of_qmp(Instant::now(), &stats)
}

/// Starts a [`Testbed`] with an image for each host.
fn boot(lab: Lab, sizes: Sizes, disks: [&Disk; 2], args: &Args) -> Result<Testbed, BenchError> {
    // As libvirt's default.
    let config = VmConfig::new()
        .ram(Ram::new(RamBackend::Default, sizes.memory_mib))
        .workload(workload());
    let configs = disks.map(|disk| config.clone().disk(disk.clone()));
    Testbed::start_each(lab, configs, (LINE, args.congestion.as_deref()), true)
}
