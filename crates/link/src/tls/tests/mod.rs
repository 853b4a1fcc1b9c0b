//! TLS connections between two ends in one process: handshake, records, and which peers are
//! accepted.

mod certificates;
mod invitations;
mod own_certificates;
mod records;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::CancelFlag;

use super::*;
use crate::Address;

type Side = Result<(Opener, Sealer), SecureError>;

fn limits(stop: &CancelFlag) -> TimeLimits<'_> {
    TimeLimits {
        deadline: Instant::now() + Duration::from_secs(20),
        stop,
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    for socket in [&near, &far] {
        let tick = Some(Duration::from_millis(20));
        socket.set_read_timeout(tick).unwrap();
    }
    (near, far)
}

/// Runs both ends' handshakes until each knows whether it is accepted. Also returns the source's
/// key.
fn handshake(client: &TlsClient, server: &TlsServer) -> (Side, Side, Option<Fingerprint>) {
    let (mut near, mut far) = pair();
    let stop = CancelFlag::new();
    let (connected, accepted) = thread::scope(|scope| {
        let (stop, far) = (&stop, &mut far);
        let accepting = scope.spawn(move || {
            let accepted = accept(server, far, limits(stop));
            if accepted.is_err() {
                far.shutdown(Shutdown::Both).unwrap();
            }
            accepted
        });
        let connected = connect(client, &mut near, limits(stop));
        if connected.is_err() {
            near.shutdown(Shutdown::Both).unwrap();
        }
        (connected, accepting.join().unwrap())
    });
    let connected = connected.and_then(|(mut opener, sealer)| match &accepted {
        Ok(_) => Ok((opener, sealer)),
        // With certificates, the first read returns the refusal.
        Err(_) => {
            receive(&mut opener, &mut [0], &mut near, limits(&stop)).map(|()| (opener, sealer))
        }
    });
    match accepted {
        Ok((opener, sealer, source)) => (connected, Ok((opener, sealer)), source),
        Err(error) => (connected, Err(error), None),
    }
}

fn refused(client: &TlsClient, server: &TlsServer) -> (SecureError, SecureError) {
    let (near, far, _) = handshake(client, server);
    (near.unwrap_err(), far.unwrap_err())
}

fn invitation(server: &TlsServer) -> Invitation {
    let address: Address = "127.0.0.1:7000".parse().unwrap();
    let shown = server.invitation(address).unwrap().to_string();
    shown.parse().unwrap()
}

#[test]
fn silent_and_non_tls_peers_are_refused() {
    let server = TlsServer::inviting().unwrap();
    let (_near, mut far) = pair();
    let stop = CancelFlag::cancelled();
    let error = accept(&server, &mut far, limits(&stop)).unwrap_err();
    assert!(matches!(error, SecureError::TimedOut), "{error}");
    let (mut near, mut far) = pair();
    near.write_all(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n")
        .unwrap();
    let stop = CancelFlag::new();
    let error = accept(&server, &mut far, limits(&stop)).unwrap_err();
    assert!(matches!(error, SecureError::NotTls), "{error}");
    // The peer receives an alert.
    let mut alert = [0; 2];
    near.read_exact(&mut alert).unwrap();
    assert_eq!(alert, [21, 3]);
    // A peer that sends data without end.
    let (mut near, mut far) = pair();
    let flood = thread::spawn(move || while near.write_all(&[22, 3, 1, 255, 255]).is_ok() {});
    accept(&server, &mut far, limits(&stop)).unwrap_err();
    drop(far);
    flood.join().unwrap();
}

fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    let (head, body) = plain.split_at(plain.len() / 3);
    let mut sealed = Vec::new();
    sealer.seal(head, body, &mut sealed).unwrap();
    sealed
}

/// Opens all of `sealed`, which arrives in pieces of `piece` bytes.
fn open(opener: &mut Opener, sealed: &[u8], piece: usize) -> io::Result<Vec<u8>> {
    let mut pieces = sealed.chunks(piece.max(1));
    let mut plain = Vec::new();
    let mut buffer = [0; 5000];
    loop {
        let read = opener.read(&mut buffer, |raw| {
            let piece = pieces.next().unwrap_or_default();
            raw[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        })?;
        if read == 0 {
            return Ok(plain);
        }
        plain.extend_from_slice(&buffer[..read]);
    }
}
