//! Frames that arrive for the guest during the switchover.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestNetwork, VmConfig, Workload};
use hikkoshi_tests::{Guest, JsonReport, LONG, MigrationPlan, TestEnv, Transport, log};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrV4, SocketType, ipproto};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two requests, answered or not. In the shortest downtime there are several.
const INTERVAL: Duration = Duration::from_millis(1);

/// The identifier of the requests (RFC 792).
const IDENTIFIER: u16 = 0x686b;

/// A client that sends numbered echo requests at fixed times. The guest's kernel answers each that
/// reaches it.
struct Pinger {
    stop: Arc<AtomicBool>,
    /// How often each request was answered.
    answers: Arc<Mutex<BTreeMap<u32, u32>>>,
    sender: JoinHandle<u32>,
    receiver: JoinHandle<()>,
}

impl Pinger {
    fn start(network: &GuestNetwork) -> Self {
        let socket: OwnedFd = network
            .client()
            .run(|| {
                rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))
                    .unwrap()
            })
            .unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
        let socket = Arc::new(socket);
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(Mutex::new(BTreeMap::new()));
        let sender = std::thread::spawn({
            let (socket, stop) = (Arc::clone(&socket), Arc::clone(&stop));
            move || send_requests(&socket, &stop)
        });
        let receiver = std::thread::spawn({
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            move || receive_answers(&socket, &stop, &answers)
        });
        Self {
            stop,
            answers,
            sender,
            receiver,
        }
    }

    /// Waits for this many further answers.
    fn wait_answers(&self, more: usize) {
        let count = || self.answers.lock().unwrap().len();
        let wanted = count() + more;
        let deadline = Instant::now() + LONG;
        while count() < wanted {
            assert!(Instant::now() < deadline, "the guest does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops, and returns the requests without an answer, and those with several, after `first`.
    fn finish(self, first: u32) -> (Vec<u32>, Vec<u32>) {
        self.wait_answers(50);
        self.stop.store(true, Ordering::Release);
        let sent = self.sender.join().unwrap();
        self.receiver.join().unwrap();
        let answers = self.answers.lock().unwrap();
        let times = |n: u32| answers.get(&n).copied().unwrap_or(0);
        // The last ones may not have been answered yet.
        let last = answers.keys().next_back().copied().unwrap_or(0).min(sent);
        let lost = (first..last).filter(|n| times(*n) == 0).collect();
        (lost, (first..last).filter(|n| times(*n) > 1).collect())
    }
}

fn send_requests(socket: &OwnedFd, stop: &AtomicBool) -> u32 {
    let guest: Ipv4Addr = GuestNetwork::GUEST.parse().unwrap();
    let mut next = Instant::now();
    let mut number = 0u32;
    while !stop.load(Ordering::Acquire) {
        let mut request = vec![8, 0, 0, 0];
        request.extend(IDENTIFIER.to_be_bytes());
        request.extend([0; 2]);
        request.extend(number.to_be_bytes());
        let sum = checksum(&request).to_be_bytes();
        request[2..4].copy_from_slice(&sum);
        rustix::net::sendto(
            socket,
            &request,
            SendFlags::empty(),
            &SocketAddrV4::new(guest, 0),
        )
        .unwrap();
        number += 1;
        next += INTERVAL;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    number
}

fn receive_answers(socket: &OwnedFd, stop: &AtomicBool, answers: &Mutex<BTreeMap<u32, u32>>) {
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Acquire) {
        let Ok((len, _)) = rustix::net::recv(socket, &mut packet, RecvFlags::DONTWAIT) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        // Behind the IP header: type 0 is an answer.
        let header = usize::from(packet[0] & 15) * 4;
        let Some([0, _, _, _, id0, id1, _, _, number @ ..]) = packet.get(header..len) else {
            continue;
        };
        if u16::from_be_bytes([*id0, *id1]) == IDENTIFIER
            && let Some(number) = number.first_chunk()
        {
            let number = u32::from_be_bytes(*number);
            *answers.lock().unwrap().entry(number).or_default() += 1;
        }
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}

/// Moves a guest that answers requests; returns those without an answer, those with several, and
/// the result of the migration.
fn moved(mode: &'static str, arguments: &[&str]) -> (Vec<u32>, Vec<u32>, JsonReport) {
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let config = VmConfig::new()
        .workload(Workload::verify(32).rate(1000))
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let client = Pinger::start(&network);
    client.wait_answers(50);
    let first = *client.answers.lock().unwrap().keys().next_back().unwrap();
    let address = format!("{}:7100", GuestNetwork::DESTINATION);
    let plan = MigrationPlan::new(mode)
        .transport(Transport::Address(address))
        .migrate_args(arguments)
        .between_namespaces(network.source(), network.destination());
    let report = guest.migrate(&plan);
    let (lost, repeated) = client.finish(first);
    log(format!(
        "{mode} {arguments:?}: lost {lost:?}, answered more than once {repeated:?}"
    ));
    (lost, repeated, report)
}

fn nothing_is_lost(mode: &'static str) {
    let (lost, _, report) = moved(mode, &[]);
    assert!(lost.is_empty(), "lost: {lost:?}, {report:?}");
    let frames = report.frames.unwrap();
    assert!(frames.kept > 0, "{frames:?}");
    assert_eq!(frames.kept, frames.delivered, "{frames:?}");
    assert_eq!(frames.dropped, 0, "{frames:?}");
}

#[test]
fn no_request_is_lost_in_precopy() {
    nothing_is_lost("precopy");
}

#[test]
fn no_request_is_lost_in_postcopy() {
    nothing_is_lost("postcopy");
}

#[test]
fn without_it_requests_are_lost() {
    let (lost, _, report) = moved("hybrid", &["--no-keep-frames"]);
    assert!(!lost.is_empty(), "{report:?}");
    assert_eq!(report.frames, None);
}
