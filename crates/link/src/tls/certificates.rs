//! Certificates of an authority that both sides trust.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls::certificate_files::Files;
use crate::tls::error::CertificatesError;

/// One side's certificate and key, and the authorities that it trusts.
#[derive(Debug)]
pub struct Certificates {
    pub(crate) roots: RootCertStore,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) files: Files,
}

impl Certificates {
    /// Reads PEM files: the authorities' certificates, this side's certificate followed by any
    /// intermediate ones, and its private key.
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
