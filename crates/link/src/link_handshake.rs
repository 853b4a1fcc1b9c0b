//! The handshake of a new link, on both sides: TLS, then the hello.

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_wire::{
    CHALLENGE_LEN, Features, HELLO_LEN, Hello, HelloError, MigrationId, NegotiationError, Role,
    Versions, negotiate,
};
use thiserror::Error;

use crate::connect::connect_hints;
use crate::stream::TrafficClass;
use crate::tls;
use crate::tls::{Opener, Sealer, SecureError, TimeLimits, TlsClient, TlsServer};
use crate::{AcceptedLink, Remote, Stream};
use hikkoshi_linux::CancelFlag;
use hikkoshi_linux::sandbox_thread;

/// How long a handshake may take: TLS, authentication and hello.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a handshake failed.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The connection could not be made.
    #[error("the connection failed{advice}", advice = connect_hints::advice(.0))]
    Connect(#[source] io::Error),
    /// The connection failed later.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer closed the connection before its hello.
    #[error("the peer closed the connection without a greeting; it may be busy with another guest")]
    Closed,
    /// The peer did not send its hello in time.
    #[error(
        "the peer sent no greeting within {} s; check that 'hikkoshi receive' listens at this \
         address",
        HANDSHAKE_TIMEOUT.as_secs()
    )]
    TimedOut,
    /// The TLS handshake or the authentication failed.
    #[error(transparent)]
    Secure(#[from] SecureError),
    /// The peer answered with a TLS alert.
    #[error(
        "the destination requires TLS: pass its invitation with --to (or --tls-ca, --tls-cert and \
         --tls-key), or start 'hikkoshi receive' with --plaintext"
    )]
    WantsTls,
    /// The peer started a TLS handshake.
    #[error("the source uses TLS, but this side was started without TLS or with --plaintext")]
    SpeaksTls,
    /// The peer sent a malformed hello.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer did not return the challenge of this connection.
    #[error("the peer did not return this connection's challenge: it replays an earlier session")]
    Replayed,
    /// The two sides are incompatible.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
}

impl HandshakeError {
    /// Whether the peer has closed the connection.
    fn is_end(&self) -> bool {
        match self {
            Self::Io(error) | Self::Secure(SecureError::Io(error)) => is_closed(error),
            _ => false,
        }
    }
}

/// The hello of this program.
pub fn hello(role: Role, id: MigrationId) -> Hello {
    Hello {
        versions: Versions::SUPPORTED,
        features: Features::SUPPORTED,
        role,
        id,
    }
}

/// What the hellos of a new link agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The protocol version to use.
    pub version: u16,
    /// The optional features that both sides have.
    pub features: Features,
}

/// Connects to `remote` and exchanges hellos; `ours` is this side's. Returns the connection and
/// what was agreed on.
///
/// # Errors
/// See [`HandshakeError`]. Once `stop` is set, it fails soon.
pub fn open(
    remote: &Remote,
    ours: &Hello,
    stop: &CancelFlag,
) -> Result<(Stream, Agreed), HandshakeError> {
    let stream = Stream::connect(&remote.address, remote.loopback_only, stop)
        .map_err(HandshakeError::Connect)?;
    let handshake = || {
        sandbox_thread();
        exchange_hellos(stream, remote.tls.as_ref(), ours, stop)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("src-hello".into())
            .spawn_scoped(scope, handshake)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the handshake thread panicked").into()))
    })
}

/// Sends `ours` to a destination, and reads the destination's hello.
fn exchange_hellos(
    mut stream: Stream,
    tls: Option<&TlsClient>,
    ours: &Hello,
    stop: &CancelFlag,
) -> Result<(Stream, Agreed), HandshakeError> {
    let limits = limits(stop);
    if let Some(client) = tls {
        stream = stream.secure_client(client, limits)?;
    }
    let mut exchange = HelloExchange::new(&stream)?;
    match exchange.write(&ours.encode(), limits) {
        // The peer closed the connection first: what it sent before explains more than this error.
        Err(error) if error.is_end() => {}
        answer => answer?,
    }
    let theirs = exchange.read_hello(limits)?;
    let agreed = Agreed {
        version: negotiate(ours, &theirs)?,
        features: ours.features.common(theirs.features),
    };
    let mut challenge = [0; CHALLENGE_LEN];
    exchange.read(&mut challenge, Part::Challenge, limits)?;
    exchange.write(&challenge, limits)?;
    exchange.finish();
    Ok((stream, agreed))
}

pub(crate) fn limits(stop: &CancelFlag) -> TimeLimits<'_> {
    TimeLimits {
        deadline: Instant::now() + HANDSHAKE_TIMEOUT,
        stop,
    }
}

/// Reads the hello of an accepted connection and answers it, if the link belongs to the migration
/// under way or begins one.
pub(crate) fn answer(
    stream: Stream,
    peer: String,
    tls: Option<&TlsServer>,
    current: &Mutex<Option<MigrationId>>,
    stop: &CancelFlag,
) -> Result<AcceptedLink, (String, HandshakeError)> {
    let mut challenge = [0; CHALLENGE_LEN];
    match getrandom::fill(&mut challenge) {
        Ok(()) => answer_with(challenge, stream, peer, tls, current, stop),
        Err(error) => Err((peer, io::Error::other(error).into())),
    }
}

/// Answers with this challenge.
fn answer_with(
    challenge: [u8; CHALLENGE_LEN],
    mut stream: Stream,
    peer: String,
    tls: Option<&TlsServer>,
    current: &Mutex<Option<MigrationId>>,
    stop: &CancelFlag,
) -> Result<AcceptedLink, (String, HandshakeError)> {
    let limits = limits(stop);
    let mut source = None;
    if let Some(server) = tls {
        (stream, source) = match stream.secure_server(server, limits) {
            Ok(secured) => secured,
            Err(error) => return Err((peer, error.into())),
        };
    }
    let theirs = (|| {
        let mut exchange = HelloExchange::new(&stream)?;
        let theirs = exchange.read_hello(limits)?;
        let expected = current.lock().ok().and_then(|current| *current);
        // Before a migration is under way only a control link is accepted, afterwards only links
        // with its id.
        let ours = match (expected, theirs.role) {
            (None, Role::Control) => theirs.id,
            (None, _) => return Err(NegotiationError::OtherMigration.into()),
            (Some(id), _) => id,
        };
        let ours = hello(theirs.role, ours);
        match negotiate(&ours, &theirs) {
            Err(error @ NegotiationError::Version { .. }) => {
                // So that the source reports the versions as well. The number of a migration under
                // way is not for a peer that does not have it.
                let ours = hello(theirs.role, theirs.id);
                exchange.write(&ours.encode(), limits)?;
                return Err(error.into());
            }
            negotiated => negotiated?,
        };
        exchange.write(&[&ours.encode()[..], &challenge].concat(), limits)?;
        let mut answer = [0; CHALLENGE_LEN];
        exchange.read(&mut answer, Part::Challenge, limits)?;
        if answer != challenge {
            return Err(HandshakeError::Replayed);
        }
        exchange.finish();
        Ok(theirs)
    })();
    match theirs {
        Ok(theirs) => Ok(AcceptedLink {
            role: theirs.role,
            id: theirs.id,
            stream,
            peer,
            from: None,
            source,
        }),
        Err(error) => Err((peer, error)),
    }
}

/// What is read of a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Its first bytes. Without TLS on this side, they may be those of TLS instead.
    Hello,
    /// Random bytes: any are right.
    Challenge,
}

/// The exchange of hellos on one connection, with or without TLS.
struct HelloExchange<'a> {
    stream: &'a Stream,
    keys: Option<(Opener, Sealer)>,
}

impl<'a> HelloExchange<'a> {
    fn new(stream: &'a Stream) -> io::Result<Self> {
        stream.set_timeout(Some(crate::TICK))?;
        let keys = stream.take_opener()?.zip(stream.take_sealer()?);
        Ok(Self { stream, keys })
    }

    /// Returns the keys, so that the link's reader and writer can take them.
    fn finish(self) {
        if let Some((opener, sealer)) = self.keys {
            self.stream.return_keys(opener, sealer);
        }
    }

    fn write(&mut self, bytes: &[u8], limits: TimeLimits<'_>) -> Result<(), HandshakeError> {
        let mut socket = self.stream;
        match &mut self.keys {
            Some((_, sealer)) => tls::send(sealer, bytes, &mut socket, limits)?,
            None => socket.write_all(bytes)?,
        }
        Ok(())
    }

    /// Fills `bytes`, with as many reads as that takes, within the time limit.
    fn read(
        &mut self,
        bytes: &mut [u8],
        part: Part,
        limits: TimeLimits<'_>,
    ) -> Result<(), HandshakeError> {
        let Some((opener, _)) = &mut self.keys else {
            return self.fill(bytes, part, limits);
        };
        let read = tls::receive(opener, bytes, &mut self.stream, limits);
        read.map_err(|error| match error {
            SecureError::TimedOut => HandshakeError::TimedOut,
            SecureError::Io(error) if is_closed(&error) => HandshakeError::Closed,
            error => error.into(),
        })
    }

    /// Reads a hello.
    fn read_hello(&mut self, limits: TimeLimits<'_>) -> Result<Hello, HandshakeError> {
        let mut bytes = [0; HELLO_LEN];
        self.read(&mut bytes, Part::Hello, limits)?;
        let hello = Hello::decode(&bytes)?;
        // Both sides have the same role.
        self.stream.mark(TrafficClass::of_role(hello.role));
        Ok(hello)
    }

    fn fill(
        &self,
        bytes: &mut [u8],
        part: Part,
        limits: TimeLimits<'_>,
    ) -> Result<(), HandshakeError> {
        let may_be_tls = part == Part::Hello;
        let mut filled = 0;
        let mut socket = self.stream;
        while filled < bytes.len() {
            match limits.retry(|| socket.read(&mut bytes[filled..])) {
                Ok(n) if n > 0 => filled += n,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(HandshakeError::TimedOut);
                }
                Err(error) if !is_closed(&error) => return Err(error.into()),
                // A TLS peer sends an alert before it closes the connection.
                _ if may_be_tls && is_tls_alert(&bytes[..filled]) => {
                    return Err(HandshakeError::WantsTls);
                }
                _ => return Err(HandshakeError::Closed),
            }
            if may_be_tls && is_tls_handshake(&bytes[..filled]) {
                return Err(HandshakeError::SpeaksTls);
            }
        }
        Ok(())
    }
}

/// Whether the peer has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

/// Whether these bytes begin a TLS alert (RFC 8446, section 5.1).
fn is_tls_alert(bytes: &[u8]) -> bool {
    bytes.starts_with(&[21, 3])
}

/// Whether these bytes begin a TLS handshake (RFC 8446, section 5.1).
fn is_tls_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(&[22, 3])
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn both_sides_report_that_they_have_no_common_version() {
        let id = |byte| MigrationId::from_bytes([byte; 16]);
        let later = Hello {
            versions: Versions::new(9, 9).unwrap(),
            ..hello(Role::Control, id(7))
        };
        for current in [None, Some(id(1)), Some(id(7))] {
            let (near, far) = UnixStream::pair().unwrap();
            let (stop, current) = (CancelFlag::new(), Mutex::new(current));
            let (asked, answered) = thread::scope(|scope| {
                let far = Stream::Unix(far);
                let answering = scope.spawn(|| answer(far, String::new(), None, &current, &stop));
                let asked = exchange_hellos(Stream::Unix(near), None, &later, &stop);
                (
                    asked.err().unwrap(),
                    answering.join().unwrap().err().unwrap().1,
                )
            });
            for error in [asked, answered] {
                let version = matches!(
                    error,
                    HandshakeError::Negotiation(NegotiationError::Version { .. })
                );
                assert!(version, "{error}");
            }
        }
    }

    /// A challenge is random, and may begin as a TLS record does.
    #[test]
    fn any_challenge_is_returned() {
        for first in [&b"\x16\x03"[..], b"\x15\x03", b"hikkoshi", b"\0\0"] {
            let mut challenge = [7; CHALLENGE_LEN];
            challenge[..first.len()].copy_from_slice(first);
            let (near, far) = UnixStream::pair().unwrap();
            let (stop, current) = (CancelFlag::new(), Mutex::new(None));
            let ours = hello(Role::Control, MigrationId::from_bytes([7; 16]));
            thread::scope(|scope| {
                let far = Stream::Unix(far);
                let answering = scope
                    .spawn(|| answer_with(challenge, far, String::new(), None, &current, &stop));
                let asked = exchange_hellos(Stream::Unix(near), None, &ours, &stop);
                assert!(asked.is_ok(), "{challenge:?}: {:?}", asked.err());
                let answered = answering.join().unwrap();
                assert!(answered.is_ok(), "{challenge:?}: {:?}", answered.err());
            });
        }
    }
}
