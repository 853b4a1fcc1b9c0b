//! What each side checks of its own certificate.

use error_reporter::Report;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};

use crate::tls::test_authority::Authority;
use crate::tls::{Certificates, TlsClient, TlsServer};

/// Each side checks its own certificate before any connection.
#[test]
fn own_unsuitable_certificates_are_refused() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let ours = Authority::new();
    let here = |certificates: Certificates| {
        let error = TlsClient::certified(certificates, "dst.example").unwrap_err();
        Report::new(&error).to_string()
    };
    let there = |certificates: Certificates| {
        let error = TlsServer::certified(certificates).unwrap_err();
        Report::new(&error).to_string()
    };
    let path = |name: &str| ours.path(name);
    let shown = path("a.example.crt").display().to_string();
    let clock = |text: &str| {
        let (_, said) = text.split_once("this host's clock says ").unwrap();
        said.get(..4).unwrap().parse::<u32>().unwrap() > 2020 && said.ends_with(" UTC)")
    };
    for message in [
        here(ours.issue_until("a.example", 2001)),
        there(ours.issue_until("a.example", 2001)),
    ] {
        let expired =
            format!("this side's certificate: {shown}: it expired on 2001-01-01 00:00:00 UTC (");
        assert!(
            message.starts_with(&expired) && clock(&message),
            "{message}"
        );
    }
    let early = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(3000, 2, 3);
        params.not_after = rcgen::date_time_ymd(4000, 1, 1);
    };
    let message = here(ours.issue_with("a.example", early));
    let wanted = format!(
        "this side's certificate: {shown}: it is valid only from 3000-02-03 00:00:00 UTC ("
    );
    assert!(message.starts_with(&wanted) && clock(&message), "{message}");
    // A certificate for the other side.
    let message = here(ours.issue_for("a.example", &[ServerAuth]));
    assert!(
        message.contains("must contain clientAuth for a source"),
        "{message}"
    );
    let message = there(ours.issue_for("a.example", &[ClientAuth]));
    assert!(
        message.contains("must contain serverAuth for a destination"),
        "{message}"
    );
    // A certificate as 'openssl x509 -req' creates it.
    std::fs::write(path("v1.crt"), VERSION_1).unwrap();
    let read = || Certificates::read(&path("ca"), &path("v1.crt"), &path("a.example.key"));
    for message in [here(read().unwrap()), there(read().unwrap())] {
        assert!(
            message.contains("v1.crt: this is an X.509 version 1 certificate"),
            "{message}"
        );
        assert!(message.contains("subjectAltName"), "{message}");
    }
    // Another authority's certificate: the other side may trust that authority.
    let theirs = Authority::new();
    std::fs::copy(theirs.path("ca"), path("theirs")).unwrap();
    ours.issue("a.example");
    let read = || {
        Certificates::read(
            &path("theirs"),
            &path("a.example.crt"),
            &path("a.example.key"),
        )
    };
    assert!(TlsClient::certified(read().unwrap(), "dst.example").is_ok());
    assert!(TlsServer::certified(read().unwrap()).is_ok());
    // A key with a passphrase.
    for (name, lines) in [
        (
            "pkcs8",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIHs\n-----END ENCRYPTED PRIVATE KEY-----\n",
        ),
        (
            "older",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,49\n\nxFF/\n\
             -----END RSA PRIVATE KEY-----\n",
        ),
    ] {
        std::fs::write(path(name), lines).unwrap();
        let read = Certificates::read(&path("ca"), &path("a.example.crt"), &path(name));
        let message = Report::new(read.unwrap_err()).to_string();
        assert!(
            message.contains("is encrypted") && message.contains("openssl pkey -in"),
            "{message}"
        );
    }
}

/// `openssl x509 -req` with neither `-extfile` nor `-copy_extensions` (OpenSSL 3.0).
const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBGDCBvwIUFr+SIPaxPf3I1lqec+RGk+SuHLowCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCY2EwIBcNMjYxMTIyMjA0ODAyWhgPMjEyNjEwMjkyMDQ4MDJaMA8xDTAL
BgNVBAMMBGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASQXf6/b/Uo8ZCM
wNDxamkOi35TVm+CZeTmj6xxczjRrV35MBcXjJxOJSpADMjRZe3S7Bz8CHjrzNju
WT7qjZhTMAoGCCqGSM49BAMCA0gAMEUCIGROtAQ8PdAypqT7kEcZb90ICi6/pN0C
DAuOTVTqoSDbAiEA6TRjloJt2RKIryrWeJ9fnNVEmNsChnWMaliO+e3yOo8=
-----END CERTIFICATE-----
";
