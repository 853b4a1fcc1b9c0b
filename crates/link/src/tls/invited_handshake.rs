//! The TLS handshake of a connection, followed by the proof that this source was invited.

use std::io::{self, Read, Write};

use rustls::AlertDescription;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;

use crate::tls::config::{TlsClient, TlsServer};
use crate::tls::fingerprint::Fingerprint;
use crate::tls::invitation::{PROOF_LEN, Proof};
use crate::tls::peer_key::fingerprint;
use crate::tls::record_decrypt::{Alert, Opener};
use crate::tls::record_encrypt::Sealer;
use crate::tls::rustls_handshake::{Ends, run_handshake};
use crate::tls::secure_error::SecureError;
use crate::tls::source_authorization::ProofResult;
use crate::tls::time_limits::{TimeLimits, or_timed_out};

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
    let (mut opener, mut sealer, certificate) = keys.map_err(|error| match error {
        // The source checks only the key (`peer_key.rs`).
        SecureError::Refused(AlertDescription::AccessDenied) if server.invites() => {
            SecureError::OtherInvitation
        }
        error => error,
    })?;
    if !server.invites() {
        return Ok((opener, sealer, None));
    }
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
/// Returns that certificate.
///
/// # Errors
/// See [`SecureError`].
pub(crate) fn accept_certified<S: Read + Write>(
    server: &TlsServer,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<Ends<CertificateDer<'static>>, SecureError> {
    let connection = UnbufferedServerConnection::new(server.config.clone())?;
    let accepts = |protocol: &[u8]| server.accepts(protocol);
    let (opener, sealer, certificate) = run_handshake(connection, accepts, socket, limits)?;
    let certificate = certificate.ok_or(rustls::Error::NoCertificatesPresented)?;
    Ok((opener, sealer, certificate))
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
