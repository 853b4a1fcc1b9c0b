//! Checks this side's own certificate before any connection is made. The other side would only
//! report that it does not accept it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error};
use thiserror::Error as ThisError;

use super::certificates::{Certificates, CertificatesError};

/// The side that a certificate is used on, for its extended key usages (RFC 5280, section
/// 4.2.1.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Requires `clientAuth`, if the certificate has extended key usages.
    Source,
    /// Requires `serverAuth`, if the certificate has extended key usages.
    Destination,
}

/// Why the other side would not accept this side's certificate.
#[derive(Debug, ThisError)]
pub enum CertificateProblem {
    /// It has expired or is not valid yet, by this host's clock.
    #[error("{}: {} (this host's clock says {})", path.display(), validity, Utc(*now))]
    Time {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong.
        validity: Validity,
        /// This host's time, seconds since 1970.
        now: u64,
    },
    /// It is an X.509 version 1 certificate.
    #[error(
        "{}: this is an X.509 version 1 certificate, and TLS needs version 3, with the host's name \
         as subjectAltName. 'openssl x509 -req' creates version 1 unless it is given extensions \
         (-extfile FILE, where FILE contains subjectAltName=DNS:HOST)",
        path.display()
    )]
    Version1 {
        /// The certificate's file.
        path: PathBuf,
    },
    /// It cannot be parsed.
    #[error("{}: this certificate cannot be used: {error}", path.display())]
    Form {
        /// The certificate's file.
        path: PathBuf,
        /// Why not.
        error: Error,
    },
    /// Its extended key usages do not include the required one.
    #[error(
        "{}: its extended key usages must contain {usage} for {whom}",
        path.display()
    )]
    Purpose {
        /// The certificate's file.
        path: PathBuf,
        /// The extended key usage that is missing.
        usage: &'static str,
        /// Which side this is.
        whom: &'static str,
    },
}

/// How a certificate is outside its validity period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It expired at this time, if known, in seconds since 1970.
    Expired(Option<u64>),
    /// It is valid from this time, if known, in seconds since 1970.
    NotYet(Option<u64>),
}

impl Validity {
    /// The validity error in `error`, if it is one.
    fn of(error: &CertificateError) -> Option<Self> {
        Some(match error {
            CertificateError::Expired => Self::Expired(None),
            CertificateError::ExpiredContext { not_after, .. } => {
                Self::Expired(Some(not_after.as_secs()))
            }
            CertificateError::NotValidYet => Self::NotYet(None),
            CertificateError::NotValidYetContext { not_before, .. } => {
                Self::NotYet(Some(not_before.as_secs()))
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(None) => f.write_str("it has expired"),
            Self::Expired(Some(at)) => write!(f, "it expired on {}", Utc(*at)),
            Self::NotYet(None) => f.write_str("it is not valid yet"),
            Self::NotYet(Some(at)) => write!(f, "it is valid only from {}", Utc(*at)),
        }
    }
}

/// The text of an error; an error about a certificate's validity contains the times.
pub(super) fn readable(error: &Error) -> String {
    if let Error::InvalidCertificate(about) = error
        && let Some(validity) = Validity::of(about)
    {
        return format!("{validity} (this host's clock says {})", Utc(now()));
    }
    error.to_string()
}

/// This host's time, in seconds since 1970.
pub(super) fn now() -> u64 {
    UnixTime::now().as_secs()
}

/// A time in UTC: `2026-11-22 20:12:32 UTC`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Utc(pub(super) u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 86_400;
        let (days, second) = (self.0 / DAY, self.0 % DAY);
        // Years that begin in March: the leap day is the last day. 719,468 days lie between
        // 0000-03-01 and 1970-01-01; 400 years have 146,097 days.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = 400 * era + year + u64::from(month <= 2);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let second = second % 60;
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
        )
    }
}

/// Checks that `certificates` can be presented to the other side.
///
/// That no authority in the file has signed the certificate is not an error: the other side may
/// have another authority's file.
pub(super) fn check(
    certificates: &Certificates,
    provider: &Arc<CryptoProvider>,
    side: Side,
) -> Result<(), CertificatesError> {
    let path = &certificates.files.cert;
    match verify(certificates, provider, side) {
        Ok(()) => Ok(()),
        Err(Error::InvalidCertificate(error)) => match problem(&error, path, side) {
            Some(why) => Err(why.into()),
            None => Ok(()),
        },
        Err(error) => Err(CertificatesError::unusable(error)),
    }
}

fn problem(error: &CertificateError, path: &Path, side: Side) -> Option<CertificateProblem> {
    let path = path.to_owned();
    if let Some(validity) = Validity::of(error) {
        let now = now();
        return Some(CertificateProblem::Time {
            path,
            validity,
            now,
        });
    }
    match error {
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            let (usage, whom) = match side {
                Side::Source => ("clientAuth", "a source"),
                Side::Destination => ("serverAuth", "a destination"),
            };
            Some(CertificateProblem::Purpose { path, usage, whom })
        }
        // rustls has no error variant for it.
        CertificateError::Other(other) if other.to_string().contains("UnsupportedCertVersion") => {
            Some(CertificateProblem::Version1 { path })
        }
        CertificateError::BadEncoding | CertificateError::Other(_) => {
            Some(CertificateProblem::Form {
                path,
                error: Error::InvalidCertificate(error.clone()),
            })
        }
        _ => None,
    }
}

/// Does the check that the other side will do, if it trusts the same authorities.
fn verify(
    certificates: &Certificates,
    provider: &Arc<CryptoProvider>,
    side: Side,
) -> Result<(), Error> {
    let Some((own, between)) = certificates.chain.split_first() else {
        return Err(Error::NoCertificatesPresented);
    };
    let parsed = ParsedCertificate::try_from(own)?;
    let (roots, now) = (&certificates.roots, UnixTime::now());
    match side {
        Side::Source => {
            let roots = Arc::new(roots.clone());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
            let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
            verifier.verify_client_cert(own, between, now).map(drop)
        }
        Side::Destination => verify_server_cert_signed_by_trust_anchor(
            &parsed,
            roots,
            between,
            now,
            provider.signature_verification_algorithms.all,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_displayed_as_dates() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (978_307_200, "2001-01-01 00:00:00 UTC"),
            (1_795_378_352, "2026-11-22 20:12:32 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(Utc(seconds).to_string(), date);
        }
    }
}
