//! A listener behind a front: connections that a front has accepted, and passes on.

use super::*;
use crate::accept::hand_over;
use crate::tls::{TlsClient, TlsServer};
use hikkoshi_wire::Role;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// The first message of a source with an invitation of `server`.
fn client_hello(server: &TlsServer) -> Vec<u8> {
    let invitation = server.invitation("h:1".parse().unwrap()).unwrap();
    let client = TlsClient::invited(&invitation).unwrap();
    let mut connection =
        rustls::ClientConnection::new(client.config.clone(), client.name.clone()).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// A control link of a migration whose source is at this address.
fn control_from(address: [u8; 4]) -> AcceptedLink {
    AcceptedLink {
        role: Role::Control,
        id: MigrationId::from_bytes([7; 16]),
        stream: Stream::Unix(std::os::unix::net::UnixStream::pair().unwrap().0),
        peer: "the source".to_owned(),
        from: Some(IpAddr::from(address)),
        source: None,
    }
}

struct Stopping<'a>(&'a CancelFlag);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A front's socket, which passes on what `test` connects: from an address, to the listener.
fn behind_a_front(listener: &Listener, test: impl FnOnce(&dyn Fn([u8; 4]) -> TcpStream)) {
    let Address::Unix(path) = listener.address().clone() else {
        panic!("not a unix socket");
    };
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |from: [u8; 4]| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&front.local_addr().unwrap().into()).unwrap();
        let (accepted, _) = front.accept().unwrap();
        // The queue may be full for a moment.
        while let Err(error) = hand_over(&accepted, &path) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
            thread::yield_now();
        }
        TcpStream::from(socket)
    };
    let (sender, _incoming) = sync_channel(8);
    let stop = CancelFlag::new();
    thread::scope(|scope| {
        // Also when the test fails: the scope waits for the thread.
        let _stopping = Stopping(&stop);
        scope.spawn(|| listener.serve(&sender, &stop).unwrap());
        test(&connect);
    });
}

fn listener(folder: &Path, server: &TlsServer) -> Listener {
    let address = Address::Unix(folder.join("receiver.sock"));
    let listener = Listener::bind(&address).unwrap();
    listener.with_tls(server.clone())
}

/// Whether the listener answers the rest of a hello with a handshake.
fn is_served(source: &mut TcpStream, rest: &[u8]) -> bool {
    // It may have been closed.
    let _ = source.write_all(rest);
    let mut first = [0];
    matches!(source.read(&mut first), Ok(1)) && first == [22]
}

/// Whether the listener has closed a connection on which it has sent nothing.
fn is_closed(connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    let peeked = connection.peek(&mut [0]).map_err(|error| error.kind());
    connection.set_nonblocking(false).unwrap();
    peeked != Err(io::ErrorKind::WouldBlock)
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

/// A source whose hello is slow, while more silent connections than there are places come after it,
/// all by the front. What is evicted is closed, and does not keep its thread.
#[test]
fn a_source_behind_a_front_is_served_in_a_flood() {
    let server = TlsServer::inviting().unwrap();
    let hello = client_hello(&server);
    let one_address: fn(u8) -> [u8; 4] = |_| [127, 9, 0, 1];
    let many_addresses: fn(u8) -> [u8; 4] = |number| [127, 9, 1, number];
    for (from, is_known, expected) in [
        (one_address, false, true),
        (one_address, true, true),
        (many_addresses, true, true),
        (many_addresses, false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let listener = listener(folder.path(), &server);
        if is_known {
            listener.accept_only_links_of(&control_from([127, 0, 0, 1]));
        }
        behind_a_front(&listener, |connect| {
            let mut source = connect([127, 0, 0, 1]);
            source.write_all(&hello[..40]).unwrap();
            wait_until("the source's slot", || listener.pending.slots() == 1);
            let flood: Vec<_> = (1..=80).map(|number| connect(from(number))).collect();
            let closed = || {
                let all = flood.iter().chain([&source]);
                all.filter(|connection| is_closed(connection)).count()
            };
            wait_until("those without slots to be closed", || closed() == 17);
            assert_eq!(listener.pending.slots(), 64);
            assert_eq!(is_served(&mut source, &hello[40..]), expected);
        });
    }
}
