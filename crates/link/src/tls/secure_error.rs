//! Why a connection could not be protected.

use std::io;

use rustls::{AlertDescription, CertificateError, InvalidMessage};
use thiserror::Error;

use crate::tls::error::{Utc, now};
use crate::tls::own_certificate::readable;

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
        "the destination does not accept this kind of connection: for a 'hikkoshi \
         daemon' give an invitation (--to), or a certificate with --name; for a 'hikkoshi \
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
