use super::*;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// A relay to a listener of the test.
struct Relayed {
    relay: Relay,
    destination: TcpListener,
}

impl Relayed {
    fn new(carries: Carries, policy: impl RelayPolicy + 'static) -> Self {
        let destination = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = destination.local_addr().unwrap().to_string();
        let relay = Relay::between("127.0.0.1:0", &to, carries, Arc::new(policy)).unwrap();
        Self { relay, destination }
    }

    /// Both ends of a new connection, which a cut closes from now on.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let before = self.relay.shared.lock().accepted;
        let near = TcpStream::connect(self.relay.address()).unwrap();
        let far = self.destination.accept().unwrap().0;
        while self.relay.shared.lock().accepted == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        (near, far)
    }
}

/// Decides about what a connection carries, by its bytes.
struct Decide<F>(F);

impl<F: Fn(&mut [u8]) -> Fate + Send + Sync> RelayPolicy for Decide<F> {
    fn before(&self, passing: &mut Passing<'_>) -> Fate {
        (self.0)(passing.bytes)
    }
}

fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A connection that was reset has ended as well.
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn everything_arrives_later_and_in_order() {
    let delay = Duration::from_millis(20);
    let relayed = Relayed::new(Carries::Bytes { delay }, PassAll);
    let (mut near, mut far) = relayed.connect();
    let begun = Instant::now();
    for part in [b"one ", b"two "] {
        near.write_all(part).unwrap();
    }
    let mut seen = [0; 8];
    far.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"one two ");
    assert!(begun.elapsed() >= delay);
    far.write_all(b"back").unwrap();
    near.read_exact(&mut seen[..4]).unwrap();
    assert!(begun.elapsed() >= 2 * delay);
    drop(far);
    assert_eq!(rest(&near), b"", "the end is passed on, too");
}

#[test]
fn one_direction_can_end_before_the_other() {
    let relayed = Relayed::new(Carries::BYTES, PassAll);
    let (near, mut far) = relayed.connect();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&far), b"");
    far.write_all(b"the last message").unwrap();
    drop(far);
    assert_eq!(rest(&near), b"the last message");
}

#[test]
fn bytes_are_changed_and_dropped() {
    let policy = Decide(|bytes: &mut [u8]| match &*bytes {
        b"dropped" => Fate::Drop,
        _ => {
            bytes.make_ascii_uppercase();
            Fate::Pass
        }
    });
    let relayed = Relayed::new(Carries::BYTES, policy);
    let (mut near, mut far) = relayed.connect();
    near.write_all(b"changed").unwrap();
    let mut seen = [0; 7];
    far.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"CHANGED");
    near.write_all(b"dropped").unwrap();
    drop(near);
    assert_eq!(rest(&far), b"");
}

#[test]
fn a_cut_closes_all_links_and_an_end_accepts_no_more() {
    for (fate, arrives, again) in [
        (Fate::CutBefore, &b""[..], true),
        (Fate::CutAt(3), b"cut", true),
        (Fate::CutInside, b"cut", true),
        (Fate::CutAfter, b"cut it", true),
        (Fate::EndBefore, b"", false),
        (Fate::EndAfter, b"cut it", false),
    ] {
        let policy = Decide(move |bytes: &mut [u8]| match &*bytes {
            b"cut it" => fate,
            _ => Fate::Pass,
        });
        let relayed = Relayed::new(Carries::BYTES, policy);
        let ((mut near, far), other) = (relayed.connect(), relayed.connect());
        near.write_all(b"cut it").unwrap();
        assert_eq!(rest(&far), arrives, "{fate:?}");
        for stream in [&near, &other.0, &other.1] {
            assert_eq!(rest(stream), b"", "{fate:?}");
        }
        let address = relayed.relay.address();
        assert_eq!(TcpStream::connect(address).is_ok(), again, "{fate:?}");
    }
}

#[test]
fn one_link_is_cut() {
    let policy = Decide(|bytes: &mut [u8]| match &*bytes {
        b"cut it" => Fate::CutLink,
        _ => Fate::Pass,
    });
    let relayed = Relayed::new(Carries::BYTES, policy);
    let ((mut near, far), (mut other_near, mut other_far)) = (relayed.connect(), relayed.connect());
    near.write_all(b"cut it").unwrap();
    assert_eq!(rest(&far), b"");
    other_near.write_all(b"still here").unwrap();
    let mut seen = [0; 10];
    other_far.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"still here");
    drop(relayed.relay);
    assert_eq!(rest(&other_far), b"", "its links end with it");
}
