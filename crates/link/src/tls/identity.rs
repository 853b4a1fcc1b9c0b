//! A key that this program generates, for use without an authority.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls::error::CertificatesError;
use crate::tls::fingerprint::Fingerprint;

/// The name in a self-signed certificate. It is not checked: only the key is.
pub(crate) const SELF_SIGNED_NAME: &str = "hikkoshi.invalid";

/// A private key, for one migration.
pub(crate) struct Identity(KeyPair);

impl Identity {
    /// Generates a key (ECDSA on P-256).
    pub(crate) fn generate() -> Result<Self, CertificatesError> {
        KeyPair::generate()
            .map(Self)
            .map_err(CertificatesError::unusable)
    }

    /// Copies the key.
    pub(crate) fn copy(&self) -> Result<Self, CertificatesError> {
        KeyPair::try_from(self.0.serialized_der())
            .map(Self)
            .map_err(CertificatesError::unusable)
    }

    /// The key as text: PKCS #8, in base64.
    pub(crate) fn text(&self) -> String {
        BASE64URL_NOPAD.encode(self.0.serialized_der())
    }

    /// The key of [`text`](Self::text); `None` if it is damaged.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let der = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        KeyPair::try_from(der).ok().map(Self)
    }

    /// The fingerprint of the key.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_key(&self.0.subject_public_key_info())
    }

    /// The certificate that TLS requires, signed with the key itself. The peer checks only the key
    /// in it.
    pub(crate) fn certificate(
        &self,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), CertificatesError> {
        let certificate = CertificateParams::new([SELF_SIGNED_NAME.to_owned()])
            .and_then(|params| params.self_signed(&self.0))
            .map_err(CertificatesError::unusable)?;
        let key =
            PrivateKeyDer::try_from(self.0.serialize_der()).map_err(CertificatesError::unusable)?;
        Ok((certificate.into(), key))
    }
}

/// Prints the fingerprint: the key must not be logged.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity")
            .field(&self.fingerprint())
            .finish()
    }
}
