//! Measures a domain of libvirt that two clients use while it is moved to another daemon.

use std::path::Path;

use super::clients::serve;
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::{MigrationTimeline, seconds_between};
use crate::mover::migrate_domain;
use crate::plan::Case;
use crate::record::Run;
use crate::testbed::{DomainHosts, DomainTestbed, LONG};

/// Moves the domain while it serves the clients.
pub(super) fn measure(
    case: &Case,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let hosts = DomainHosts::start()?;
    let testbed = DomainTestbed::boot(&hosts, case, args)?;
    let served = serve(
        testbed.hosts.network(),
        &testbed.network,
        || testbed.pids(),
        || migrate_domain(&testbed, case, program, args),
    )?;
    let (moved, answers) = (&served.moved, &served.answers);
    run.take_cost(&served.cost);
    run.take(moved);
    let (stop, resume) = testbed.switch()?;
    run.downtime_ms = Some(seconds_between(stop, resume) * 1e3);
    run.clients = Some(answers.outcome(MigrationTimeline {
        started: moved.started,
        stop,
        resume,
        ended: moved.ended,
    }));
    let verdict = testbed.domain.sweep(testbed.destination, LONG)?;
    if !verdict.ok {
        return Err(BenchError::BadPages(verdict.bad));
    }
    testbed.end()
}
