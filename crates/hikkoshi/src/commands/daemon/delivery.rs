//! Passes connections on to the receivers of their guests.
//!
//! A receiver that is busy, or stopped, accepts no connection for a moment: the connection waits.
//! Where a connection was passed on, a source is likely to be: the front prefers connections from
//! there when there are too many ([`Front::set_source_addresses`]).

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::tls::Route;
use hikkoshi_link::{Front, RoutedConnection, hand_over};

use super::receivers::Receivers;

/// How long a connection waits for its receiver. The source waits as long for the handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most connections that wait.
const MAX_WAITING: usize = 64;

/// The addresses that are known for each receiver: the newest.
const MAX_ADDRESSES: usize = 2;

/// Passes connections on.
pub(super) struct Delivery<'a> {
    front: &'a Front,
    receivers: &'a Receivers,
    /// Oldest first, each with the time until which it waits.
    waiting: VecDeque<(RoutedConnection, Instant)>,
    /// Where connections for each receiver have come from, oldest first.
    sources: HashMap<Route, VecDeque<IpAddr>>,
}

impl<'a> Delivery<'a> {
    pub(super) fn new(front: &'a Front, receivers: &'a Receivers) -> Self {
        Self {
            front,
            receivers,
            waiting: VecDeque::new(),
            sources: HashMap::new(),
        }
    }

    /// Passes a connection on, now or in a later [`retry`](Self::retry).
    pub(super) fn pass_on(&mut self, connection: RoutedConnection) {
        self.attempt(connection, Instant::now() + TIMEOUT);
    }

    /// Passes on what waits.
    pub(super) fn retry(&mut self) {
        for (connection, until) in std::mem::take(&mut self.waiting) {
            self.attempt(connection, until);
        }
    }

    fn attempt(&mut self, connection: RoutedConnection, until: Instant) {
        let receiver = self.receivers.by_route(connection.route);
        let error = match hand_over(&connection.stream, &receiver) {
            Ok(()) => return self.note(&connection),
            Err(error) => error,
        };
        let is_full = error.kind() == io::ErrorKind::WouldBlock;
        if is_full && Instant::now() < until && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((connection, until));
            return;
        }
        let why = if is_full {
            "its receiver accepts no connections: it is stopped, or too many wait there"
        } else if fs::symlink_metadata(&receiver).is_ok() {
            "its guest's receiver does not run now; a migration that is not finished is resumed \
             within a minute, or an earlier message of the daemon says what it waits for"
        } else {
            "no guest is awaited with this invitation: it has expired or was used, or another \
             'hikkoshi receive' made it"
        };
        let why = format!("{why} ({})", Report::new(&error));
        self.front.log_rejection(connection.peer, &why);
    }

    fn note(&mut self, connection: &RoutedConnection) {
        let address = connection.peer.ip();
        let known = self.sources.entry(connection.route).or_default();
        if known.back() == Some(&address) {
            return;
        }
        known.retain(|other| *other != address);
        known.push_back(address);
        if known.len() > MAX_ADDRESSES {
            known.pop_front();
        }
        self.prefer_sources();
    }

    /// Forgets the sources of receivers that are not there any more.
    pub(super) fn forget_ended(&mut self) {
        let before = self.sources.len();
        let receivers = self.receivers;
        self.sources
            .retain(|route, _| fs::symlink_metadata(receivers.by_route(*route)).is_ok());
        if self.sources.len() != before {
            self.prefer_sources();
        }
    }

    fn prefer_sources(&self) {
        let all = self.sources.values().flatten().copied();
        self.front.set_source_addresses(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_link::tls::TlsServer;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;

    /// A receiver that has not accepted anything. One connection fits into its queue.
    fn receiver(receivers: &Receivers, name: &str) -> (UnixListener, Route) {
        let server = TlsServer::inviting().unwrap();
        let route = server.invitation("h:1".parse().unwrap()).unwrap().route();
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new(receivers.socket(name)).unwrap();
        bind(&socket, &address).unwrap();
        listen(&socket, 0).unwrap();
        receivers.add_route(route, name).unwrap();
        (socket.into(), route)
    }

    fn connection(route: Route, from: [u8; 4]) -> RoutedConnection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        RoutedConnection {
            stream,
            peer: SocketAddr::from((from, 7)),
            route,
        }
    }

    #[test]
    fn a_connection_waits_for_a_receiver_that_is_busy() {
        let run = tempfile::tempdir().unwrap();
        let receivers = Receivers::open(run.path()).unwrap();
        let front = Front::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let mut delivery = Delivery::new(&front, &receivers);
        let (listener, route) = receiver(&receivers, "web");
        for _ in 0..2 {
            delivery.pass_on(connection(route, [10, 0, 0, 1]));
        }
        assert_eq!(delivery.waiting.len(), 1, "the queue has one place");
        delivery.retry();
        assert_eq!(delivery.waiting.len(), 1);
        listener.accept().unwrap();
        delivery.retry();
        assert_eq!(delivery.waiting.len(), 0);
        listener.accept().unwrap();
        // Not for ever, and not without a receiver.
        delivery.pass_on(connection(route, [10, 0, 0, 1]));
        delivery.attempt(connection(route, [10, 0, 0, 1]), Instant::now());
        drop(listener);
        delivery.pass_on(connection(route, [10, 0, 0, 1]));
        assert_eq!(delivery.waiting.len(), 0);
    }

    #[test]
    fn the_newest_addresses_of_each_source_are_known() {
        let run = tempfile::tempdir().unwrap();
        let receivers = Receivers::open(run.path()).unwrap();
        let front = Front::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let mut delivery = Delivery::new(&front, &receivers);
        let known = |delivery: &Delivery<'_>| {
            let all = delivery.sources.values().flatten();
            let mut all: Vec<String> = all.map(ToString::to_string).collect();
            all.sort_unstable();
            all
        };
        let (listener, web) = receiver(&receivers, "web");
        let (other_listener, db) = receiver(&receivers, "db");
        for last in [1, 2, 1, 3] {
            delivery.pass_on(connection(web, [10, 0, 0, last]));
            listener.accept().unwrap();
        }
        delivery.pass_on(connection(db, [10, 0, 0, 9]));
        other_listener.accept().unwrap();
        assert_eq!(known(&delivery), ["10.0.0.1", "10.0.0.3", "10.0.0.9"]);
        receivers.remove("web");
        delivery.forget_ended();
        assert_eq!(known(&delivery), ["10.0.0.9"]);
    }
}
