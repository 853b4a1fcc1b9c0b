//! TLS configuration of both sides.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use crate::Address;
use crate::tls::certificate_files::Files;
use crate::tls::certificates::Certificates;
use crate::tls::credentials::{Destination, DestinationCredentials, Source, SourceCredentials};
use crate::tls::error::CertificatesError;
use crate::tls::fingerprint::Fingerprint;
use crate::tls::identity::{Identity, SELF_SIGNED_NAME};
use crate::tls::invitation::{Invitation, Proof, Secret};
use crate::tls::own_certificate;
use crate::tls::own_certificate::CertificateSide;
use crate::tls::peer_key::{AcceptAnyKey, PinnedKey};
use crate::tls::route::Route;
use crate::tls::source_authorization::{Authorization, ProofResult};

/// The application protocol (ALPN): the handshake fails with other TLS programs.
pub(crate) const PROTOCOL: &[u8] = b"hikkoshi/1";

/// How a destination protects the connections that it accepts.
#[derive(Clone)]
pub struct TlsServer {
    pub(crate) config: Arc<ServerConfig>,
    authentication: ServerAuthentication,
}

#[derive(Clone)]
enum ServerAuthentication {
    /// Sources must prove that they were invited.
    Invitation {
        key: Arc<Identity>,
        authorization: Arc<Authorization>,
    },
    Authority(Files),
}

/// How a source protects the connections that it makes.
#[derive(Clone)]
pub struct TlsClient {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
    authentication: ClientAuthentication,
}

#[derive(Clone)]
enum ClientAuthentication {
    Invitation {
        key: Arc<Identity>,
        destination: Fingerprint,
        proof: Proof,
    },
    Authority {
        files: Files,
        host: String,
    },
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

/// ring's algorithms, with the cipher suites in the order of their speed on this processor.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let (aes, chacha) = (
        [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384],
        [TLS13_CHACHA20_POLY1305_SHA256],
    );
    let cipher_suites = if aes_is_fast() {
        [&aes[..], &chacha[..]].concat()
    } else {
        [&chacha[..], &aes[..]].concat()
    };
    Arc::new(CryptoProvider {
        cipher_suites,
        ..rustls::crypto::ring::default_provider()
    })
}

fn aes_is_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    return true;
}

impl TlsServer {
    /// A server with a new key and a new secret: see [`invitation`](Self::invitation).
    ///
    /// # Errors
    /// In practice, when the system has no random numbers.
    pub fn inviting() -> Result<Self, CertificatesError> {
        let secret = Secret::random().map_err(CertificatesError::unusable)?;
        Self::with(Identity::generate()?, secret, None)
    }

    /// A server with an existing key and secret; `source` is the source of the migration under way.
    pub(crate) fn with(
        key: Identity,
        secret: Secret,
        source: Option<Fingerprint>,
    ) -> Result<Self, CertificatesError> {
        let (certificate, private) = key.certificate()?;
        let provider = provider();
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(CertificatesError::unusable)?
            // Any key is accepted here: the authorization follows after the handshake.
            .with_client_cert_verifier(Arc::new(AcceptAnyKey::new(provider)))
            .with_single_cert(vec![certificate], private)
            .map_err(CertificatesError::unusable)?;
        let authorization = Authorization::new(secret, key.fingerprint(), source);
        Ok(Self {
            config: finish_server(config),
            authentication: ServerAuthentication::Invitation {
                key: Arc::new(key),
                authorization: Arc::new(authorization),
            },
        })
    }

    /// A server with a certificate of an authority; clients must have one, too.
    ///
    /// # Errors
    /// When the certificate cannot be used, for example because it has expired.
    pub fn certified(certificates: Certificates) -> Result<Self, CertificatesError> {
        own_certificate::check(&certificates, &provider(), CertificateSide::Destination)?;
        Self::unchecked(certificates)
    }

    /// Does not check the certificate first, as [`certified`](Self::certified) does.
    pub(crate) fn unchecked(certificates: Certificates) -> Result<Self, CertificatesError> {
        let Certificates {
            roots,
            chain,
            key,
            files,
        } = certificates;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(CertificatesError::unusable)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(CertificatesError::unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| CertificatesError::pair(error, &files))?;
        Ok(Self {
            config: finish_server(config),
            authentication: ServerAuthentication::Authority(files),
        })
    }

    /// This server for connections that are no links (`request_invitation/`, `inquiry/`).
    pub(crate) fn for_protocol(&self, protocol: &[u8]) -> Self {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Self {
            config: Arc::new(config),
            authentication: self.authentication.clone(),
        }
    }

    /// Whether a connection may have this application protocol.
    pub(crate) fn accepts(&self, protocol: &[u8]) -> bool {
        let mut offered = self.config.alpn_protocols.iter();
        offered.any(|offered| offered == protocol)
    }

    /// The invitation to show to the source's operator, if this destination uses invitations;
    /// `address` is where the source can reach it.
    pub fn invitation(&self, address: Address) -> Option<Invitation> {
        let ServerAuthentication::Invitation { key, authorization } = &self.authentication else {
            return None;
        };
        let secret = authorization.secret().clone();
        Some(Invitation::new(key.fingerprint(), secret, address))
    }

    /// The credentials to save for a restart. Once a migration is under way they must be saved
    /// again.
    ///
    /// # Errors
    /// When the key cannot be serialized; in practice never.
    pub fn credentials(&self) -> Result<DestinationCredentials, CertificatesError> {
        Ok(DestinationCredentials(match &self.authentication {
            ServerAuthentication::Invitation { key, authorization } => Destination::Inviting {
                key: Box::new(key.copy()?),
                secret: authorization.secret().clone(),
                source: authorization.source(),
            },
            ServerAuthentication::Authority(files) => Destination::Certified {
                files: files.clone(),
            },
        }))
    }

    /// Accepts from now on only the source with this key; `None`: any invited source. Has no effect
    /// with certificates.
    pub(crate) fn accept_only(&self, source: Option<Fingerprint>) {
        if let ServerAuthentication::Invitation { authorization, .. } = &self.authentication {
            authorization.accept_only(source);
        }
    }

    /// Whether sources must prove that they were invited.
    pub(crate) fn invites(&self) -> bool {
        matches!(self.authentication, ServerAuthentication::Invitation { .. })
    }

    /// Decides about a source that has the key `source` and sent `proof`.
    pub(crate) fn check(&self, source: Fingerprint, proof: &Proof) -> ProofResult {
        match &self.authentication {
            ServerAuthentication::Invitation { authorization, .. } => {
                authorization.check(source, proof)
            }
            ServerAuthentication::Authority(_) => ProofResult::Accepted,
        }
    }
}

fn finish_server(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Every link does a full handshake: no secret outlives the migration.
    config.send_tls13_tickets = 0;
    // This crate seals and opens the records (`keys.rs`).
    config.enable_secret_extraction = true;
    Arc::new(config)
}

/// With the `route` to the destination, if it may be one of several.
fn finish_client(mut config: ClientConfig, route: Option<Route>) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.alpn_protocols.extend(route.map(Route::label));
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_secret_extraction = true;
    Arc::new(config)
}

impl TlsClient {
    /// A client that connects only to the destination that printed `invitation`, with a new key.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn invited(invitation: &Invitation) -> Result<Self, CertificatesError> {
        let key = Identity::generate()?;
        let destination = invitation.fingerprint;
        let proof = invitation.secret.prove(key.fingerprint(), destination);
        Self::with(key, destination, proof)
    }

    /// A client for the destination with this key; `proof` was made for this side's key.
    pub(crate) fn with(
        key: Identity,
        destination: Fingerprint,
        proof: Proof,
    ) -> Result<Self, CertificatesError> {
        let provider = provider();
        let pinned = PinnedKey::new(destination, Arc::clone(&provider));
        let (certificate, private) = key.certificate()?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(CertificatesError::unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_client_auth_cert(vec![certificate], private)
            .map_err(CertificatesError::unusable)?;
        Ok(Self {
            config: finish_client(config, Some(Route::to(destination))),
            name: ServerName::try_from(SELF_SIGNED_NAME).map_err(CertificatesError::unusable)?,
            authentication: ClientAuthentication::Invitation {
                key: Arc::new(key),
                destination,
                proof,
            },
        })
    }

    /// A client for a destination whose certificate names `host`, with this side's certificate.
    ///
    /// # Errors
    /// When the certificate cannot be used (for example because it has expired), or `host` is not a
    /// host name or IP address.
    pub fn certified(certificates: Certificates, host: &str) -> Result<Self, CertificatesError> {
        own_certificate::check(&certificates, &provider(), CertificateSide::Source)?;
        Self::unchecked(certificates, host)
    }

    /// Does not check the certificate first, as [`certified`](Self::certified) does.
    pub(crate) fn unchecked(
        certificates: Certificates,
        host: &str,
    ) -> Result<Self, CertificatesError> {
        let Certificates {
            roots,
            chain,
            key,
            files,
        } = certificates;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(CertificatesError::unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| CertificatesError::pair(error, &files))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|source| {
            let host = host.to_owned();
            CertificatesError::HostName { host, source }
        })?;
        Ok(Self {
            config: finish_client(config, None),
            name,
            authentication: ClientAuthentication::Authority {
                files,
                host: host.to_owned(),
            },
        })
    }

    /// This client for connections that are no links (`request_invitation/`, `inquiry/`).
    pub(crate) fn for_protocol(&self, protocol: &[u8]) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Self {
            config: Arc::new(config),
            ..self.clone()
        }
    }

    /// Whether a connection may have this application protocol. A route is not one.
    pub(crate) fn accepts(&self, protocol: &[u8]) -> bool {
        let mut offered = self.config.alpn_protocols.iter();
        offered.any(|offered| offered == protocol) && Route::of_label(protocol).is_none()
    }

    /// The credentials to save for a restart.
    ///
    /// # Errors
    /// When the key cannot be serialized; in practice never.
    pub fn credentials(&self) -> Result<SourceCredentials, CertificatesError> {
        Ok(SourceCredentials(match &self.authentication {
            ClientAuthentication::Invitation {
                key,
                destination,
                proof,
            } => Source::Invited {
                key: Box::new(key.copy()?),
                destination: *destination,
                proof: proof.clone(),
            },
            ClientAuthentication::Authority { files, host } => Source::Certified {
                files: files.clone(),
                host: host.clone(),
            },
        }))
    }

    /// The proof to send to a destination that uses invitations.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        match &self.authentication {
            ClientAuthentication::Invitation { proof, .. } => Some(proof),
            ClientAuthentication::Authority { .. } => None,
        }
    }
}

impl SourceCredentials {
    /// How the links of the migration are protected after a restart.
    ///
    /// # Errors
    /// When a certificate's file is gone or cannot be used any more.
    pub fn client(self) -> Result<TlsClient, CertificatesError> {
        match self.0 {
            Source::Invited {
                key,
                destination,
                proof,
            } => TlsClient::with(*key, destination, proof),
            Source::Certified { files, host } => {
                let read = Certificates::read(&files.ca, &files.cert, &files.key)?;
                TlsClient::certified(read, &host)
            }
        }
    }
}

impl DestinationCredentials {
    /// How the links of the migration are protected after a restart.
    ///
    /// # Errors
    /// When a certificate's file is gone or cannot be used any more.
    pub fn server(self) -> Result<TlsServer, CertificatesError> {
        match self.0 {
            Destination::Inviting {
                key,
                secret,
                source,
            } => TlsServer::with(*key, secret, source),
            Destination::Certified { files } => {
                let read = Certificates::read(&files.ca, &files.cert, &files.key)?;
                TlsServer::certified(read)
            }
        }
    }
}
