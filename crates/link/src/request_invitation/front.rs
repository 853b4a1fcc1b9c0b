//! The front's side: reads a request, and answers it later.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use hikkoshi_linux::CancelFlag;
use thiserror::Error;

use super::{INVITED, MAX_NAME, REFUSED};
use crate::certified::{Connection, PeerCertificate, with_length};
use crate::link_handshake::limits;
use crate::tls::{REQUEST_PROTOCOL, SecureError, TimeLimits, TlsServer};
use crate::{Stream, TICK};

/// A source with a certificate asks for an invitation.
#[derive(Debug)]
pub struct InvitationRequest {
    connection: Connection,
    peer: SocketAddr,
    certificate: PeerCertificate,
    name: String,
}

/// Why a request is not accepted.
#[derive(Debug, Error)]
pub(crate) enum BadRequest {
    #[error("preparing a connection")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Secure(#[from] SecureError),
    #[error("the name of the guest is malformed, or longer than {MAX_NAME} bytes")]
    Name,
}

/// Does the handshake with a source, and reads its request.
pub(crate) fn accept_request(
    stream: Stream,
    peer: SocketAddr,
    server: &TlsServer,
    limits: TimeLimits<'_>,
) -> Result<InvitationRequest, BadRequest> {
    stream.set_timeout(Some(TICK))?;
    let server = server.for_protocol(REQUEST_PROTOCOL);
    let (mut connection, certificate) = Connection::accept(stream, &server, limits)?;
    let name = connection.receive_text(MAX_NAME, limits)?;
    let name = name.filter(|name| !name.contains(char::is_control));
    Ok(InvitationRequest {
        connection,
        peer,
        certificate,
        name: name.ok_or(BadRequest::Name)?,
    })
}

impl InvitationRequest {
    /// The name of the guest: text without control characters, and nothing more is known of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source's certificate.
    pub fn certificate(&self) -> &PeerCertificate {
        &self.certificate
    }

    /// The source.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The connection for the receiver that is started for this request: the source closes it when
    /// it has moved its guest, or has given up.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn kept_connection(&self) -> io::Result<OwnedFd> {
        self.connection.stream.as_fd().try_clone_to_owned()
    }

    /// Sends the invitation, or why there is none. Ends soon after `stop` is set.
    ///
    /// # Errors
    /// When the source does not read it.
    pub fn answer(
        mut self,
        invited: Result<&str, &str>,
        stop: &CancelFlag,
    ) -> Result<(), SecureError> {
        let (kind, text) = match invited {
            Ok(invitation) => (INVITED, invitation),
            Err(why) => (REFUSED, why),
        };
        let answer = [&[kind][..], &with_length(text)].concat();
        self.connection.send(&answer, limits(stop))
    }
}
