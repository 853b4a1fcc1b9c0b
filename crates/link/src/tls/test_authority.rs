//! A certificate authority for tests.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use super::Certificates;

/// An authority, and its certificates in PEM files.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn issue(&self, name: &str) -> Certificates {
        self.issue_with(name, |_| {})
    }

    pub(crate) fn issue_until(&self, name: &str, year: i32) -> Certificates {
        let end = rcgen::date_time_ymd(year, 1, 1);
        self.issue_with(name, |params| params.not_after = end)
    }

    pub(crate) fn issue_for(&self, name: &str, uses: &[ExtendedKeyUsagePurpose]) -> Certificates {
        self.issue_with(name, |params| params.extended_key_usages = uses.to_vec())
    }

    pub(crate) fn issue_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Certificates {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (crt, pem) = (format!("{name}.crt"), format!("{name}.key"));
        std::fs::write(self.path(&crt), certificate.pem()).unwrap();
        std::fs::write(self.path(&pem), key.serialize_pem()).unwrap();
        Certificates::read(&self.path("ca"), &self.path(&crt), &self.path(&pem)).unwrap()
    }
}
