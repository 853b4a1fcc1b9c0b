//! Measures what clients notice when a guest is moved: one sends a request after the other over
//! TCP, one sends numbered datagrams at fixed times.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hikkoshi_lab::{DatagramClient, Datagrams, GuestNetwork, Pace};

use super::threads::join;
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::{CpuMeter, Gaps, MigrationTimeline, Requests, run_requests};
use crate::mover::{MoveOutcome, migrate};
use crate::plan::{CLIENTS_PORT, Case};
use crate::record::{ClientsOutcome, Cost, Run};
use crate::testbed::{LONG, Network, Testbed};

/// How long the clients are served before the migration, and after it.
const BEFORE: Duration = Duration::from_millis(1500);
const AFTER: Duration = Duration::from_secs(2);

/// The time between two requests, and between two datagrams.
const INTERVAL: Duration = Duration::from_millis(1);

/// Moves the guest while it serves the clients.
pub(super) fn measure(
    case: &Case,
    testbed: &Testbed,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let Some(network) = &testbed.guest_network else {
        unreachable!("this workload has a guest network");
    };
    let pids = || testbed.pids().to_vec();
    let served = serve(network, &testbed.network, pids, || {
        migrate(testbed, case, program, args)
    })?;
    let (moved, answers) = (&served.moved, &served.answers);
    run.take_cost(&served.cost);
    run.take(moved);
    let (left, resumed) = testbed.switch()?;
    run.downtime_ms = Some(resumed.happened.saturating_sub(left.happened).as_secs_f64() * 1e3);
    run.clients = Some(answers.outcome(MigrationTimeline {
        started: moved.started,
        stop: left.instant(),
        resume: resumed.instant(),
        ended: moved.ended,
    }));
    let verdict = testbed.destination.sweep(LONG)?;
    match verdict.ok {
        true => Ok(()),
        false => Err(BenchError::BadPages(verdict.bad)),
    }
}

/// A move while the clients were served.
pub(crate) struct Served {
    pub(crate) moved: MoveOutcome,
    pub(crate) answers: Answers,
    pub(crate) cost: Cost,
}

/// What the guest answered to both clients.
pub(crate) struct Answers {
    requests: Requests,
    datagrams: Datagrams,
}

impl Answers {
    /// The longest gaps between them.
    pub(crate) fn outcome(&self, moments: MigrationTimeline) -> ClientsOutcome {
        let Self {
            requests,
            datagrams,
        } = self;
        ClientsOutcome {
            requests: requests.count(),
            request_gaps_ms: Gaps::find(&requests.answered, moments),
            datagrams: datagrams.sent,
            lost: datagrams.lost.len(),
            repeated: datagrams.repeated.len(),
            datagram_gaps_ms: Gaps::find(&datagrams.answered, moments),
        }
    }
}

/// Runs both clients on the guest's network while `migrate` moves the guest over `line`. `pids` are
/// the processes of the testbed.
pub(crate) fn serve(
    network: &GuestNetwork,
    line: &Network,
    pids: impl Fn() -> Vec<u32>,
    migrate: impl FnOnce() -> Result<MoveOutcome, BenchError>,
) -> Result<Served, BenchError> {
    let guest: Ipv4Addr = GuestNetwork::GUEST.parse().unwrap_or(Ipv4Addr::LOCALHOST);
    let server = SocketAddr::from((guest, CLIENTS_PORT));
    let failed = |source| BenchError::Clients { server, source };
    let stream = network.client().run(|| TcpStream::connect(server))?;
    let stream = stream.map_err(failed)?;
    let stop = AtomicBool::new(false);
    let mut cost = Cost::default();
    let (moved, requests, datagrams) = std::thread::scope(|scope| {
        let requests = scope.spawn(|| run_requests(stream, INTERVAL, &stop));
        let pace = Pace::FixedTimes(INTERVAL);
        let datagrams = DatagramClient::start(network.client(), server, 1, pace);
        std::thread::sleep(BEFORE);
        let bytes = line.bytes();
        let meter = CpuMeter::start(&pids());
        let moved = migrate();
        let pids = pids();
        cost.others_cores = meter.others_cores(&pids);
        cost.cpu_seconds = meter.own_seconds(&pids);
        if let (Ok(before), Ok(after)) = (bytes, line.bytes()) {
            cost.bytes = Some(after.saturating_sub(before));
        }
        if moved.is_ok() {
            std::thread::sleep(AFTER);
        }
        stop.store(true, Ordering::Relaxed);
        let datagrams = datagrams.map(DatagramClient::finish);
        (moved, join(requests), datagrams)
    });
    let moved = moved?;
    let (requests, datagrams) = (requests.map_err(failed)?, datagrams?.map_err(failed)?);
    let answers = Answers {
        requests,
        datagrams,
    };
    Ok(Served {
        moved,
        answers,
        cost,
    })
}
