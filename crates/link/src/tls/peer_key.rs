//! Which keys are accepted without an authority.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    SignatureScheme,
};

use crate::tls::fingerprint::Fingerprint;

/// The fingerprint of the key in a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> Result<Fingerprint, Error> {
    let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
    Ok(Fingerprint::of_key(&key))
}

/// A source accepts one key, in any certificate.
#[derive(Debug)]
pub(crate) struct PinnedKey {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl PinnedKey {
    pub(crate) fn new(fingerprint: Fingerprint, provider: Arc<CryptoProvider>) -> Self {
        Self {
            fingerprint,
            provider,
        }
    }
}

/// A destination accepts every key in the handshake:
/// [`Authorization`](crate::tls::source_authorization::Authorization) decides afterwards.
///
/// This is also so once only one source's key is accepted. To refuse other keys here would save one
/// signature verification of a whole handshake, and the peer would receive an alert instead of the
/// reason (unknown secret, or invitation used). Only a peer that has proved that it has a key gets
/// the reason.
#[derive(Debug)]
pub(crate) struct AcceptAnyKey(Arc<CryptoProvider>);

impl AcceptAnyKey {
    pub(crate) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self(provider)
    }
}

/// Checks that the peer has the private key, not only the certificate.
fn has_key(
    provider: &CryptoProvider,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let algorithms = &provider.signature_verification_algorithms;
    verify_tls13_signature(message, certificate, signature, algorithms)
}

/// TLS 1.2 is not offered.
fn not_tls12() -> Error {
    Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered)
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint(end_entity)? == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        has_key(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for AcceptAnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        fingerprint(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        has_key(&self.0, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
