//! Certificates of an authority that both sides trust.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use super::certificate_check::CertificateProblem;
use super::credentials::Files;

/// One side's certificate and key, and the authorities that it trusts.
#[derive(Debug)]
pub struct Certificates {
    pub(super) roots: RootCertStore,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) files: Files,
}

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub enum CertificatesError {
    /// A file cannot be read, or is not a PEM file.
    #[error("reading the {what} in {}: {source}; it must be a PEM file", path.display())]
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
    #[error("the certificate in {0}")]
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
    #[error("the authority's certificate in {}: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The certificate or the key cannot be used.
    #[error("using the certificate and its key: {0}")]
    Unusable(String),
}

impl CertificatesError {
    pub(super) fn unusable(error: impl std::fmt::Display) -> Self {
        Self::Unusable(error.to_string())
    }

    /// The error for a certificate and key of `files` that rustls refuses.
    pub(super) fn pair(error: rustls::Error, files: &Files) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => Self::OtherKey {
                key: files.key.clone(),
                cert: files.cert.clone(),
            },
            error => Self::unusable(error),
        }
    }
}

impl Certificates {
    /// Reads PEM files: the authorities' certificates, this side's certificate followed by any
    /// intermediate ones, and its private key.
    ///
    /// [`CertificatesError`], with the file's name.
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
        let key_der = read.map_err(|source| unreadable_key(key, source))?;
        // A process that is started again may have another working directory.
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

/// The error for a file without a usable private key.
fn unreadable_key(path: &Path, source: pem::Error) -> CertificatesError {
    let (what, path) = ("private key", path.to_owned());
    if is_encrypted(&path) {
        return CertificatesError::Encrypted { path };
    }
    match source {
        pem::Error::NoItemsFound => CertificatesError::Empty { what, path },
        source => CertificatesError::Read { what, path, source },
    }
}

/// Whether the file contains an encrypted key, in PKCS #8 (RFC 7468, section 11) or in the older
/// format (RFC 1421, section 4.6.1.1).
fn is_encrypted(path: &Path) -> bool {
    /// Enough for the first lines of any key.
    const MAX_SEARCHED: u64 = 64 << 10;
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_SEARCHED).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let marks = [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED",
    ];
    read.is_ok() && text.lines().any(|line| marks.contains(&line.trim()))
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
