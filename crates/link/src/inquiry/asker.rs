//! The asker's side.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::{CancelFlag, sandbox_thread};
use thiserror::Error;

use super::{ANSWER, MAX_ANSWER, REFUSED};
use crate::certified::{Connection, MAX_TEXT, with_length};
use crate::connect::connect_hints;
use crate::link_handshake::limits;
use crate::tls::{INQUIRY_PROTOCOL, SecureError, TimeLimits, TlsClient};
use crate::{Address, Stream, TICK};

/// How long the answer may take: the front looks at the migrations of its host.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum InquiryError {
    /// The connection could not be made.
    #[error("the connection failed{advice}", advice = connect_hints::advice(.0))]
    Connect(#[source] io::Error),
    /// A thread could not be started, or the connection could not be prepared.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The front does not answer inquiries.
    #[error(
        "it answers no inquiries: it is not a 'hikkoshi daemon' with certificates (--tls-ca, \
         --admit), or one of an earlier version"
    )]
    NotAnswered,
    /// The handshake failed, or the connection ended.
    #[error(transparent)]
    Secure(SecureError),
    /// The front has refused.
    #[error("it was refused: {0}")]
    Refused(String),
    /// The answer is malformed.
    #[error("the answer is malformed")]
    Malformed,
    /// The answer is not what was asked for.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}

impl From<SecureError> for InquiryError {
    fn from(error: SecureError) -> Self {
        match error {
            SecureError::OtherProtocol => Self::NotAnswered,
            error => Self::Secure(error),
        }
    }
}

/// Asks the front at `address`. `client` has a certificate. `read` makes something of the answer,
/// or says why it cannot, on a thread that has given up the rights that it does not need.
///
/// # Errors
/// [`InquiryError`]. Once `stop` is set, it fails soon.
pub fn inquire<T: Send>(
    address: &Address,
    client: &TlsClient,
    question: &str,
    read: impl FnOnce(&str) -> Result<T, String> + Send,
    stop: &CancelFlag,
) -> Result<T, InquiryError> {
    let stream = Stream::connect(address, false, stop).map_err(InquiryError::Connect)?;
    let ask = || {
        sandbox_thread();
        let answer = exchange(stream, client, question, stop)?;
        read(&answer).map_err(InquiryError::Unreadable)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("ask-host".into())
            .spawn_scoped(scope, ask)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that asks panicked").into()))
    })
}

fn exchange(
    stream: Stream,
    client: &TlsClient,
    question: &str,
    stop: &CancelFlag,
) -> Result<String, InquiryError> {
    stream.set_timeout(Some(TICK))?;
    let first = limits(stop);
    let client = client.for_protocol(INQUIRY_PROTOCOL);
    let mut connection = Connection::connect(stream, &client, first)?;
    connection.send(&with_length(question), first)?;
    let limits = TimeLimits {
        deadline: Instant::now() + ANSWER_TIMEOUT,
        stop,
    };
    // A certificate that is not accepted is reported here.
    let [kind] = connection.receive(limits)?;
    match kind {
        ANSWER => {
            let text = connection.receive_long_text(MAX_ANSWER, limits)?;
            text.ok_or(InquiryError::Malformed)
        }
        REFUSED => {
            let text = connection.receive_text(MAX_TEXT, limits)?;
            Err(text.map_or(InquiryError::Malformed, InquiryError::Refused))
        }
        _ => Err(InquiryError::Malformed),
    }
}
