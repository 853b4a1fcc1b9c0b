//! The TLS handshake of a connection, followed by the proof that this source was invited.

use std::io::{self, Read, Write};
use std::time::Instant;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, ExtractedSecrets, InvalidMessage};
use thiserror::Error;

use crate::tls::client_server::{TlsClient, TlsServer};
use crate::tls::error::{Utc, now};
use crate::tls::invitation::{Fingerprint, PROOF_LEN, Proof};
use crate::tls::invitation_check::ProofResult;
use crate::tls::keys::{HEADER, Key, KeyRenewal, Renew};
use crate::tls::own_certificate::readable;
use crate::tls::peer_key::fingerprint;
use crate::tls::record_decrypt::{Alert, MAX_RECORD, Opener};
use crate::tls::record_encrypt::Sealer;
use hikkoshi_linux::CancelFlag;

/// The number of bytes that a peer may send in a handshake.
const MAX_HANDSHAKE: usize = 128 << 10;

/// The size of one read.
const CHUNK: usize = 16 << 10;

/// Why a connection could not be protected.
#[derive(Debug, Error)]
pub enum SecureError {
    /// The connection failed or ended.
    #[error(
        "the connection failed during the TLS handshake (check that 'hikkoshi receive' listens \
         there, without --plaintext; both sides must use TLS, or both --plaintext)"
    )]
    Io(#[from] io::Error),
    /// The peer does not use TLS.
    #[error(
        "the peer does not speak TLS: both sides must use TLS (by invitation, or with --tls-ca), \
         or both --plaintext"
    )]
    NotTls,
    /// The destination's key is not the one in the invitation.
    #[error(
        "the destination does not have the key of the invitation: either another 'hikkoshi \
         receive' has printed it, or another host intercepts the connection; get a new invitation"
    )]
    WrongKey,
    /// The peer's certificate is not accepted.
    #[error(
        "the peer's certificate is not accepted: {}; it must be signed by an authority in the \
         file passed with --tls-ca, be valid now, and, for a destination, name the host in its \
         address; if it has extended key usages, a source's needs clientAuth, a destination's \
         serverAuth",
        readable(.0)
    )]
    Certificate(Box<rustls::Error>),
    /// The peer does not accept this side's certificate or key.
    #[error(
        "the peer does not accept this side ({0:?}; this host's clock says {clock}): with \
         certificates, this side's must be signed by an authority in the peer's --tls-ca file, and \
         be valid now; if it has extended key usages, a source's needs clientAuth, a destination's \
         serverAuth; a destination that prints an invitation needs --to at the source",
        clock = Utc(now())
    )]
    Refused(rustls::AlertDescription),
    /// The destination expects another application protocol.
    #[error(
        "the destination does not accept this kind of connection: for a 'hikkoshi receive \
         --daemon' give an invitation (--to), or a certificate with --name; for a 'hikkoshi \
         receive' leave --name out"
    )]
    OtherProtocol,
    /// The handshake failed for another reason.
    #[error("the TLS handshake failed")]
    Tls(#[source] Box<rustls::Error>),
    /// The source does not know the secret.
    #[error(
        "the source does not know the secret of the invitation that is shown here: it has another \
         invitation or a damaged copy of this one, or it was not invited"
    )]
    NotInvited,
    /// The source expects another destination's key.
    #[error(
        "the source has the invitation of another 'hikkoshi receive' (perhaps an earlier one): use \
         the invitation that is shown here"
    )]
    OtherInvitation,
    /// The source knows the secret, but another source has used the invitation.
    #[error(
        "another source has already used this invitation, which is valid for one migration: if it \
         is not the intended source, stop this 'hikkoshi receive', start it again and use the new \
         invitation"
    )]
    Used,
    /// The destination reports that the source does not know the secret.
    #[error(
        "the destination does not know the secret in the invitation: check that the invitation was \
         copied completely, or get a new one"
    )]
    WrongSecret,
    /// The destination reports that another source has used the invitation.
    #[error(
        "the invitation has been used already, by another 'hikkoshi migrate': it is valid for one \
         migration; start 'hikkoshi receive' again and use its new invitation"
    )]
    AlreadyUsed,
    /// The destination's answer to the proof is malformed.
    #[error("the destination's answer to this source's proof is malformed")]
    MalformedVerdict,
    /// The time limit has passed, or this side was asked to stop.
    #[error("the peer did not finish the TLS handshake in time")]
    TimedOut,
}

impl From<rustls::Error> for SecureError {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        match error {
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                Self::WrongKey
            }
            Error::InvalidCertificate(_) | Error::NoCertificatesPresented => {
                Self::Certificate(Box::new(error))
            }
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::OtherProtocol,
            Error::AlertReceived(alert) => Self::Refused(alert),
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            ) => Self::NotTls,
            error => Self::Tls(Box::new(error)),
        }
    }
}

/// The time limits of a handshake.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimits<'a> {
    /// When the handshake times out.
    pub deadline: Instant,
    /// Setting this ends the handshake early.
    pub stop: &'a CancelFlag,
}

impl TimeLimits<'_> {
    /// Repeats `call` until it succeeds or fails for another reason than the socket's timeout.
    pub(crate) fn retry(self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            if Instant::now() > self.deadline || self.stop.is_cancelled() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match call() {
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                other => return other,
            }
        }
    }

    fn write_all(self, socket: &mut impl Write, mut bytes: &[u8]) -> Result<(), SecureError> {
        while !bytes.is_empty() {
            match self.retry(|| socket.write(bytes)).map_err(or_timed_out)? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                written => bytes = bytes.get(written..).unwrap_or_default(),
            }
        }
        Ok(())
    }
}

fn or_timed_out(error: io::Error) -> SecureError {
    match error.kind() {
        io::ErrorKind::TimedOut => SecureError::TimedOut,
        _ => SecureError::Io(error),
    }
}

/// Does a source's handshake on `socket`, whose calls must not block for long. With an invitation,
/// it includes the proof and the destination's answer. A destination with certificates reports a
/// refused certificate only at the first read after it.
///
/// # Errors
/// See [`SecureError`].
pub(crate) fn connect<S: Read + Write>(
    client: &TlsClient,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<(Opener, Sealer), SecureError> {
    let connection = UnbufferedClientConnection::new(client.config.clone(), client.name.clone())?;
    let accepts = |protocol: &[u8]| client.accepts(protocol);
    let (mut opener, mut sealer, _) = run_handshake(connection, accepts, socket, limits)?;
    let Some(proof) = client.proof() else {
        return Ok((opener, sealer));
    };
    send(&mut sealer, &proof.0, socket, limits)?;
    let mut verdict = [0];
    receive(&mut opener, &mut verdict, socket, limits)?;
    match ProofResult::from_byte(verdict[0]) {
        Some(ProofResult::Accepted) => Ok((opener, sealer)),
        Some(ProofResult::WrongSecret) => Err(SecureError::WrongSecret),
        Some(ProofResult::Used) => Err(SecureError::AlreadyUsed),
        None => Err(SecureError::MalformedVerdict),
    }
}

/// Does a destination's handshake on `socket`, whose calls must not block for long. With an
/// invitation, the source must prove that it was invited; then this also returns the fingerprint of
/// the source's key.
///
/// # Errors
/// See [`SecureError`].
pub(crate) fn accept<S: Read + Write>(
    server: &TlsServer,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<(Opener, Sealer, Option<Fingerprint>), SecureError> {
    let connection = UnbufferedServerConnection::new(server.config.clone())?;
    let accepts = |protocol: &[u8]| server.accepts(protocol);
    let keys = run_handshake(connection, accepts, socket, limits);
    let (mut opener, mut sealer, peer) = keys.map_err(|error| match error {
        // The source checks only the key (`peer_key.rs`).
        SecureError::Refused(AlertDescription::AccessDenied) if server.invites() => {
            SecureError::OtherInvitation
        }
        error => error,
    })?;
    if !server.invites() {
        return Ok((opener, sealer, None));
    }
    let certificate = peer.certificate;
    let certificate = certificate.ok_or(rustls::Error::NoCertificatesPresented)?;
    let source = fingerprint(&certificate)?;
    let mut proof = [0; PROOF_LEN];
    receive(&mut opener, &mut proof, socket, limits)?;
    let verdict = server.check(source, &Proof(proof));
    send(&mut sealer, &[verdict.to_byte()], socket, limits)?;
    match verdict {
        ProofResult::Accepted => Ok((opener, sealer, Some(source))),
        ProofResult::WrongSecret => Err(SecureError::NotInvited),
        ProofResult::Used => Err(SecureError::Used),
    }
}

/// Does a destination's handshake on `socket` with a source that has a certificate of an authority.
/// Returns that certificate, and which of the server's application protocols the source uses.
///
/// # Errors
/// See [`SecureError`].
pub(crate) fn accept_certified<S: Read + Write>(
    server: &TlsServer,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<Ends<(CertificateDer<'static>, Vec<u8>)>, SecureError> {
    let connection = UnbufferedServerConnection::new(server.config.clone())?;
    let accepts = |protocol: &[u8]| server.accepts(protocol);
    let (opener, sealer, peer) = run_handshake(connection, accepts, socket, limits)?;
    let certificate = peer.certificate;
    let certificate = certificate.ok_or(rustls::Error::NoCertificatesPresented)?;
    Ok((opener, sealer, (certificate, peer.protocol)))
}

/// Sends plain bytes.
pub(crate) fn send<S: Write>(
    sealer: &mut Sealer,
    plain: &[u8],
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<(), SecureError> {
    let mut sealed = Vec::with_capacity(Sealer::sealed_len(plain.len()));
    sealer.seal(plain, &[], &mut sealed)?;
    limits.write_all(socket, &sealed)
}

/// Reads plain bytes until `buffer` is full; later bytes stay in `opener`.
pub(crate) fn receive<S: Read>(
    opener: &mut Opener,
    buffer: &mut [u8],
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<(), SecureError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let read = opener.read(&mut buffer[filled..], |raw| {
            limits.retry(|| socket.read(raw))
        });
        match read {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(n) => filled += n,
            Err(error) => {
                let alert = error.get_ref().and_then(|e| e.downcast_ref::<Alert>());
                return Err(match alert {
                    Some(&Alert(why)) => SecureError::Refused(why),
                    None => or_timed_out(error),
                });
            }
        }
    }
    Ok(())
}

/// The handshake of either side.
trait HandshakeState: Sized {
    type Data: Send + 'static;

    fn process<'c, 'i>(&'c mut self, raw: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn certificate(&self) -> Option<CertificateDer<'static>>;
    fn protocol(&self) -> Option<&[u8]>;
    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Renew>), rustls::Error>;
}

macro_rules! impl_handshake_state {
    ($connection:ty, $data:ty) => {
        impl HandshakeState for $connection {
            type Data = $data;

            fn process<'c, 'i>(
                &'c mut self,
                raw: &'i mut [u8],
            ) -> UnbufferedStatus<'c, 'i, Self::Data> {
                self.process_tls_records(raw)
            }

            fn certificate(&self) -> Option<CertificateDer<'static>> {
                self.peer_certificates()?.first().cloned()
            }

            fn protocol(&self) -> Option<&[u8]> {
                self.alpn_protocol()
            }

            fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Renew>), rustls::Error> {
                let (secrets, connection) = self.dangerous_into_kernel_connection()?;
                Ok((secrets, Box::new(connection)))
            }
        }
    };
}

impl_handshake_state!(UnbufferedClientConnection, ClientConnectionData);
impl_handshake_state!(UnbufferedServerConnection, ServerConnectionData);

/// The keys of a connection, and what is known of the peer.
type Ends<Peer> = (Opener, Sealer, Peer);

/// The other side of a complete handshake.
struct Peer {
    certificate: Option<CertificateDer<'static>>,
    /// The application protocol.
    protocol: Vec<u8>,
}

/// Runs a handshake until it is complete. The application protocol must be one that `accepts`
/// accepts.
fn run_handshake<C: HandshakeState, S: Read + Write>(
    mut connection: C,
    accepts: impl Fn(&[u8]) -> bool,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<Ends<Peer>, SecureError> {
    let mut received = ReceiveBuffer::default();
    let mut outgoing = Vec::new();
    loop {
        let UnbufferedStatus { discard, state, .. } = connection.process(received.passed());
        let more = match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(&mut outgoing, |room| data.encode(room))?;
                false
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                limits.write_all(socket, &outgoing)?;
                outgoing.clear();
                data.done();
                false
            }
            Ok(ConnectionState::BlockedHandshake) => true,
            Ok(ConnectionState::WriteTraffic(_)) => {
                received.discard(discard);
                break;
            }
            Ok(other) => {
                let text = format!("{other:?} in the handshake");
                return Err(rustls::Error::General(text).into());
            }
            Err(error) => {
                // Sends the reason to the peer; an error here changes nothing.
                let _ = send_alert(&mut connection, &mut received, socket, limits);
                return Err(error.into());
            }
        };
        received.discard(discard);
        if more {
            received.next(socket, limits)?;
        }
    }
    // rustls accepts a peer that offers no application protocol at all.
    let protocol = connection.protocol().filter(|protocol| accepts(protocol));
    let protocol = protocol
        .ok_or(rustls::Error::NoApplicationProtocol)?
        .to_vec();
    let certificate = connection.certificate();
    let (secrets, renew) = connection.finish()?;
    let renewal = KeyRenewal::new(renew);
    let opener = Opener::new(Key::new(secrets.rx)?, renewal.clone(), received.rest());
    Ok((
        opener,
        Sealer::new(Key::new(secrets.tx)?, renewal),
        Peer {
            certificate,
            protocol,
        },
    ))
}

/// Sends the alert of a failed handshake, which is the next state. A further call would make rustls
/// parse the malformed bytes again.
fn send_alert<C: HandshakeState, S: Write>(
    connection: &mut C,
    received: &mut ReceiveBuffer,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<(), SecureError> {
    let mut outgoing = Vec::new();
    if let Ok(ConnectionState::EncodeTlsData(mut data)) =
        connection.process(received.passed()).state
    {
        encode(&mut outgoing, |room| data.encode(room))?;
    }
    limits.write_all(socket, &outgoing)
}

/// Appends the output of `encode` to `outgoing`.
fn encode(
    outgoing: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), SecureError> {
    let from = outgoing.len();
    let mut room = 0;
    loop {
        outgoing.resize(from + room, 0);
        match encode(&mut outgoing[from..]) {
            Ok(written) => {
                outgoing.truncate(from + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size }))
                if required_size > room =>
            {
                room = required_size;
            }
            Err(error) => return Err(io::Error::other(error).into()),
        }
    }
}

/// Bytes received from the socket. rustls gets them record by record, because bytes after the
/// handshake are not for rustls.
#[derive(Default)]
struct ReceiveBuffer {
    raw: Vec<u8>,
    passed: usize,
}

impl ReceiveBuffer {
    fn passed(&mut self) -> &mut [u8] {
        &mut self.raw[..self.passed]
    }

    fn discard(&mut self, bytes: usize) {
        let bytes = bytes.min(self.passed);
        self.raw.drain(..bytes);
        self.passed -= bytes;
    }

    /// The bytes that rustls has not got.
    fn rest(&self) -> &[u8] {
        &self.raw[self.passed..]
    }

    /// Passes on one more record, and reads it from the socket if necessary.
    fn next(&mut self, socket: &mut impl Read, limits: TimeLimits<'_>) -> Result<(), SecureError> {
        loop {
            let rest = self.rest();
            let whole = match rest {
                [20..=23, 3, _, high, low, ..] => {
                    let len = usize::from(u16::from_be_bytes([*high, *low]));
                    if len > MAX_RECORD {
                        return Err(rustls::Error::from(InvalidMessage::MessageTooLarge).into());
                    }
                    HEADER + len
                }
                // Not a record: rustls reports the error, also to the peer.
                [20..=23, 3, ..] | [20..=23] | [] => HEADER,
                other => other.len().min(HEADER),
            };
            if rest.len() >= whole {
                self.passed += whole;
                return Ok(());
            }
            if self.raw.len() >= MAX_HANDSHAKE {
                let text = "the peer sent too much data in the handshake";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
            }
            let filled = self.raw.len();
            self.raw.resize(filled + CHUNK, 0);
            let read = limits.retry(|| socket.read(&mut self.raw[filled..]));
            self.raw.truncate(filled + *read.as_ref().unwrap_or(&0));
            if read.map_err(or_timed_out)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}
