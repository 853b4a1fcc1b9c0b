//! Frames that arrive for the guest during the switchover: no datagram of a client is lost.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{
    DatagramClient, Datagrams, GuestNetwork, Pace, Report, Serve, VmConfig, Workload,
};
use hikkoshi_tests::{Guest, JsonReport, LONG, MigrationPlan, TestEnv, Transport, log};
use std::net::SocketAddr;
use std::time::Duration;

/// The time between two datagrams. In the shortest downtime there are several. A tap device has room
/// for the datagrams of five seconds, because a guest on a busy host may stop reading for seconds.
const INTERVAL: Duration = Duration::from_millis(5);

/// The guest's port.
const PORT: u16 = 7000;

/// What came of a guest's move.
struct Moved {
    /// Of a client that sends at fixed times, answered or not.
    fixed: Datagrams,
    /// Of one that sends each datagram when the one before has been answered.
    in_turn: Datagrams,
    /// What the guest has received.
    guest: Serve,
    report: JsonReport,
}

/// Moves a guest that two clients send datagrams to.
fn moved(mode: &'static str, arguments: &[&str]) -> Moved {
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let workload = Workload::verify(32)
        .rate(1000)
        .with_server(PORT)
        .option("every_ms", 200);
    let config = VmConfig::new()
        .workload(workload)
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let server: SocketAddr = format!("{}:{PORT}", GuestNetwork::GUEST).parse().unwrap();
    let start = |number, pace| DatagramClient::start(network.client(), server, number, pace);
    let in_turn = start(1, Pace::OneAfterAnother(INTERVAL)).unwrap();
    // The guest's address is known before datagrams come without waiting.
    assert!(in_turn.wait_answers(20, LONG), "the guest does not answer");
    let fixed = start(2, Pace::FixedTimes(INTERVAL)).unwrap();
    assert!(fixed.wait_answers(50, LONG), "the guest does not answer");
    let address = format!("{}:7100", GuestNetwork::DESTINATION);
    let plan = MigrationPlan::new(mode)
        .transport(Transport::Address(address))
        .migrate_args(arguments)
        .between_namespaces(network.source(), network.destination());
    let report = guest.migrate(&plan);
    assert!(fixed.wait_answers(50, LONG), "the guest does not answer");
    let answers = in_turn.answers();
    let (fixed, in_turn) = (fixed.finish().unwrap(), in_turn.finish().unwrap());
    let moved = Moved {
        guest: received(&guest, fixed.sent + in_turn.sent),
        fixed,
        in_turn,
        report,
    };
    log(format!(
        "{mode} {arguments:?}: {:?}, {:?} ({answers} answers), the guest {:?}, {:?}",
        moved.fixed, moved.in_turn, moved.guest, moved.report.frames
    ));
    moved
}

/// What the guest has received, after all that was sent.
fn received(guest: &Guest<'_>, sent: u32) -> Serve {
    let mut lines = 0;
    let first = guest.vm().console().len();
    guest
        .vm()
        .wait_report("what the guest has received", first, LONG, |report| {
            let Report::Serve(serve) = report else {
                return None;
            };
            // The first line may be older than the last datagram.
            lines += 1;
            (lines > 1 || serve.datagrams == u64::from(sent)).then(|| serve.clone())
        })
        .unwrap()
}

/// No datagram is lost, on the way there or back, and hardly one comes twice.
fn nothing_is_lost(mode: &'static str) {
    let moved = moved(mode, &[]);
    let Moved {
        fixed,
        in_turn,
        guest,
        report,
    } = &moved;
    assert_eq!(guest.missing, 0, "{guest:?}, {report:?}");
    assert!(fixed.lost.is_empty(), "{fixed:?}, {guest:?}, {report:?}");
    assert!(
        in_turn.lost.is_empty(),
        "{in_turn:?}, {guest:?}, {report:?}"
    );
    let repeated = fixed.repeated.len() + in_turn.repeated.len();
    assert!(repeated <= 2, "{fixed:?}, {in_turn:?}, {guest:?}");
    let frames = report.frames.unwrap();
    assert!(frames.kept > 0, "{frames:?}");
    assert_eq!(frames.kept, frames.delivered, "{frames:?}");
    assert_eq!(frames.dropped, 0, "{frames:?}");
}

#[test]
fn no_datagram_is_lost_in_precopy() {
    nothing_is_lost("precopy");
}

#[test]
fn no_datagram_is_lost_in_hybrid() {
    nothing_is_lost("hybrid");
}

#[test]
fn no_datagram_is_lost_in_postcopy() {
    nothing_is_lost("postcopy");
}

#[test]
fn without_kept_frames_datagrams_are_lost() {
    let moved = moved("hybrid", &["--no-keep-frames"]);
    assert_eq!(moved.report.frames, None);
    assert!(!moved.fixed.lost.is_empty(), "{:?}", moved.fixed);
}
