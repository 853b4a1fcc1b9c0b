//! The certificate of a source, and the names in it.

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error};

/// A name that no certificate is for (RFC 6761, section 6.4).
const NO_NAME: &str = "none.invalid";

/// The certificate of a source, which an authority has signed that this side trusts.
#[derive(Debug)]
pub struct PeerCertificate(CertificateDer<'static>);

impl PeerCertificate {
    pub(crate) fn new(certificate: CertificateDer<'static>) -> Self {
        Self(certificate)
    }

    /// Whether it is for this host name or IP address: one of its alternative names (RFC 5280,
    /// section 4.2.1.6) is the same, or a wildcard that matches it.
    pub fn is_for(&self, name: &str) -> bool {
        self.check(name).is_some_and(|checked| checked.is_ok())
    }

    /// Whether a certificate can be for this name: it is a host name or an IP address.
    pub fn can_be_for(name: &str) -> bool {
        ServerName::try_from(name).is_ok()
    }

    /// Its alternative names, for messages.
    pub fn names(&self) -> String {
        match self.check(NO_NAME) {
            Some(Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                presented,
                ..
            }))) if !presented.is_empty() => {
                let names: Vec<_> = presented.iter().map(|name| without_kind(name)).collect();
                names.join(", ")
            }
            _ => "without names".to_owned(),
        }
    }

    /// `None`: it is not a name.
    fn check(&self, name: &str) -> Option<Result<(), Error>> {
        let name = ServerName::try_from(name).ok()?;
        let parsed = ParsedCertificate::try_from(&self.0);
        Some(parsed.and_then(|parsed| verify_server_name(&parsed, &name)))
    }
}

/// The name in a text such as `DnsName("host.example")`.
fn without_kind(text: &str) -> &str {
    let inner = text
        .split_once('(')
        .and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.map_or(text, |name| name.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn certificate(names: &[&str]) -> PeerCertificate {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        PeerCertificate::new(certificate.der().clone())
    }

    #[test]
    fn its_alternative_names_count() {
        let host = certificate(&["host.example", "10.0.0.1"]);
        assert!(host.is_for("host.example") && host.is_for("HOST.example"));
        assert!(host.is_for("10.0.0.1"));
        for other in [
            "other.example",
            "x.host.example",
            "10.0.0.2",
            "",
            "*",
            "a b",
        ] {
            assert!(!host.is_for(other), "{other}");
        }
        assert_eq!(host.names(), "host.example, 10.0.0.1");
        let wildcard = certificate(&["*.rack.example"]);
        assert!(wildcard.is_for("a.rack.example") && !wildcard.is_for("b.a.rack.example"));
        let nameless = certificate(&[]);
        assert!(!nameless.is_for("host.example"));
        assert_eq!(nameless.names(), "without names");
    }
}
