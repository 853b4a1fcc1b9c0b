//! The guest as a domain of libvirt, moved by libvirt.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hikkoshi_lab::Disk;
use hikkoshi_lab::libvirt::DomainConfig;

use super::guest::{LINE, images, workload};
use super::machine::WARM_UP;
use super::writes::{Sample, Writes, record};
use super::{Moved, Sizes, System};
use crate::args::Args;
use crate::error::BenchError;
use crate::measure::{join, serve};
use crate::meter::{MigrationTimeline, seconds_between};
use crate::mover::virsh_migrate;
use crate::testbed::{DomainHosts, DomainTestbed, LONG};

/// Boots the domain, moves it with these further options, and checks its disk.
pub(super) fn moved(
    hosts: &DomainHosts,
    sizes: Sizes,
    options: &[&str],
    args: &Args,
) -> Result<Moved, BenchError> {
    let [from, to] = images(hosts.lab(), sizes)?.map(Disk::new);
    let config = DomainConfig::new("guest", workload())
        .memory_mib(sizes.memory_mib)
        .disk(from.clone());
    let testbed = DomainTestbed::boot_domain(hosts, config, from.clone(), LINE, args)?;
    let xml = destination_xml(&testbed, from.image().path(), to.image().path())?;
    let xml = xml.to_string_lossy();
    let words = [&["--copy-storage-all", "--xml", &xml], options].concat();
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    let (served, samples) = std::thread::scope(|scope| {
        let samples = scope.spawn(|| record(&stop, || sample(&testbed)));
        std::thread::sleep(WARM_UP);
        let network = testbed.hosts.network();
        let served = serve(
            network,
            &testbed.network,
            || testbed.pids(),
            || virsh_migrate(&testbed, &words),
        );
        stop.store(true, Ordering::Relaxed);
        (served, join(samples))
    });
    let served = served?;
    let (left, resumed) = testbed.switch()?;
    let (started, ended) = (served.moved.started, served.moved.ended);
    let verdict = testbed.domain.sweep(testbed.destination, LONG)?;
    if !verdict.ok {
        return Err(BenchError::BadPages(verdict.bad));
    }
    testbed.destroy()?;
    to.image().check()?;
    Ok(Moved {
        system: System::Virsh,
        round: 0,
        total_ms: (ended - started).as_secs_f64() * 1e3,
        downtime_ms: seconds_between(left, resumed) * 1e3,
        cost: served.cost,
        clients: served.answers.outcome(MigrationTimeline {
            started,
            stop: left,
            resume: resumed,
            ended,
        }),
        before: Writes::between(&samples, began, started),
        during: Writes::between(&samples, started, left),
        report: served.moved.report,
    })
}

/// `None` when the domain has left.
fn sample(testbed: &DomainTestbed<'_>) -> Option<Sample> {
    let words = ["domblkstat", testbed.domain.name(), "vda"];
    let printed = testbed.source.virsh(&words).ok()?;
    Sample::of_virsh(Instant::now(), &printed)
}

/// Writes the domain's XML with the destination's image. Both hosts are on one machine, where one
/// path is one file.
fn destination_xml(
    testbed: &DomainTestbed<'_>,
    from: &Path,
    to: &Path,
) -> Result<PathBuf, BenchError> {
    let words = ["dumpxml", testbed.domain.name(), "--migratable"];
    let xml = testbed.source.virsh(&words)?;
    let xml = xml.replace(&*from.to_string_lossy(), &to.to_string_lossy());
    let path = testbed.folder.join("destination.xml");
    std::fs::write(&path, xml).map_err(|source| BenchError::File {
        doing: "writing",
        path: path.clone(),
        source,
    })?;
    Ok(path)
}
