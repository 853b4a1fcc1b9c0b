//! Peers that do not speak TLS correctly, where it is required.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationOptions, SourceOptions, migrate, receive};
use hikkoshi_handover::Outcome;
use hikkoshi_link::tls::TlsClient;
use hikkoshi_link::{Address, Listener, Remote, hello};
use hikkoshi_wire::{MigrationId, Role};

use crate::guests::{TestDestination, TestSource};
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::{Notices, migrate_control, open, receive_control, watchdog};
use crate::tls::invited;

use super::{machine, moved_next};

/// A record of the largest length that its header can hold: TLS allows a quarter of it.
const OVERSIZED: [u8; 5] = [23, 3, 3, 0xff, 0xff];

/// The first TLS record that a source sends.
pub(super) fn greeting(client: &TlsClient) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = Remote {
        loopback_only: false,
        address: Address::Tcp(listener.local_addr().unwrap().to_string()),
        tls: Some(client.clone()),
    };
    thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut header = [0; 5];
            peer.read_exact(&mut header).unwrap();
            let mut record = header.to_vec();
            record.resize(5 + usize::from(header[3]) * 256 + usize::from(header[4]), 0);
            peer.read_exact(&mut record[5..]).unwrap();
            record
        });
        open(&remote, &greeted(0)).unwrap_err();
        receiving.join().unwrap()
    })
}

fn greeted(id: u8) -> hikkoshi_wire::Hello {
    hello(Role::Control, MigrationId::from_bytes([id; 16]))
}

/// Reads until the other side closes the connection.
fn read_all(mut stream: impl Read) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return all,
        }
    }
}

/// Several violations, then a real source with the same invitation.
#[test]
fn peers_that_violate_tls_at_a_destination() {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let mut source = TestSource::new(&machine, true, 1000);
    let (client, server) = invited();
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let remote = Remote {
        loopback_only: false,
        address: listener.address().clone(),
        tls: Some(client.clone()),
    };
    let listener = listener.with_tls(server);
    let notices = Arc::new(Notices::default());
    let control = receive_control(&notices);
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(remote.address.to_string()).unwrap();
        stream.write_all(bytes).unwrap();
        read_all(stream)
    };
    let full_greeting = greeting(&client);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let options = DestinationOptions::default();
            receive(&mut guest, &listener, &options, &control)
        });
        // In plain text: the answer is an alert that TLS is required, and no greeting.
        let alert = send(&greeted(9).encode());
        assert!(alert.starts_with(&[21, 3]), "{alert:?}");
        let plain = Remote::from(remote.address.clone());
        let error = open(&plain, &greeted(9)).unwrap_err().to_string();
        assert!(error.contains("requires TLS"), "{error}");
        // Only the first half of a handshake, and half of its first message: they time out, and are
        // closed.
        let first_half = scope.spawn(|| send(&full_greeting));
        let half_of_that = scope.spawn(|| send(&full_greeting[..full_greeting.len() / 2]));
        // A record that is too long, before the handshake and during it.
        assert!(send(&OVERSIZED).is_empty());
        let answer = send(&[&full_greeting[..], &OVERSIZED].concat());
        assert!(answer.starts_with(&[22, 3]), "{answer:?}");
        // After the handshake, by an invited client, instead of its offer.
        let invited = open(&remote, &greeted(9)).unwrap();
        (&invited).write_all(&OVERSIZED).unwrap();
        read_all(&invited);
        // Half a record there.
        let invited = open(&remote, &greeted(9)).unwrap();
        (&invited).write_all(&[23, 3, 3, 1, 0, 7]).unwrap();
        read_all(&invited);
        let answer = first_half.join().unwrap();
        assert!(answer.starts_with(&[22, 3]), "{answer:?}");
        assert!(!half_of_that.join().unwrap().starts_with(&[22]));
        moved_next(&mut source, &remote, &migrate_control(&notices)).unwrap();
        receiving.join().unwrap().unwrap();
    });
    machine.check(Side::Destination);
    let notices = notices.all();
    assert!(
        notices.contains("the peer sent a TLS record of an invalid length")
            && notices.contains("the peer does not answer: it hangs, or the connection is broken"),
        "{notices}"
    );
}

/// The listener at the invitation's address violates TLS: the guest stays at the source, which
/// reports the reason.
#[test]
fn a_destination_that_violates_tls() {
    let _watchdog = watchdog();
    let (client, server) = invited();
    let attempt = |address: Address, script: &(dyn Fn() + Sync)| {
        let layout = layout(&[(MIB, SMALL)]);
        let machine = machine(&layout, &layout);
        let mut source = TestSource::new(&machine, true, 10);
        let remote = Remote {
            loopback_only: false,
            address,
            tls: Some(client.clone()),
        };
        let error = thread::scope(|scope| {
            scope.spawn(script);
            let control = migrate_control(&Arc::default());
            migrate(&mut source, &remote, &SourceOptions::default(), &control).unwrap_err()
        });
        assert_eq!(error.outcome, Outcome::AtSource);
        assert_eq!(machine.runs(), Some(Side::Source));
        assert_eq!(source.script.calls(), ["release"]);
        Report::new(&error).to_string()
    };
    let says = |bytes: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        attempt(address, &|| {
            let (mut peer, _) = listener.accept().unwrap();
            let _ = peer.write_all(bytes);
            read_all(peer);
        })
    };
    // A greeting in plain text.
    let text = says(b"hikkoshi");
    assert!(text.contains("the peer does not speak TLS"), "{text}");
    // Nothing, and half a record.
    thread::scope(|scope| {
        let all = [&b""[..], &[22, 3, 3, 1, 0, 2]].map(|bytes| scope.spawn(move || says(bytes)));
        for text in all.map(|one| one.join().unwrap()) {
            assert!(text.contains("did not finish the TLS handshake"), "{text}");
        }
    });
    let text = says(&OVERSIZED);
    assert!(text.contains("the TLS handshake failed"), "{text}");
    // A correct handshake, the source is admitted, and then only invalid data.
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("listen"));
    let listener = Listener::bind(&address).unwrap().with_tls(server);
    let text = attempt(address, &|| {
        let (sender, incoming) = std::sync::mpsc::sync_channel(1);
        let stop = CancelFlag::new();
        thread::scope(|scope| {
            scope.spawn(|| listener.serve(&sender, &stop));
            let control = incoming.recv().unwrap();
            (&control.stream).write_all(&OVERSIZED).unwrap();
            // Until the source closes the connection: after a shutdown its send could fail instead.
            let _ = io::copy(&mut &control.stream, &mut io::sink());
            control.stream.shutdown();
            stop.cancel();
        });
    });
    assert!(text.contains("a TLS record of an invalid length"), "{text}");
}
