//! Certificates of an authority that both sides trust.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use super::credentials::Files;

/// One side's certificate and key, and whom it trusts.
#[derive(Debug)]
pub struct Certificates {
    pub(super) roots: RootCertStore,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) files: Files,
}

/// Certificates that cannot be used.
#[derive(Debug, Error)]
pub enum CertificatesError {
    /// A file that cannot be read, or is no PEM.
    #[error("reading the {what} in {}: {source}; it must be a PEM file", path.display())]
    Read {
        /// What it should hold.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// A PEM file without what is needed.
    #[error("there is no {what} in {}", path.display())]
    Empty {
        /// What it should hold.
        what: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// An authority's certificate that makes no sense.
    #[error("the authority's certificate in {}: {source}", path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// Certificate and key do not fit each other, or cannot be used.
    #[error("using the certificate and its key: {0}")]
    Unusable(String),
}

impl CertificatesError {
    pub(super) fn unusable(error: impl std::fmt::Display) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl Certificates {
    /// Reads PEM files: the authorities' certificates, this side's own with
    /// any intermediate ones after it, and its private key.
    ///
    /// # Errors
    /// [`CertificatesError`], with the file's name.
    pub fn read(ca: &Path, cert: &Path, key: &Path) -> Result<Self, CertificatesError> {
        let mut roots = RootCertStore::empty();
        for root in certificates("certificate of the authority", ca)? {
            roots
                .add(root)
                .map_err(|source| CertificatesError::Authority {
                    path: ca.to_owned(),
                    source,
                })?;
        }
        let chain = certificates("certificate", cert)?;
        let read = PrivateKeyDer::from_pem_file(key);
        let key_der = read.map_err(|source| CertificatesError::Read {
            what: "private key",
            path: key.to_owned(),
            source,
        })?;
        // Whoever comes back after a restart may stand elsewhere.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self {
            roots,
            chain,
            key: key_der,
            files: Files {
                ca: absolute(ca),
                cert: absolute(cert),
                key: absolute(key),
            },
        })
    }
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CertificatesError> {
    let read = |source| CertificatesError::Read {
        what,
        path: path.to_owned(),
        source,
    };
    let found = CertificateDer::pem_file_iter(path)
        .map_err(read)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(read)?;
    if found.is_empty() {
        return Err(CertificatesError::Empty {
            what,
            path: path.to_owned(),
        });
    }
    Ok(found)
}
