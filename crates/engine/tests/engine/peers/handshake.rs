//! Connections that do not complete the handshake, on either side.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{DestinationOptions, SourceOptions, migrate, receive};
use hikkoshi_handover::Outcome;
use hikkoshi_link::{Address, hello};
use hikkoshi_wire::{Frame, MigrationId, Role};

use crate::guests::{TestDestination, TestSource};
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::{Notices, migrate_control, open, receive_control, watchdog};

use super::{listen, machine, moved_next};

/// Connections that never complete the handshake do not keep a source out for long.
#[test]
fn slow_connections_do_not_keep_a_source_out() {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let mut source = TestSource::new(&machine, true, 1000);
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let Address::Unix(path) = listener.address() else {
        panic!("a unix socket")
    };
    let notices = Arc::new(Notices::default());
    let control = receive_control(&notices);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            receive(
                &mut guest,
                &listener,
                &DestinationOptions::default(),
                &control,
            )
        });
        // Connections that send nothing: all are closed at some time. (`connection_flood.rs` has
        // more of them than are handled at once.)
        let silent: Vec<_> = (0..40)
            .map(|_| UnixStream::connect(path).unwrap())
            .collect();
        let silent_closed = scope.spawn(move || (&silent[39]).read(&mut [0]).unwrap());
        // Something else than a greeting.
        let mut other_protocol = UnixStream::connect(path).unwrap();
        let _ = other_protocol.write_all(&[b'G'; 100]);
        let mut end = [0];
        assert!(matches!(other_protocol.read(&mut end), Ok(0) | Err(_)));
        // A correct greeting, then an offer that arrives extremely slowly.
        let slow = loop {
            let id = MigrationId::from_bytes([9; 16]);
            if let Ok(slow) = open(
                &listener.address().clone().into(),
                &hello(Role::Control, id),
            ) {
                break slow;
            }
        };
        let mut slow_writer = &slow;
        for byte in (Frame::Control { len: 1000 }).encode() {
            if slow_writer.write_all(&[byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(500));
        }
        assert!(matches!(slow_writer.read(&mut end), Ok(0) | Err(_)));
        assert_eq!(silent_closed.join().unwrap(), 0, "closed");
        // Then the real source.
        let remote = listener.address().clone().into();
        moved_next(&mut source, &remote, &migrate_control(&notices)).unwrap();
        receiving.join().unwrap().unwrap();
    });
    machine.check(Side::Destination);
    let notices = notices.all();
    assert!(
        notices.contains("refused a guest from ")
            && notices.contains("the peer does not answer: it hangs, or the connection is broken"),
        "{notices}"
    );
}

/// Another program listens at the address.
#[test]
fn another_protocol_instead_of_a_greeting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let address = Address::Unix(path);
    let attempt = |answer: &'static [u8]| {
        let _watchdog = watchdog();
        let layout = layout(&[(MIB, SMALL)]);
        let machine = machine(&layout, &layout);
        let mut source = TestSource::new(&machine, true, 10);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                let _ = peer.write_all(answer);
                let mut all = Vec::new();
                let _ = peer.read_to_end(&mut all);
            });
            let control = migrate_control(&Arc::default());
            let remote = address.clone().into();
            migrate(&mut source, &remote, &SourceOptions::default(), &control).unwrap_err()
        });
        assert_eq!(error.outcome, Outcome::AtSource);
        assert_eq!(machine.runs(), Some(Side::Source));
        assert_eq!(source.script.calls(), ["release"]);
        error
            .to_string()
            .replace(&address.to_string(), "the address")
    };
    assert_eq!(
        attempt(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        "connecting to the destination at the address: negotiating with the peer: its first bytes \
         are not a hikkoshi hello; check the address: another program answers there"
    );
    assert_eq!(
        attempt(b"hikko"),
        "connecting to the destination at the address: the peer sent no greeting within 10 s; check \
         that 'hikkoshi receive' listens at this address"
    );
}
