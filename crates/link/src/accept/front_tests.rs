//! A front, its receivers' connections, requests for invitations and inquiries.

use super::*;
use crate::certified::{Connection, with_length};
use crate::inquiry::MAX_QUESTION;
use crate::tls::test_authority::Authority;
use crate::tls::{INQUIRY_PROTOCOL, SecureError, TlsClient};
use crate::{InquiryError, MAX_ANSWER, RequestError, inquire, request_invitation};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, sync_channel};

/// A front, and what arrives at it.
fn with_front(
    change: impl FnOnce(Front) -> Front,
    test: impl FnOnce(SocketAddr, &Receiver<Arrival>),
) {
    let front = change(Front::bind(&"127.0.0.1:0".parse().unwrap()).unwrap());
    let address = front.address().resolve().unwrap()[0];
    let (sender, arrivals) = sync_channel(8);
    let stop = CancelFlag::new();
    thread::scope(|scope| {
        // Also when the test fails: the scope waits for the thread.
        let _stopping = Stopping(&stop);
        scope.spawn(|| front.serve(&sender, &stop).unwrap());
        test(address, &arrivals);
    });
}

struct Stopping<'a>(&'a CancelFlag);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The first message of a source with an invitation of `server`.
fn client_hello(server: &TlsServer) -> (Vec<u8>, Route) {
    let invitation = server.invitation("h:1".parse().unwrap()).unwrap();
    let client = TlsClient::invited(&invitation).unwrap();
    (hello_of(&client), invitation.route())
}

fn hello_of(client: &TlsClient) -> Vec<u8> {
    let mut connection =
        rustls::ClientConnection::new(client.config.clone(), client.name.clone()).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn a_connection_is_passed_on_with_its_first_message() {
    let (hello, route) = client_hello(&TlsServer::inviting().unwrap());
    with_front(std::convert::identity, |address, arrivals| {
        let mut peer = TcpStream::connect(address).unwrap();
        // In parts, as a network may deliver it.
        for part in [&hello[..3], &hello[3..40], &hello[40..]] {
            peer.write_all(part).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        let Arrival::Link(mut passed) = arrivals.recv().unwrap() else {
            panic!("not a link");
        };
        assert_eq!(passed.route, route);
        assert_eq!(passed.peer, peer.local_addr().unwrap());
        let mut read = vec![0; hello.len()];
        passed.stream.read_exact(&mut read).unwrap();
        assert_eq!(read, hello);
    });
}

/// Two ends of a connection.
fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, peer)
}

#[test]
fn a_part_of_a_message_does_not_end_the_wait_for_it() {
    let (stream, mut peer) = connected();
    let half = [1; 7];
    peer.write_all(&half).unwrap();
    // The first half is there.
    stream.peek(&mut [0]).unwrap();
    let writer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        peer.write_all(&half).unwrap();
        peer
    });
    let mut both = [0; 14];
    assert_eq!(peek_once(&stream, &mut both).unwrap(), Some(14));
    drop(writer.join().unwrap());
    // Nothing was read.
    assert_eq!(stream.peek(&mut both).unwrap(), 14);
}

#[test]
fn a_peer_that_closes_is_not_waited_for() {
    let (hello, _) = client_hello(&TlsServer::inviting().unwrap());
    let stop = CancelFlag::new();
    for sent in [0, 3, 40] {
        let (stream, mut peer) = connected();
        let address = peer.local_addr().unwrap();
        peer.write_all(&hello[..sent]).unwrap();
        drop(peer);
        let arrived = arrival(stream, address, None, &stop);
        assert!(matches!(arrived, Err(NotRouted::Closed)), "{arrived:?}");
    }
    // What is complete is read.
    let (stream, mut peer) = connected();
    let address = peer.local_addr().unwrap();
    peer.write_all(&hello).unwrap();
    drop(peer);
    let arrived = arrival(stream, address, None, &stop).unwrap();
    assert!(matches!(arrived, Arrival::Link(_)));
}

/// sched(7), `uapi/linux/sched.h`.
const SCHED_BATCH: i32 = 3;

/// The scheduling policies of this process's threads with this name (proc(5), field 41 of `stat`).
fn policies(name: &str) -> Vec<i32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let stat = |thread: io::Result<std::fs::DirEntry>| {
        // It may have ended.
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let is_meant = before.ends_with(&format!("({name}"));
        // The third field follows the name.
        is_meant.then(|| after.split_whitespace().nth(41 - 3)?.parse().ok())?
    };
    threads.filter_map(stat).collect()
}

/// Connections without a hello, one from each address of the loopback network.
fn silent_flood(front: SocketAddr, connections: u16) -> Vec<TcpStream> {
    use socket2::{Domain, Socket, Type};
    let connect = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let from = SocketAddr::from(([127, 9, high, low], 0));
        socket.bind(&from.into()).unwrap();
        socket.connect(&front.into()).unwrap();
        TcpStream::from(socket)
    };
    (1..=connections).map(connect).collect()
}

/// A source whose hello is slow, while more silent connections than there are places come from as
/// many addresses. Their threads do not preempt others.
#[test]
fn a_source_of_a_migration_is_served_in_a_flood() {
    for known in [true, false] {
        let (hello, _) = client_hello(&TlsServer::inviting().unwrap());
        let source = known.then(|| IpAddr::from([127, 0, 0, 1]));
        let change = |front: Front| {
            front.set_source_addresses(source);
            front
        };
        with_front(change, |address, arrivals| {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.write_all(&hello[..40]).unwrap();
            let flood = silent_flood(address, 80);
            // All were accepted: of the last ones, none is evicted.
            let mut evicted = flood[0].try_clone().unwrap();
            assert!(matches!(evicted.read(&mut [0]), Ok(0) | Err(_)));
            let deadline = Instant::now() + Duration::from_secs(60);
            let are_batch = |policies: &[i32]| policies.iter().all(|&policy| policy == SCHED_BATCH);
            while !are_batch(&policies("front-hello")) {
                assert!(Instant::now() < deadline, "{:?}", policies("front-hello"));
                thread::yield_now();
            }
            // It may have been closed.
            let _ = peer.write_all(&hello[40..]);
            let mut byte = [0];
            match known {
                true => assert!(matches!(arrivals.recv().unwrap(), Arrival::Link(_))),
                false => assert!(matches!(peer.read(&mut byte), Ok(0) | Err(_))),
            }
        });
    }
}

#[test]
fn other_connections_are_closed() {
    let (hello, _) = client_hello(&TlsServer::inviting().unwrap());
    let mut without = hello.clone();
    let at = without.windows(4).position(|part| part == b"1 to").unwrap();
    without[at] = b'2';
    let long = [22, 3, 1, 0xff, 0xff];
    with_front(std::convert::identity, |address, arrivals| {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], &long, b"hk\0\0\0"] {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.write_all(bytes).unwrap();
            // It is closed, perhaps by a reset.
            assert!(matches!(peer.read(&mut [0]), Ok(0) | Err(_)));
        }
        // A TLS peer gets a reason.
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&without).unwrap();
        let mut alert = Vec::new();
        peer.read_to_end(&mut alert).unwrap();
        assert_eq!(alert, NO_APPLICATION_PROTOCOL);
        assert!(arrivals.try_recv().is_err());
    });
}

/// The address as the certificate of the front names it.
fn address_of(front: SocketAddr) -> Address {
    front.to_string().parse().unwrap()
}

fn source(authority: &Authority, name: &str) -> TlsClient {
    TlsClient::certified(authority.issue(name), "127.0.0.1").unwrap()
}

#[test]
fn a_source_with_a_certificate_gets_an_answer() {
    let authority = Authority::new();
    let server = TlsServer::certified(authority.issue("127.0.0.1")).unwrap();
    let invited = TlsServer::inviting().unwrap();
    let invitation = invited.invitation("h:1".parse().unwrap()).unwrap();
    let stop = CancelFlag::new();
    let change = |front: Front| front.with_certificate(move || Some(server.clone()));
    with_front(change, |front, arrivals| {
        let client = source(&authority, "src.example");
        let ask = |name: &str| request_invitation(&address_of(front), &client, name, &stop);
        let answer = |answer: Result<&str, &str>| {
            let Arrival::Request(request) = arrivals.recv().unwrap() else {
                panic!("not a request");
            };
            let certificate = request.certificate();
            assert!(certificate.is_for("src.example") && !certificate.is_for("x.example"));
            assert_eq!(request.name(), "web-1");
            request.answer(answer, &stop).unwrap();
        };
        thread::scope(|scope| {
            let asking = scope.spawn(|| ask("web-1"));
            answer(Ok(&invitation.to_string()));
            let (got, _) = asking.join().unwrap().unwrap();
            assert_eq!(got.to_string(), invitation.to_string());
            let asking = scope.spawn(|| ask("web-1"));
            answer(Err("not today"));
            let refused = asking.join().unwrap().unwrap_err();
            assert!(matches!(&refused, RequestError::Refused(why) if why == "not today"));
            // What is not an invitation.
            let asking = scope.spawn(|| ask("web-1"));
            answer(Ok("h:1"));
            let malformed = asking.join().unwrap().unwrap_err();
            assert!(matches!(malformed, RequestError::Malformed), "{malformed}");
            // The front ends before it has answered.
            let asking = scope.spawn(|| ask("web-1"));
            drop(arrivals.recv().unwrap());
            asking.join().unwrap().unwrap_err();
        });
        // Names that are not names of guests.
        for name in ["a\nb", &"a".repeat(65)] {
            ask(name).unwrap_err();
        }
        assert!(arrivals.try_recv().is_err());
    });
}

/// A certificate that cannot be read, such as on a file system that does not answer: connections
/// are accepted, with the certificate that was read before.
#[test]
fn no_connection_waits_for_the_files_of_a_certificate() {
    let authority = Authority::new();
    let server = TlsServer::certified(authority.issue("127.0.0.1")).unwrap();
    let (hello, _) = client_hello(&TlsServer::inviting().unwrap());
    let (calls, reads) = sync_channel(0);
    let (answer, blocked) = sync_channel::<()>(0);
    let blocked = Mutex::new(blocked);
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let change = |front: Front| {
        front.with_certificate(move || {
            if !is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                let _ = calls.send(());
                // Until the end of the test.
                let _ = blocked.lock().unwrap().recv();
            }
            Some(server.clone())
        })
    };
    let stop = CancelFlag::new();
    with_front(change, move |front, arrivals| {
        // Dropped also when the test fails.
        let _answer = answer;
        reads.recv().unwrap();
        let mut peer = TcpStream::connect(front).unwrap();
        peer.write_all(&hello).unwrap();
        let limit = Duration::from_secs(60);
        let arrived = arrivals.recv_timeout(limit).unwrap();
        assert!(matches!(arrived, Arrival::Link(_)));
        let client = source(&authority, "src.example");
        let ask = || request_invitation(&address_of(front), &client, "web-1", &stop);
        thread::scope(|scope| {
            let asking = scope.spawn(ask);
            let Arrival::Request(request) = arrivals.recv_timeout(limit).unwrap() else {
                panic!("not a request");
            };
            request.answer(Err("not today"), &stop).unwrap();
            asking.join().unwrap().unwrap_err();
        });
    });
}

/// Whether the peer has closed its end, within `timeout`; `None`: however long that takes.
fn is_closed(connection: &OwnedFd, timeout: Option<&Timespec>) -> bool {
    let mut poll = [PollFd::new(connection, PollFlags::RDHUP)];
    rustix::event::poll(&mut poll, timeout).unwrap() == 1
}

#[test]
fn a_source_keeps_its_request_open_until_it_gives_up() {
    let authority = Authority::new();
    let server = TlsServer::certified(authority.issue("127.0.0.1")).unwrap();
    let invited = TlsServer::inviting().unwrap();
    let invitation = invited.invitation("h:1".parse().unwrap()).unwrap();
    let invitation = invitation.to_string();
    let stop = CancelFlag::new();
    let change = |front: Front| front.with_certificate(move || Some(server.clone()));
    with_front(change, |front, arrivals| {
        let request = || match arrivals.recv().unwrap() {
            Arrival::Request(request) => *request,
            other => panic!("{other:?}"),
        };
        let client = source(&authority, "src.example");
        thread::scope(|scope| {
            let ask = || request_invitation(&address_of(front), &client, "web-1", &stop);
            let asking = scope.spawn(ask);
            let request = request();
            let kept = request.kept_connection().unwrap();
            request.answer(Ok(&invitation), &stop).unwrap();
            let (_, open) = asking.join().unwrap().unwrap();
            assert!(!is_closed(&kept, Some(&Timespec::default())));
            drop(open);
            assert!(is_closed(&kept, None));
        });
    });
}

#[test]
fn a_certificate_that_is_not_accepted_gets_no_answer() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = TlsServer::certified(ours.issue("127.0.0.1")).unwrap();
    let change = |front: Front| front.with_certificate(move || Some(server.clone()));
    let stop = CancelFlag::new();
    with_front(change, |front, arrivals| {
        let ask = |client: &TlsClient| {
            let asked = request_invitation(&address_of(front), client, "web", &stop);
            let Err(RequestError::Secure(error)) = asked else {
                panic!("{asked:?}");
            };
            error
        };
        // Another authority's, which trusts the front.
        let mut mixed = theirs.issue("src.example");
        mixed.roots = ours.issue("x.example").roots;
        let untrusted = TlsClient::certified(mixed, "127.0.0.1").unwrap();
        let error = ask(&untrusted);
        assert!(matches!(error, SecureError::Refused(_)), "{error}");
        // One that has expired.
        let old = ours.issue_until("src.example", 2001);
        let error = ask(&TlsClient::unchecked(old, "127.0.0.1").unwrap());
        assert!(error.to_string().contains("CertificateExpired"), "{error}");
        // A front that the source does not trust, and one of another name.
        let error = ask(&source(&theirs, "src.example"));
        assert!(matches!(error, SecureError::Certificate(_)), "{error}");
        let elsewhere = TlsClient::certified(ours.issue("src.example"), "10.0.0.2").unwrap();
        let error = ask(&elsewhere);
        assert!(matches!(error, SecureError::Certificate(_)), "{error}");
        // An invitation's key is not a certificate of the authority.
        let inviting = TlsServer::inviting().unwrap();
        let invitation = inviting.invitation("h:1".parse().unwrap()).unwrap();
        let error = ask(&TlsClient::invited(&invitation).unwrap());
        assert!(matches!(error, SecureError::WrongKey), "{error}");
        // A link of a migration, as to a `receive` with certificates.
        let mut peer = TcpStream::connect(front).unwrap();
        peer.write_all(&hello_of(&source(&ours, "src.example")))
            .unwrap();
        let mut alert = Vec::new();
        peer.read_to_end(&mut alert).unwrap();
        assert_eq!(alert, NO_APPLICATION_PROTOCOL);
        assert!(arrivals.try_recv().is_err());
    });
    // A front without a certificate.
    with_front(std::convert::identity, |front, arrivals| {
        let client = source(&ours, "src.example");
        let error = request_invitation(&address_of(front), &client, "web", &stop).unwrap_err();
        let expected = matches!(error, RequestError::Secure(SecureError::OtherProtocol));
        assert!(expected, "{error}");
        assert!(arrivals.try_recv().is_err());
    });
}

/// What was asked at a front, which must be an inquiry.
fn inquiry(arrivals: &Receiver<Arrival>) -> Box<crate::Inquiry> {
    match arrivals.recv().unwrap() {
        Arrival::Inquiry(inquiry) => inquiry,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_with_a_certificate_gets_an_answer_of_bounded_length() {
    let authority = Authority::new();
    let server = TlsServer::certified(authority.issue("127.0.0.1")).unwrap();
    let stop = CancelFlag::new();
    let change = |front: Front| front.with_certificate(move || Some(server.clone()));
    with_front(change, |front, arrivals| {
        let client = source(&authority, "ops.example");
        let read = |text: &str| match text.len() {
            1 => Err("too short".to_owned()),
            len => Ok(len),
        };
        let ask = |question: &str| inquire(&address_of(front), &client, question, read, &stop);
        let asked = |answer: Result<&str, &str>| {
            thread::scope(|scope| {
                let asking = scope.spawn(|| ask("host"));
                let inquiry = inquiry(arrivals);
                let certificate = inquiry.certificate();
                assert!(certificate.is_for("ops.example") && !certificate.is_for("x.example"));
                assert_eq!(inquiry.question(), "host");
                inquiry.answer(answer, &stop).unwrap();
                asking.join().unwrap()
            })
        };
        // More than a record of TLS, and as much as there may be.
        for len in [0, 2, 100_000, MAX_ANSWER] {
            assert_eq!(asked(Ok(&"x".repeat(len))).unwrap(), len);
        }
        let refused = asked(Ok(&"x".repeat(MAX_ANSWER + 1))).unwrap_err();
        assert!(matches!(&refused, InquiryError::Refused(why) if why.contains("longer")));
        let refused = asked(Err("not you")).unwrap_err();
        assert!(matches!(&refused, InquiryError::Refused(why) if why == "not you"));
        let unreadable = asked(Ok("x")).unwrap_err();
        assert!(matches!(&unreadable, InquiryError::Unreadable(why) if why == "too short"));
        // The front ends before it has answered.
        thread::scope(|scope| {
            let asking = scope.spawn(|| ask("host"));
            drop(inquiry(arrivals));
            asking.join().unwrap().unwrap_err();
        });
        // Questions that are none.
        for question in ["a\nb", &"a".repeat(MAX_QUESTION + 1)] {
            ask(question).unwrap_err();
        }
        assert!(arrivals.try_recv().is_err());
    });
}

#[test]
fn an_inquiry_needs_a_certificate_and_a_front_that_has_one() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = TlsServer::certified(ours.issue("127.0.0.1")).unwrap();
    let stop = CancelFlag::new();
    let ask = |front: SocketAddr, client: &TlsClient| {
        let read = |text: &str| Ok(text.to_owned());
        inquire(&address_of(front), client, "host", read, &stop).unwrap_err()
    };
    let change = |front: Front| front.with_certificate(move || Some(server.clone()));
    with_front(change, |front, arrivals| {
        let mut mixed = theirs.issue("ops.example");
        mixed.roots = ours.issue("x.example").roots;
        let untrusted = TlsClient::certified(mixed, "127.0.0.1").unwrap();
        let error = ask(front, &untrusted);
        let expected = matches!(error, InquiryError::Secure(SecureError::Refused(_)));
        assert!(expected, "{error}");
        let old = ours.issue_until("ops.example", 2001);
        let error = ask(front, &TlsClient::unchecked(old, "127.0.0.1").unwrap());
        assert!(error.to_string().contains("CertificateExpired"), "{error}");
        let error = ask(front, &source(&theirs, "ops.example"));
        let expected = matches!(error, InquiryError::Secure(SecureError::Certificate(_)));
        assert!(expected, "{error}");
        assert!(arrivals.try_recv().is_err());
    });
    with_front(std::convert::identity, |front, arrivals| {
        let error = ask(front, &source(&ours, "ops.example"));
        assert!(matches!(error, InquiryError::NotAnswered), "{error}");
        assert!(arrivals.try_recv().is_err());
    });
}

/// A front that is taken over, or another program with its certificate.
#[test]
fn a_hostile_front_cannot_make_an_asker_read_without_end() {
    let authority = Authority::new();
    let server = TlsServer::certified(authority.issue("127.0.0.1")).unwrap();
    let server = server.for_protocol(INQUIRY_PROTOCOL);
    let client = source(&authority, "ops.example");
    let stop = CancelFlag::new();
    let limits = || TimeLimits {
        deadline: Instant::now() + Duration::from_secs(60),
        stop: &stop,
    };
    let length = |len: usize| u32::try_from(len).unwrap().to_be_bytes();
    let not_text = [&[1][..], &length(2), &[0xff, 0xff]].concat();
    let cut = [&[1][..], &length(100), b"ab"].concat();
    let long_reason = [&[2][..], &u16::MAX.to_be_bytes()].concat();
    for sent in [
        [&[1][..], &length(MAX_ANSWER + 1)].concat(),
        [&[1][..], &[0xff; 4]].concat(),
        not_text,
        cut,
        long_reason,
        vec![0],
        vec![3, 0, 0],
        vec![1],
        vec![],
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let stream = Stream::tcp(listener.accept().unwrap().0).unwrap();
                stream.set_timeout(Some(TICK)).unwrap();
                let (mut connection, _) = Connection::accept(stream, &server, limits()).unwrap();
                let question = connection.receive_text(MAX_QUESTION, limits()).unwrap();
                assert_eq!(question.as_deref(), Some("host"));
                if !sent.is_empty() {
                    connection.send(&sent, limits()).unwrap();
                }
            });
            let read = |text: &str| Ok(text.to_owned());
            let asked = inquire(&address_of(address), &client, "host", read, &stop);
            let error = asked.unwrap_err();
            let expected = matches!(error, InquiryError::Malformed | InquiryError::Secure(_));
            assert!(expected, "{sent:?}: {error}");
        });
    }
    assert_eq!(with_length("host")[..2], [0, 4]);
}
