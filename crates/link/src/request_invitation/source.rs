//! The source's side: asks, and waits for the answer.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::{CancelFlag, sandbox_thread};
use thiserror::Error;

use super::{INVITED, REFUSED};
use crate::certified::{Connection, MAX_TEXT, with_length};
use crate::connect::connect_hints;
use crate::link_handshake::limits;
use crate::tls::{Invitation, REQUEST_PROTOCOL, SecureError, TimeLimits, TlsClient};
use crate::{Address, Stream, TICK};

/// How long the answer may take: the destination's QEMU is started before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The connection on which an invitation was asked for. A front's receiver that no source has
/// reached yet ends when this is dropped: to be kept until the guest has been moved, or stays.
#[derive(Debug)]
pub struct KeptRequest {
    _connection: Stream,
}

/// Why there is no invitation.
#[derive(Debug, Error)]
pub enum RequestError {
    /// The connection could not be made.
    #[error("the connection failed{advice}", advice = connect_hints::advice(.0))]
    Connect(#[source] io::Error),
    /// A thread could not be started, or the connection could not be prepared.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The handshake failed, or the connection ended.
    #[error(transparent)]
    Secure(#[from] SecureError),
    /// The front has refused.
    #[error("it was refused: {0}")]
    Refused(String),
    /// The answer is malformed.
    #[error("the answer is malformed")]
    Malformed,
}

/// Asks the front at `address` for an invitation for the guest `name`. `client` has a certificate.
/// The invitation is valid as long as the [`KeptRequest`] exists.
///
/// # Errors
/// [`RequestError`]. Once `stop` is set, it fails soon.
pub fn request_invitation(
    address: &Address,
    client: &TlsClient,
    name: &str,
    stop: &CancelFlag,
) -> Result<(Invitation, KeptRequest), RequestError> {
    let stream = Stream::connect(address, false, stop).map_err(RequestError::Connect)?;
    let ask = || {
        sandbox_thread();
        exchange(stream, client, name, stop)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("src-hello".into())
            .spawn_scoped(scope, ask)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the handshake thread panicked").into()))
    })
}

fn exchange(
    stream: Stream,
    client: &TlsClient,
    name: &str,
    stop: &CancelFlag,
) -> Result<(Invitation, KeptRequest), RequestError> {
    stream.set_timeout(Some(TICK))?;
    let first = limits(stop);
    let mut connection =
        Connection::connect(stream, &client.for_protocol(REQUEST_PROTOCOL), first)?;
    connection.send(&with_length(name), first)?;
    let answer = TimeLimits {
        deadline: Instant::now() + ANSWER_TIMEOUT,
        stop,
    };
    // A certificate that is not accepted is reported here.
    let [kind] = connection.receive(answer)?;
    let text = connection.receive_text(MAX_TEXT, answer)?;
    let text = text.ok_or(RequestError::Malformed)?;
    match kind {
        INVITED => {
            let invitation = text.parse().map_err(|_| RequestError::Malformed)?;
            let _connection = connection.stream;
            Ok((invitation, KeptRequest { _connection }))
        }
        REFUSED => Err(RequestError::Refused(text)),
        _ => Err(RequestError::Malformed),
    }
}
