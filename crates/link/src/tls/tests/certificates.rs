//! Peers with certificates of an authority.

use std::path::Path;

use error_reporter::Report;
use rcgen::ExtendedKeyUsagePurpose;

use super::{handshake, invitation, open, refused, seal};
use crate::tls::test_authority::Authority;
use crate::tls::{Certificates, SecureError, TlsClient, TlsServer};

fn certified(authority: &Authority, host: &str) -> TlsClient {
    TlsClient::certified(authority.issue("src.example"), host).unwrap()
}

#[test]
fn both_sides_authenticate_with_certificates() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = TlsServer::certified(ours.issue("dst.example")).unwrap();
    let client = certified(&ours, "dst.example");
    let (near, far, source) = handshake(&client, &server);
    let (mut sealer, mut opener) = (near.unwrap().1, far.unwrap().0);
    let sealed = seal(&mut sealer, b"a page of it");
    assert_eq!(open(&mut opener, &sealed, 9).unwrap(), b"a page of it");
    assert_eq!(source, None);
    // Both continue after a restart, with the files.
    let client = client.credentials().unwrap().client().unwrap();
    let server = server.credentials().unwrap().server().unwrap();
    let (near, far, _) = handshake(&client, &server);
    assert!(near.is_ok() && far.is_ok());
    // A certificate for another host.
    let (near, _) = refused(&certified(&ours, "other.example"), &server);
    assert!(matches!(near, SecureError::Certificate(_)), "{near}");
    // A certificate of another authority.
    let (near, _) = refused(&certified(&theirs, "dst.example"), &server);
    assert!(matches!(near, SecureError::Certificate(_)), "{near}");
    // A client that trusts the server, but that the server does not trust.
    let mut mixed = theirs.issue("src.example");
    mixed.roots = ours.issue("x.example").roots;
    let untrusted = TlsClient::certified(mixed, "dst.example").unwrap();
    let (near, far) = refused(&untrusted, &server);
    assert!(matches!(near, SecureError::Refused(_)), "{near}");
    assert!(matches!(far, SecureError::Certificate(_)), "{far}");
}

#[test]
fn expired_certificates_are_refused() {
    let ours = Authority::new();
    let server = TlsServer::unchecked(ours.issue_until("dst.example", 2001)).unwrap();
    let (near, _) = refused(&certified(&ours, "dst.example"), &server);
    let expired = "it expired on 2001-01-01 00:00:00 UTC (this host's clock says 2";
    assert!(near.to_string().contains(expired), "{near}");
    let server = TlsServer::certified(ours.issue("dst.example")).unwrap();
    let old = ours.issue_until("src.example", 2001);
    let (near, far) = refused(&TlsClient::unchecked(old, "dst.example").unwrap(), &server);
    let theirs = "CertificateExpired; this host's clock says 2";
    assert!(near.to_string().contains(theirs), "{near}");
    assert!(far.to_string().contains(expired), "{far}");
}

#[test]
fn extended_key_usages_are_checked() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let ours = Authority::new();
    let source = |uses: &[_]| {
        let certificates = ours.issue_for("src.example", uses);
        TlsClient::unchecked(certificates, "dst.example").unwrap()
    };
    let destination =
        |uses: &[_]| TlsServer::unchecked(ours.issue_for("dst.example", uses)).unwrap();
    let both = [ClientAuth, ServerAuth];
    for (from, to) in [
        (&[ClientAuth][..], &[ServerAuth][..]),
        (&both, &both),
        // Certificates without extended key usages.
        (&[], &[]),
    ] {
        let (near, far, _) = handshake(&source(from), &destination(to));
        assert!(near.is_ok() && far.is_ok(), "{from:?} {to:?}");
    }
    let (near, far) = refused(&source(&[ServerAuth]), &destination(&both));
    assert!(matches!(near, SecureError::Refused(_)), "{near}");
    assert!(matches!(far, SecureError::Certificate(_)), "{far}");
    for error in [near, far] {
        let text = Report::new(&error).to_string();
        assert!(text.contains("a source's needs clientAuth"), "{text}");
    }
    let (near, far) = refused(&source(&both), &destination(&[ClientAuth]));
    assert!(matches!(near, SecureError::Certificate(_)), "{near}");
    assert!(matches!(far, SecureError::Refused(_)), "{far}");
    for error in [near, far] {
        let text = Report::new(&error).to_string();
        assert!(text.contains("a destination's serverAuth"), "{text}");
    }
}

#[test]
fn certificates_and_invitations_do_not_match() {
    let ours = Authority::new();
    let inviting = TlsServer::inviting().unwrap();
    let (near, _) = refused(&certified(&ours, "dst.example"), &inviting);
    assert!(matches!(near, SecureError::Certificate(_)), "{near}");
    let certified = TlsServer::certified(ours.issue("dst.example")).unwrap();
    let invited = TlsClient::invited(&invitation(&inviting)).unwrap();
    let (near, _) = refused(&invited, &certified);
    assert!(matches!(near, SecureError::WrongKey), "{near}");
}

#[test]
fn errors_name_the_unreadable_file() {
    let ours = Authority::new();
    ours.issue("src.example");
    let path = |name: &str| ours.path(name);
    std::fs::write(path("empty"), "nothing\n").unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(path("broken"), broken).unwrap();
    let read = |ca: &str, cert: &str, key: &str| {
        let read = Certificates::read(&path(ca), &path(cert), &path(key));
        let text = match read {
            Ok(read) => Report::new(TlsServer::certified(read).unwrap_err()).to_string(),
            Err(error) => Report::new(&error).to_string(),
        };
        assert!(text.len() < 400, "{text}");
        text
    };
    let (crt, key) = ("src.example.crt", "src.example.key");
    let text = read("none", crt, key);
    assert!(
        text.contains("none") && text.contains("authority"),
        "{text}"
    );
    let text = read("ca", "empty", key);
    assert!(text.starts_with("there is no certificate"), "{text}");
    let text = read("broken", crt, key);
    assert!(
        text.contains("authority") && text.contains("broken"),
        "{text}"
    );
    let text = read("ca", crt, "empty");
    assert!(text.contains("private key"), "{text}");
    // The key of another certificate.
    let other = Authority::new();
    other.issue("other.example");
    std::fs::copy(other.path("other.example.key"), path("other.key")).unwrap();
    let text = read("ca", crt, "other.key");
    assert!(
        text.contains("does not belong to the certificate in"),
        "{text}"
    );
    assert!(
        text.contains("other.key") && text.contains(crt),
        "both files: {text}"
    );
    assert!(Path::new(&path(crt)).exists());
}
