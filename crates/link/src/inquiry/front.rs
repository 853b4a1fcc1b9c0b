//! The front's side: reads a question, and answers it later.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hikkoshi_linux::CancelFlag;
use thiserror::Error;

use super::{ANSWER, MAX_ANSWER, MAX_QUESTION, REFUSED};
use crate::certified::{Connection, PeerCertificate, with_length};
use crate::tls::{INQUIRY_PROTOCOL, SecureError, TimeLimits, TlsServer};
use crate::{Stream, TICK};

/// How long the asker may take to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A host with a certificate asks about this host.
#[derive(Debug)]
pub struct Inquiry {
    connection: Connection,
    peer: SocketAddr,
    certificate: PeerCertificate,
    question: String,
}

/// Why an inquiry is not accepted.
#[derive(Debug, Error)]
pub(crate) enum BadInquiry {
    #[error("preparing a connection")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Secure(#[from] SecureError),
    #[error("the question is malformed, or longer than {MAX_QUESTION} bytes")]
    Question,
}

/// Does the handshake with an asker, and reads its question.
pub(crate) fn accept_inquiry(
    stream: Stream,
    peer: SocketAddr,
    server: &TlsServer,
    limits: TimeLimits<'_>,
) -> Result<Inquiry, BadInquiry> {
    stream.set_timeout(Some(TICK))?;
    let server = server.for_protocol(INQUIRY_PROTOCOL);
    let (mut connection, certificate) = Connection::accept(stream, &server, limits)?;
    let question = connection.receive_text(MAX_QUESTION, limits)?;
    let question = question.filter(|question| !question.contains(char::is_control));
    Ok(Inquiry {
        connection,
        peer,
        certificate,
        question: question.ok_or(BadInquiry::Question)?,
    })
}

impl Inquiry {
    /// What is asked: text without control characters, and nothing more is known of it.
    pub fn question(&self) -> &str {
        &self.question
    }

    /// The asker's certificate.
    pub fn certificate(&self) -> &PeerCertificate {
        &self.certificate
    }

    /// The asker.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends the answer, or why there is none. An answer of more than [`MAX_ANSWER`] bytes is not
    /// sent: the asker is told so. Ends soon after `stop` is set.
    ///
    /// # Errors
    /// When the asker does not read it.
    pub fn answer(
        mut self,
        answer: Result<&str, &str>,
        stop: &CancelFlag,
    ) -> Result<(), SecureError> {
        let answer = answer.and_then(|text| match u32::try_from(text.len()) {
            Ok(len) if text.len() <= MAX_ANSWER => Ok((len, text)),
            _ => Err("the answer is longer than an answer may be"),
        });
        let sent = match answer {
            Ok((len, text)) => [&[ANSWER][..], &len.to_be_bytes(), text.as_bytes()].concat(),
            Err(why) => [&[REFUSED][..], &with_length(why)].concat(),
        };
        let limits = TimeLimits {
            deadline: Instant::now() + ANSWER_TIMEOUT,
            stop,
        };
        self.connection.send(&sent, limits)
    }
}
