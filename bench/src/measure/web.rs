//! Measures a guest that serves files to 128 clients while it is moved.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_lab::{ConsoleLine, GuestNetwork, GuestReport};

use super::threads::join;
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::{CpuMeter, Demand, INTERVAL, Responses, run_clients, seconds_between};
use crate::mover::migrate;
use crate::plan::{Case, Workload};
use crate::record::{Run, WebOutcome};
use crate::testbed::Testbed;

/// How long the clients are served before the migration, and after it.
const BEFORE: Duration = Duration::from_secs(6);
const AFTER: Duration = Duration::from_secs(6);
/// How long clients that request files without a pause are served before and after.
const BEFORE_WITHOUT_PAUSE: Duration = Duration::from_secs(3);
/// The length of an interval of the plot.
const REPORT: Duration = Duration::from_millis(100);
/// The port of Apache (`guest/initramfs/web/httpd.conf`), and of the nano guest's server.
const PORT: u16 = 80;

/// Moves the guest while clients request files from it.
pub(super) fn measure(
    case: &Case,
    testbed: &Testbed,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let Some(network) = &testbed.guest_network else {
        unreachable!("the web workload has a guest network");
    };
    let server = SocketAddr::from((guest_address(), PORT));
    let stop = AtomicBool::new(false);
    let (demand, before_move) = match case.workload {
        Workload::NanoWeb | Workload::NanoWebRequests => {
            (Demand::WithoutPause, BEFORE_WITHOUT_PAUSE)
        }
        _ => (Demand::AtIntervals, BEFORE),
    };
    let pids = testbed.pids();
    let before = Instant::now();
    let (moved, seen) = std::thread::scope(|scope| {
        let clients = scope.spawn(|| network.client().run(|| run_clients(server, demand, &stop)));
        // The first client requests its second file after one interval.
        std::thread::sleep(INTERVAL + before_move);
        let bytes = testbed.network.bytes();
        let meter = CpuMeter::start(&pids);
        let moved = migrate(testbed, case, program, args);
        run.others_cores = meter.others_cores(&pids);
        run.cpu_seconds = meter.own_seconds(&pids);
        if let (Ok(before), Ok(after)) = (bytes, testbed.network.bytes()) {
            run.bytes = Some(after.saturating_sub(before));
        }
        if moved.is_ok() {
            std::thread::sleep(AFTER);
        }
        stop.store(true, Ordering::Relaxed);
        (moved, join(clients))
    });
    let moved = moved?;
    let seen = seen?.map_err(|source| BenchError::Clients { server, source })?;
    run.take(&moved);
    let (left, resumed) = testbed.switch()?;
    run.downtime_ms = Some(resumed.happened.saturating_sub(left.happened).as_secs_f64() * 1e3);
    let warm = before + INTERVAL;
    let mut web = outcome(
        &seen,
        warm,
        moved.started,
        (left.at, resumed.at),
        moved.ended,
    );
    // Of both machines.
    let lines = testbed.destination.console().lines();
    web.ran = shares_that_tasks_ran(&lines, moved.started);
    run.web = Some(web);
    if let Some(first) = seen.errors.first() {
        return Err(BenchError::BadAnswers {
            count: seen.errors.len(),
            first: first.clone(),
        });
    }
    Ok(())
}

fn guest_address() -> Ipv4Addr {
    GuestNetwork::GUEST.parse().unwrap_or(Ipv4Addr::LOCALHOST)
}

fn outcome(
    seen: &Responses,
    warm: Instant,
    command: Instant,
    (stop, resume): (Instant, Instant),
    end: Instant,
) -> WebOutcome {
    let at = |moment| seconds_between(command, moment);
    // Pre-copy ends with the switchover, approximately.
    let last = end.max(resume);
    WebOutcome {
        before: seen.span(warm, command),
        until_switch: seen.span(command, resume),
        until_end: seen.span(resume, last),
        after: seen.span(last, last + AFTER),
        stop_s: at(stop),
        resume_s: at(resume),
        end_s: at(end),
        answers: seen
            .answers
            .iter()
            .map(|(sent, took)| (at(*sent), took.as_secs_f64() * 1e3))
            .collect(),
        unanswered: seen.unanswered,
        per_second_before: seen.per_second(warm, command),
        per_second_first: seen.per_second(resume, resume + Duration::from_secs(1)),
        per_second: rates(seen, command),
        ran: Vec::new(),
    }
}

/// The share of each of the nano guest's intervals that tasks ran, of all processors.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn shares_that_tasks_ran(lines: &[ConsoleLine], command: Instant) -> Vec<(f64, f64)> {
    let share = |line: &ConsoleLine| match &line.report {
        GuestReport::Processors(times) => {
            let whole = times.span_ms as f64 * times.ran.len() as f64;
            let ran: f64 = times.ran.iter().sum();
            Some((seconds_between(command, line.at), ran / whole.max(1e-9)))
        }
        _ => None,
    };
    lines.iter().filter_map(share).collect()
}

/// Answers a second, in each interval from the first answer to the last: at its middle.
fn rates(seen: &Responses, command: Instant) -> Vec<(f64, f64)> {
    let done = || seen.answers.iter().map(|(sent, took)| *sent + *took);
    let (Some(first), Some(last)) = (done().min(), done().max()) else {
        return Vec::new();
    };
    let mut rates = Vec::new();
    let mut from = first;
    while from <= last {
        let middle = seconds_between(command, from + REPORT / 2);
        rates.push((middle, seen.per_second(from, from + REPORT)));
        from += REPORT;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Span;

    #[test]
    fn the_guests_address_is_valid() {
        assert_eq!(guest_address().to_string(), GuestNetwork::GUEST);
    }

    #[test]
    fn requests_count_in_the_phase_they_were_sent_in() {
        let zero = Instant::now();
        let at = |s| zero + Duration::from_secs(s);
        let seen = Responses {
            answers: [(1, 5), (4, 6), (6, 900), (9, 7), (11, 5)]
                .map(|(s, ms)| (at(s), Duration::from_millis(ms)))
                .into(),
            unanswered: 1,
            errors: Vec::new(),
        };
        let web = outcome(&seen, at(2), at(5), (at(7), at(8)), at(10));
        let most = |span: Option<Span>| span.map(|span| (span.answers, span.max_ms));
        assert_eq!(
            most(web.before),
            Some((1, 6.0)),
            "the warm-up is not counted"
        );
        assert_eq!(most(web.until_switch), Some((1, 900.0)));
        assert_eq!(most(web.until_end), Some((1, 7.0)));
        assert_eq!(most(web.after), Some((1, 5.0)));
        assert_eq!((web.stop_s, web.resume_s, web.end_s), (2.0, 3.0, 5.0));
        assert_eq!(web.answers[0], (-4.0, 5.0));
        // The answer of 4.006 s, and none from 8 to 9 s.
        assert!((web.per_second_before - 1.0 / 3.0).abs() < 1e-9);
        assert!(web.per_second_first.abs() < 1e-9);
        // From 1.005 to 11.005 s.
        let seen = web
            .per_second
            .iter()
            .filter(|(_, rate)| *rate > 0.0)
            .count();
        assert_eq!((seen, web.per_second.len()), (5, 101));
    }
}
