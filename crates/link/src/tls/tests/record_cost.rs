//! What a page request costs with records that this crate makes, and with those of rustls
//! (`docs/decisions/0019-make-tls-records-in-the-engine.md`).

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::{ClientConnection, ServerConnection, Stream};

use super::*;

/// The bytes of a page request, and of its answer.
const REQUEST: usize = 32;
const ANSWER: usize = 16 + 4096;

/// Page requests of one turn, and turns of each kind.
const REQUESTS: usize = 5_000;
const TURNS: usize = 12;

/// One end of a connection.
trait End: Send {
    fn send(&mut self, bytes: &[u8]);
    fn receive(&mut self, bytes: &mut [u8]);
}

/// Without protection.
struct Plain(TcpStream);

impl End for Plain {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn receive(&mut self, bytes: &mut [u8]) {
        self.0.read_exact(bytes).unwrap();
    }
}

/// With records of this crate.
struct Own {
    socket: TcpStream,
    opener: Opener,
    sealer: Sealer,
    sealed: Vec<u8>,
}

impl End for Own {
    fn send(&mut self, bytes: &[u8]) {
        self.sealed.clear();
        self.sealer.seal(&[], bytes, &mut self.sealed).unwrap();
        self.socket.write_all(&self.sealed).unwrap();
    }

    fn receive(&mut self, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let socket = &mut self.socket;
            let read = self.opener.read(&mut bytes[done..], |raw| socket.read(raw));
            done += read.unwrap();
        }
    }
}

/// With records of rustls. One thread sends and receives, so that no lock is needed.
struct Rustls<C>(C, TcpStream);

macro_rules! impl_end {
    ($connection:ty) => {
        impl End for Rustls<$connection> {
            fn send(&mut self, bytes: &[u8]) {
                let mut stream = Stream::new(&mut self.0, &mut self.1);
                stream.write_all(bytes).unwrap();
                stream.flush().unwrap();
            }

            fn receive(&mut self, bytes: &mut [u8]) {
                let mut stream = Stream::new(&mut self.0, &mut self.1);
                stream.read_exact(bytes).unwrap();
            }
        }
    };
}

impl_end!(ClientConnection);
impl_end!(ServerConnection);

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for socket in [&near, &far] {
        socket.set_nodelay(true).unwrap();
    }
    (near, far)
}

fn own(client: &TlsClient, server: &TlsServer) -> (Own, Own) {
    let (mut near, mut far) = connected();
    let stop = CancelFlag::new();
    let (connected, accepted) = thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(server, &mut far, limits(&stop)).unwrap());
        let connected = connect(client, &mut near, limits(&stop)).unwrap();
        (connected, accepting.join().unwrap())
    });
    let end = |socket, opener, sealer| Own {
        socket,
        opener,
        sealer,
        sealed: Vec::with_capacity(Sealer::sealed_len(ANSWER)),
    };
    (
        end(near, connected.0, connected.1),
        end(far, accepted.0, accepted.1),
    )
}

/// Microseconds of a request, in the middle.
fn measure(mut destination: impl End, mut source: impl End) -> f64 {
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut request, answer) = ([0; REQUEST], [7; ANSWER]);
            for _ in 0..=REQUESTS {
                source.receive(&mut request);
                source.send(&answer);
            }
        });
        let mut times = Vec::with_capacity(REQUESTS);
        for number in 0..=REQUESTS {
            let begun = Instant::now();
            destination.send(&[1; REQUEST]);
            destination.receive(&mut [0; ANSWER]);
            // The first completes the handshake.
            if number > 0 {
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
        times.sort_by(f64::total_cmp);
        times[REQUESTS / 2]
    })
}

#[test]
#[ignore = "a measurement: cargo test --release --package hikkoshi-link --lib record_cost -- --ignored --nocapture"]
fn records_of_rustls_beside_our_own() {
    let server = TlsServer::inviting().unwrap();
    let client = TlsClient::invited(&invitation(&server)).unwrap();
    let mut turns: [Vec<f64>; 3] = Default::default();
    for _ in 0..TURNS {
        let (near, far) = connected();
        turns[0].push(measure(Plain(near), Plain(far)));
        let (near, far) = own(&client, &TlsServer::clone(&server));
        turns[1].push(measure(near, far));
        let (near, far) = connected();
        let config = Arc::clone(&client.config);
        let near = Rustls(
            ClientConnection::new(config, client.name.clone()).unwrap(),
            near,
        );
        let far = Rustls(
            ServerConnection::new(Arc::clone(&server.config)).unwrap(),
            far,
        );
        turns[2].push(measure(near, far));
    }
    for (name, times) in ["plain", "own records", "records of rustls"]
        .iter()
        .zip(&mut turns)
    {
        println!("{name}: {times:.2?}");
        times.sort_by(f64::total_cmp);
        println!(
            "{name}: least {:.2}, median {:.2} us",
            times[0],
            times[TURNS / 2]
        );
    }
}
