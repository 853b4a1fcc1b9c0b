//! A certificate authority for tests.
#![allow(clippy::unwrap_used)] // without certificates there is no test

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Issues certificates; their files exist as long as `folder` does.
pub struct CertificateAuthority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    issued: AtomicU32,
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// Creates an authority whose files are in `folder`, which must exist.
    ///
    /// # Panics
    /// When files cannot be written there.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self {
            folder,
            issuer,
            issued: AtomicU32::new(0),
        };
        std::fs::write(authority.file("ca"), authority.issuer.pem()).unwrap();
        authority
    }

    /// Issues a certificate for a host name or address. Returns it as arguments of `hikkoshi`: each
    /// option with its file.
    pub fn issue(&self, host: &str) -> [String; 6] {
        self.issue_for(&[host])
    }

    /// Issues a certificate for several names and addresses of a host.
    pub fn issue_for(&self, hosts: &[&str]) -> [String; 6] {
        self.issue_until(hosts, 4096)
    }

    /// Issues a certificate that has expired.
    ///
    /// # Panics
    /// See [`new`](Self::new).
    pub fn expired(&self, host: &str) -> [String; 6] {
        self.issue_until(&[host], 2001)
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn issue_until(&self, hosts: &[&str], year: i32) -> [String; 6] {
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        let [cert, key] = ["crt", "key"].map(|what| self.file(&format!("{number}.{what}")));
        let pair = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(
            hosts
                .iter()
                .map(|&host| host.to_owned())
                .collect::<Vec<_>>(),
        )
        .unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&pair, &self.issuer).unwrap();
        std::fs::write(&cert, certificate.pem()).unwrap();
        std::fs::write(&key, pair.serialize_pem()).unwrap();
        let ca = self.file("ca");
        [("--tls-ca", ca), ("--tls-cert", cert), ("--tls-key", key)]
            .map(|(option, file)| [option.to_owned(), file])
            .concat()
            .try_into()
            .unwrap()
    }
}
