//! Why certificates cannot be used.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

use rustls::pki_types::{InvalidDnsNameError, UnixTime, pem};
use rustls::{CertificateError, Error};
use thiserror::Error as ThisError;

use crate::tls::certificate_files::Files;

/// Why certificates cannot be used.
#[derive(Debug, ThisError)]
pub enum CertificatesError {
    /// A file cannot be read, or is not a PEM file.
    #[error("reading the {what} in {} (it must be a PEM file)", path.display())]
    Read {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// A PEM file without the expected content.
    #[error("there is no {what} in {}; it must be a PEM file that contains one", path.display())]
    Empty {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The private key is encrypted with a passphrase.
    #[error(
        "the private key in {} is encrypted, and hikkoshi does not ask for passphrases: decrypt it \
         into a file that only this user can read ('umask 077; openssl pkey -in {} -out KEY')",
        path.display(), path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// The other side would not accept this side's certificate.
    #[error("this side's certificate")]
    CertificateProblem(#[from] CertificateProblem),
    /// The certificate and the key do not belong together.
    #[error(
        "the private key in {} does not belong to the certificate in {}: the first certificate in \
         that file must be this side's own, made for this key",
        key.display(), cert.display()
    )]
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// An authority's certificate that cannot be used.
    #[error("the authority's certificate in {}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The destination's host name cannot be in a certificate.
    #[error("looking for the destination's host name '{host}' in its certificate")]
    HostName {
        /// The name.
        host: String,
        /// The cause.
        source: InvalidDnsNameError,
    },
    /// The certificate or the key cannot be used.
    #[error("using the certificate and its key")]
    Unusable(#[source] Box<dyn StdError + Send + Sync>),
}

impl CertificatesError {
    pub(crate) fn unusable(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Unusable(error.into())
    }

    /// The error for a certificate and key of `files` that rustls refuses.
    pub(crate) fn pair(error: rustls::Error, files: &Files) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => Self::OtherKey {
                key: files.key.clone(),
                cert: files.cert.clone(),
            },
            error => Self::unusable(error),
        }
    }
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
    #[error("{}: this certificate cannot be used", path.display())]
    Form {
        /// The certificate's file.
        path: PathBuf,
        /// Why not.
        #[source]
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
    pub(super) fn of_refusal(error: &CertificateError) -> Option<Self> {
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

/// This host's time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    UnixTime::now().as_secs()
}

/// A time in UTC: `2026-11-22 20:12:32 UTC`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Utc(pub(crate) u64);

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
