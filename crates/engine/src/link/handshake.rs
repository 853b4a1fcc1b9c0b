//! The hello on both sides of a new link.

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hikkoshi_wire::{
    Capabilities, HELLO_LEN, Hello, HelloError, MigrationId, NegotiationError, Role, Versions,
    negotiate,
};
use thiserror::Error;

use super::{Address, Incoming, Mark, Stream};
use crate::cancel::Cancel;

/// How long a peer may take to say hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no link.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The connection failed.
    #[error("{0}; does 'hikkoshi receive' run there?")]
    Connect(io::Error),
    /// The connection failed after it was made.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection instead of saying hello.
    #[error("the peer closed the connection without a greeting; it may be busy with another guest")]
    Closed,
    /// The peer says nothing.
    #[error("the peer has said nothing for {} s; is it 'hikkoshi receive' that listens there?", PATIENCE.as_secs())]
    Silent,
    /// What the peer said is no hello.
    #[error("{0}")]
    Hello(#[from] HelloError),
    /// The two sides cannot work together.
    #[error("{0}")]
    Negotiation(#[from] NegotiationError),
}

/// A hello of this program.
pub fn hello(role: Role, id: MigrationId) -> Hello {
    Hello {
        versions: Versions::SUPPORTED,
        capabilities: Capabilities::KNOWN,
        role,
        id,
    }
}

/// Connects to `address` and says `ours`; the peer must answer in kind.
///
/// # Errors
/// See [`HandshakeError`].
pub fn open(address: &Address, ours: &Hello) -> Result<Stream, HandshakeError> {
    let stream = Stream::connect(address).map_err(HandshakeError::Connect)?;
    match (&stream).write_all(&ours.encode()) {
        // A peer that spoke first and hung up: what it said tells more than that it is gone.
        Err(error) if hung_up(&error) => {}
        written => written?,
    }
    let theirs = read_hello(&stream, &Cancel::new())?;
    negotiate(ours, &theirs)?;
    Ok(stream)
}

/// Reads the hello of an accepted connection and answers it, if the link
/// belongs to the migration under way or begins one.
pub(super) fn answer(
    stream: Stream,
    peer: String,
    current: &Mutex<Option<MigrationId>>,
    stop: &Cancel,
) -> Result<Incoming, (String, HandshakeError)> {
    let theirs = (|| {
        let theirs = read_hello(&stream, stop)?;
        let expected = current.lock().ok().and_then(|current| *current);
        // Before a migration is under way only a control link makes sense;
        // afterwards only links that know its id.
        let ours = match (expected, theirs.role) {
            (None, Role::Control) => theirs.id,
            (None, _) => return Err(NegotiationError::OtherMigration.into()),
            (Some(id), _) => id,
        };
        let ours = hello(theirs.role, ours);
        let agreed = negotiate(&ours, &theirs)?;
        (&stream).write_all(&ours.encode())?;
        Ok((theirs, agreed))
    })();
    match theirs {
        Ok((theirs, agreed)) => Ok(Incoming {
            role: theirs.role,
            id: theirs.id,
            capabilities: agreed.capabilities,
            stream,
            peer,
        }),
        Err(error) => Err((peer, error)),
    }
}

/// Reads a hello, byte by byte if need be, but not for ever.
fn read_hello(stream: &Stream, stop: &Cancel) -> Result<Hello, HandshakeError> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = [0; HELLO_LEN];
    let mut filled = 0;
    let mut reader = stream;
    while filled < HELLO_LEN {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.is_cancelled() {
            return Err(HandshakeError::Silent);
        }
        stream.set_timeout(Some(left.min(super::TICK)))?;
        match reader.read(&mut bytes[filled..]) {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(n) => filled += n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(e) if hung_up(&e) => return Err(HandshakeError::Closed),
            Err(e) => return Err(e.into()),
        }
    }
    let hello = Hello::decode(&bytes)?;
    // Both sides have the same role.
    stream.mark(Mark::of(hello.role));
    Ok(hello)
}

/// Whether the peer has closed the connection.
fn hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
