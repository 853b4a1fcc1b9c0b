//! More connections of unknown peers than the listener handles at once, while a source connects and
//! migrates.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::source::SourceFailure;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationOptions, MigrateError, Mode, SourceOptions, migrate, receive,
};
use hikkoshi_link::tls::{SecureError, TlsClient, TlsServer};
use hikkoshi_link::{Address, HandshakeError, Listener, Remote, hello};
use hikkoshi_wire::{CHALLENGE_LEN, HELLO_LEN, MigrationId, Role};
use socket2::{Domain, Socket, Type};

use crate::guests::{TestDestination, TestSource};
use crate::heap::allocated_bytes;
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::{migrate_control, open, receive_control, watchdog};
use crate::tls::invited;

use super::machine;
use super::tls::greeting;

/// The most memory that all connections of unknown peers together may use.
const MAX_BYTES: usize = 16 << 20;

/// The most threads for unknown peers: those that perform handshakes, and those that have ended but
/// have not exited yet (on a busy host some dozens: 157 threads were seen).
const MAX_THREADS: usize = 256;

/// An address other than the source's.
const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Clients that know the address and have no part in a migration.
struct UnknownPeers {
    to: SocketAddr,
    /// What each sends, a piece at a time, before it waits for an answer.
    greeting: Vec<u8>,
    enough: AtomicBool,
    /// Connections made so far.
    connections: AtomicUsize,
    /// The largest number of threads for them, and of bytes allocated for them.
    listening: AtomicUsize,
    allocated: AtomicUsize,
}

impl UnknownPeers {
    fn new(to: SocketAddr, greeting: Vec<u8>) -> Self {
        Self {
            to,
            greeting,
            enough: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            listening: AtomicUsize::new(0),
            allocated: AtomicUsize::new(0),
        }
    }

    /// `None` once the test is over: nothing listens any more.
    fn connect(&self) -> Option<TcpStream> {
        let peer_timeout = Duration::from_millis(100);
        while !self.enough.load(Ordering::Relaxed) {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket
                .bind(&SocketAddr::new(UNKNOWN_PEER, 0).into())
                .unwrap();
            if socket
                .connect_timeout(&self.to.into(), peer_timeout)
                .is_ok()
            {
                socket.set_nonblocking(true).unwrap();
                self.connections.fetch_add(1, Ordering::Relaxed);
                return Some(socket.into());
            }
        }
        None
    }

    /// Keeps 250 connections open: each sends a piece of its greeting in turn, and one that is
    /// closed connects again.
    fn keep_connecting(&self) {
        let greeting: Vec<_> = self.greeting.chunks(1 + self.greeting.len() / 40).collect();
        let mut open_connections: Vec<(TcpStream, usize)> = Vec::new();
        while !self.enough.load(Ordering::Relaxed) {
            if open_connections.len() < 250 {
                open_connections.extend(self.connect().map(|stream| (stream, 0)));
                continue;
            }
            for (stream, sent) in &mut open_connections {
                let result = match greeting.get(*sent) {
                    Some(word) => {
                        *sent += 1;
                        stream.write(word)
                    }
                    None => stream.read(&mut [0; 4096]),
                };
                let waits = match result {
                    Ok(result) => result > 0,
                    Err(error) => error.kind() == io::ErrorKind::WouldBlock,
                };
                if *sent == greeting.len()
                    && !waits
                    && let Some(again) = self.connect()
                {
                    (*stream, *sent) = (again, 0);
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Measures their cost.
    fn watch(&self) {
        let before = allocated_bytes();
        while !self.enough.load(Ordering::Relaxed) {
            self.listening
                .fetch_max(threads("dst-hello"), Ordering::Relaxed);
            self.allocated
                .fetch_max(allocated_bytes().saturating_sub(before), Ordering::Relaxed);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The number of this process's threads with that name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim_end() == name)
        .count()
}

/// A thousand connections that never finish their greeting, from before a source connects until
/// after it is done: the source is served, and the connections use little memory.
#[test]
fn a_source_is_served_among_a_thousand_connections() {
    // All but the last byte.
    let mut greeting = hello(Role::Control, MigrationId::from_bytes([9; 16]))
        .encode()
        .to_vec();
    greeting.pop();
    check_source_is_served(greeting, None);
}

/// A source is served among unknown peers that start the TLS handshake, let this side compute its
/// part, and stop.
#[test]
fn a_source_is_served_among_a_thousand_tls_handshakes() {
    let (client, server) = invited();
    check_source_is_served(greeting(&client), Some((client, server)));
}

/// Unknown peers, each from an address of its own, connect after a source that has sent nothing
/// yet. Returns whether the source is admitted, at the listener of a migration that began from its
/// address, or of none.
fn admitted_among_addresses(begun: bool) -> bool {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let Address::Tcp(to) = listener.address() else {
        panic!("TCP")
    };
    let to: SocketAddr = to.parse().unwrap();
    let greeting = hello(Role::Control, MigrationId::from_bytes([9; 16]));
    let (sender, incoming) = sync_channel(4);
    let stop = CancelFlag::new();
    let served = thread::scope(|scope| {
        scope.spawn(|| listener.serve(&sender, &stop));
        let tested = catch_unwind(AssertUnwindSafe(|| {
            if begun {
                open(&listener.address().clone().into(), &greeting).unwrap();
                listener.accept_only_links_of(&incoming.recv().unwrap());
            }
            let mut source = TcpStream::connect(to).unwrap();
            let mut unknown: Vec<TcpStream> = (0..100)
                .map(|number| {
                    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                    let from = Ipv4Addr::new(127, 0, 1, number);
                    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
                    socket.connect(&to.into()).unwrap();
                    socket.into()
                })
                .collect();
            // All have connected once this many of them were closed.
            for peer in &mut unknown[..36] {
                assert_eq!(peer.read(&mut [0]).unwrap(), 0);
            }
            let mut answer = [0; HELLO_LEN + CHALLENGE_LEN];
            source
                .write_all(&greeting.encode())
                .and_then(|()| source.read_exact(&mut answer))
                .and_then(|()| source.write_all(&answer[HELLO_LEN..]))
                .is_ok_and(|()| incoming.recv().is_ok())
        }));
        stop.cancel();
        tested
    });
    served.unwrap()
}

#[test]
fn the_source_under_way_has_priority_over_any_number_of_addresses() {
    let _watchdog = watchdog();
    assert!(admitted_among_addresses(true));
    // Before a migration, nothing distinguishes it from them.
    assert!(!admitted_among_addresses(false));
}

/// How many attempts may end because the greeting timed out at either side, or because the kernel's
/// queue was full, before the source counts as kept out.
const MAX_ATTEMPTS: usize = 6;

/// Whether the source timed out before it was admitted, which can happen on a busy host: the
/// operator then tries again. A source that was rejected did not time out.
fn timed_out(moved: &Result<Account, MigrateError>) -> bool {
    let Err(SourceFailure::Connect { cause, .. }) = moved.as_ref().map_err(|e| &e.cause) else {
        return false;
    };
    match cause {
        HandshakeError::Connect(error) => error.kind() == io::ErrorKind::TimedOut,
        HandshakeError::TimedOut | HandshakeError::Secure(SecureError::TimedOut) => true,
        _ => false,
    }
}

fn check_source_is_served(greeting: Vec<u8>, tls: Option<(TlsClient, TlsServer)>) {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL), (7 * MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    machine.work(100);
    let mut listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let (client, server) = tls.unzip();
    let remote = Remote {
        loopback_only: false,
        address: listener.address().clone(),
        tls: client,
    };
    if let Some(server) = server {
        listener = listener.with_tls(server);
    }
    let Address::Tcp(to) = listener.address() else {
        panic!("TCP")
    };
    let unknown_peers = UnknownPeers::new(to.parse().unwrap(), greeting);
    // Runs both sides, once the unknown peers are connected.
    let attempt = || {
        let mut guest = TestDestination::new(&machine, 1000);
        let mut source = TestSource::new(&machine, true, 1000);
        let control = receive_control(&Arc::default());
        thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let options = DestinationOptions::default();
                receive(&mut guest, &listener, &options, &control)
            });
            while unknown_peers.connections.load(Ordering::Relaxed) < 1000 {
                thread::sleep(Duration::from_millis(1));
            }
            let options = SourceOptions {
                mode: Mode::Hybrid,
                ..SourceOptions::default()
            };
            let control = migrate_control(&Arc::default());
            let moved = migrate(&mut source, &remote, &options, &control);
            if moved.is_err() {
                control.cancel.cancel();
            }
            (moved, receiving.join())
        })
    };
    let (moved, ended) = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| unknown_peers.keep_connecting());
        }
        scope.spawn(|| unknown_peers.watch());
        let mut attempted = attempt();
        for _ in 1..MAX_ATTEMPTS {
            if !timed_out(&attempted.0) {
                break;
            }
            attempted = attempt();
        }
        unknown_peers.enough.store(true, Ordering::Relaxed);
        attempted
    });
    if let Err(error) = moved {
        panic!("the source was not served: {}", Report::new(&error));
    }
    ended.unwrap().unwrap();
    assert_eq!(machine.runs(), Some(Side::Destination));
    machine.work(100);
    machine.check(Side::Destination);
    let listening = unknown_peers.listening.load(Ordering::Relaxed);
    assert!(
        listening <= MAX_THREADS,
        "{listening} threads for unknown peers"
    );
    let allocated = unknown_peers.allocated.load(Ordering::Relaxed);
    assert!(
        allocated < MAX_BYTES,
        "{allocated} bytes allocated meanwhile"
    );
}
