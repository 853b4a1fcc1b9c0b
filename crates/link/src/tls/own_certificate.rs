//! Checks this side's own certificate before any connection is made. The other side would only
//! report that it does not accept it.

use std::path::Path;
use std::sync::Arc;

use error_reporter::Report;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error};

use crate::tls::certificates::Certificates;
use crate::tls::error::{CertificateProblem, CertificatesError, Utc, Validity, now};

/// The side that a certificate is used on, for its extended key usages (RFC 5280, section
/// 4.2.1.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateSide {
    /// Requires `clientAuth`, if the certificate has extended key usages.
    Source,
    /// Requires `serverAuth`, if the certificate has extended key usages.
    Destination,
}

/// The text of an error; an error about a certificate's validity contains the times.
pub(crate) fn readable(error: &Error) -> String {
    if let Error::InvalidCertificate(about) = error
        && let Some(validity) = Validity::of_refusal(about)
    {
        return format!("{validity} (this host's clock says {})", Utc(now()));
    }
    Report::new(error).to_string()
}

/// Checks that `certificates` can be presented to the other side.
///
/// That no authority in the file has signed the certificate is not an error: the other side may
/// have another authority's file.
pub(crate) fn check(
    certificates: &Certificates,
    provider: &Arc<CryptoProvider>,
    side: CertificateSide,
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

fn problem(
    error: &CertificateError,
    path: &Path,
    side: CertificateSide,
) -> Option<CertificateProblem> {
    let path = path.to_owned();
    if let Some(validity) = Validity::of_refusal(error) {
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
                CertificateSide::Source => ("clientAuth", "a source"),
                CertificateSide::Destination => ("serverAuth", "a destination"),
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
    side: CertificateSide,
) -> Result<(), Error> {
    let Some((own, between)) = certificates.chain.split_first() else {
        return Err(Error::NoCertificatesPresented);
    };
    let parsed = ParsedCertificate::try_from(own)?;
    let (roots, now) = (&certificates.roots, UnixTime::now());
    match side {
        CertificateSide::Source => {
            let roots = Arc::new(roots.clone());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
            let verifier =
                verifier.map_err(|error| Error::General(Report::new(&error).to_string()))?;
            verifier.verify_client_cert(own, between, now).map(drop)
        }
        CertificateSide::Destination => verify_server_cert_signed_by_trust_anchor(
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
