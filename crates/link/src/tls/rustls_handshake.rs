//! The handshake of either side, by rustls.

use std::io::{self, Read, Write};

use rustls::ExtractedSecrets;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};

use crate::tls::keys::{Key, KeyRenewal, Renew};
use crate::tls::receive_buffer::ReceiveBuffer;
use crate::tls::record_decrypt::Opener;
use crate::tls::record_encrypt::Sealer;
use crate::tls::secure_error::SecureError;
use crate::tls::time_limits::TimeLimits;

/// The handshake of either side.
pub(super) trait HandshakeState: Sized {
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
pub(crate) type Ends<Peer> = (Opener, Sealer, Peer);

/// Runs a handshake until it is complete. Returns the peer's certificate, if it has one. The
/// application protocol must be one that `accepts` accepts.
pub(super) fn run_handshake<C: HandshakeState, S: Read + Write>(
    mut connection: C,
    accepts: impl Fn(&[u8]) -> bool,
    socket: &mut S,
    limits: TimeLimits<'_>,
) -> Result<Ends<Option<CertificateDer<'static>>>, SecureError> {
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
    if !connection.protocol().is_some_and(accepts) {
        return Err(rustls::Error::NoApplicationProtocol.into());
    }
    let certificate = connection.certificate();
    let (secrets, renew) = connection.finish()?;
    let renewal = KeyRenewal::new(renew);
    let opener = Opener::new(Key::new(secrets.rx)?, renewal.clone(), received.rest());
    Ok((
        opener,
        Sealer::new(Key::new(secrets.tx)?, renewal),
        certificate,
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
