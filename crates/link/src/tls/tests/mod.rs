//! TLS connections between two ends in one process: handshake, records, and which peers are
//! accepted.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use proptest::prelude::*;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};

use super::*;
use crate::Address;
use crate::tls::keys::{DATA, MAX_PLAIN, TAG};
use crate::tls::record_decrypt::MAX_RECORD;
use crate::tls::test_authority::Authority;
use hikkoshi_linux::CancelFlag;

type Side = Result<(Opener, Sealer), SecureError>;

fn limits(stop: &CancelFlag) -> TimeLimits<'_> {
    TimeLimits {
        deadline: Instant::now() + Duration::from_secs(20),
        stop,
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    for socket in [&near, &far] {
        let tick = Some(Duration::from_millis(20));
        socket.set_read_timeout(tick).unwrap();
    }
    (near, far)
}

/// Runs both ends' handshakes until each knows whether it is accepted. Also returns the source's
/// key.
fn handshake(client: &TlsClient, server: &TlsServer) -> (Side, Side, Option<Fingerprint>) {
    let (mut near, mut far) = pair();
    let stop = CancelFlag::new();
    let (connected, accepted) = thread::scope(|scope| {
        let (stop, far) = (&stop, &mut far);
        let accepting = scope.spawn(move || {
            let accepted = accept(server, far, limits(stop));
            if accepted.is_err() {
                far.shutdown(Shutdown::Both).unwrap();
            }
            accepted
        });
        let connected = connect(client, &mut near, limits(stop));
        if connected.is_err() {
            near.shutdown(Shutdown::Both).unwrap();
        }
        (connected, accepting.join().unwrap())
    });
    let connected = connected.and_then(|(mut opener, sealer)| match &accepted {
        Ok(_) => Ok((opener, sealer)),
        // With certificates, the first read returns the refusal.
        Err(_) => {
            receive(&mut opener, &mut [0], &mut near, limits(&stop)).map(|()| (opener, sealer))
        }
    });
    match accepted {
        Ok((opener, sealer, source)) => (connected, Ok((opener, sealer)), source),
        Err(error) => (connected, Err(error), None),
    }
}

fn refused(client: &TlsClient, server: &TlsServer) -> (SecureError, SecureError) {
    let (near, far, _) = handshake(client, server);
    (near.unwrap_err(), far.unwrap_err())
}

fn invitation(server: &TlsServer) -> Invitation {
    let address: Address = "127.0.0.1:7000".parse().unwrap();
    let shown = server.invitation(address).unwrap().to_string();
    shown.parse().unwrap()
}

/// Two sides after a successful handshake.
fn connected_pair() -> ((Opener, Sealer), (Opener, Sealer)) {
    let server = TlsServer::inviting().unwrap();
    let client = TlsClient::invited(&invitation(&server)).unwrap();
    let (near, far, _) = handshake(&client, &server);
    (near.unwrap(), far.unwrap())
}

fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    let (head, body) = plain.split_at(plain.len() / 3);
    let mut sealed = Vec::new();
    sealer.seal(head, body, &mut sealed).unwrap();
    sealed
}

/// Opens all of `sealed`, which arrives in pieces of `piece` bytes.
fn open(opener: &mut Opener, sealed: &[u8], piece: usize) -> io::Result<Vec<u8>> {
    let mut pieces = sealed.chunks(piece.max(1));
    let mut plain = Vec::new();
    let mut buffer = [0; 5000];
    loop {
        let read = opener.read(&mut buffer, |raw| {
            let piece = pieces.next().unwrap_or_default();
            raw[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        })?;
        if read == 0 {
            return Ok(plain);
        }
        plain.extend_from_slice(&buffer[..read]);
    }
}

#[test]
fn an_invited_source_is_accepted_and_the_data_is_encrypted() {
    let ((mut opener, mut sealer), (mut far_opener, mut far_sealer)) = connected_pair();
    let message: Vec<u8> = (0..1_u32 << 20)
        .map(|n| n.to_le_bytes()[1] ^ 0x5a)
        .collect();
    for (sealer, opener) in [
        (&mut sealer, &mut far_opener),
        (&mut far_sealer, &mut opener),
    ] {
        let sealed = seal(sealer, &message);
        assert!(sealed.len() <= Sealer::sealed_len(message.len()));
        assert!(!sealed.windows(16).any(|part| part == &message[..16]));
        assert_eq!(open(opener, &sealed, 1001).unwrap(), message);
    }
}

#[test]
fn changed_dropped_or_repeated_records_are_errors() {
    let ((_, mut sealer), (mut opener, _)) = connected_pair();
    let first = seal(&mut sealer, b"page 1");
    let second = seal(&mut sealer, b"page 2");
    // Each error ends a link, so each attempt uses a new link.
    let unread = |opener: &mut Opener, sealed: &[u8]| {
        let error = open(opener, sealed, 64).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    };
    assert_eq!(open(&mut opener, &first, 7).unwrap(), b"page 1");
    unread(&mut opener, &first);
    let ((_, mut sealer), (mut opener, _)) = connected_pair();
    let mut changed = seal(&mut sealer, b"page 1");
    *changed.last_mut().unwrap() ^= 1;
    unread(&mut opener, &changed);
    let ((_, mut sealer), (mut opener, _)) = connected_pair();
    drop(seal(&mut sealer, b"page 1"));
    unread(&mut opener, &seal(&mut sealer, b"page 2"));
    // A record of another connection.
    let (_, (mut opener, _)) = connected_pair();
    unread(&mut opener, &second);
}

#[test]
fn a_truncated_record_returns_no_data() {
    let ((_, mut sealer), (mut opener, _)) = connected_pair();
    let mut sealed = seal(&mut sealer, b"whole");
    let cut = seal(&mut sealer, &[7; 4112]);
    sealed.extend_from_slice(&cut[..cut.len() - 1]);
    assert_eq!(open(&mut opener, &sealed, 1000).unwrap(), b"whole");
}

#[test]
fn keys_are_renewed_in_both_directions() {
    let ((mut opener, mut sealer), (mut far_opener, mut far_sealer)) = connected_pair();
    sealer.renew_after(3);
    let plain = vec![9; 20 * MAX_PLAIN];
    let sealed = seal(&mut sealer, &plain);
    assert_eq!(open(&mut far_opener, &sealed, 4096).unwrap(), plain);
    // The next record answers the peer's request for a key update.
    sealer.renew_after(u64::MAX);
    let mut sealed = Vec::new();
    sealer.request_key_update(&mut sealed);
    sealed.extend(seal(&mut sealer, b"and you"));
    assert_eq!(open(&mut far_opener, &sealed, 4096).unwrap(), b"and you");
    let sealed = seal(&mut far_sealer, b"and I");
    assert!(sealed.len() > 2 * (5 + 1 + 16) + 5, "no key update");
    assert_eq!(open(&mut opener, &sealed, 4096).unwrap(), b"and I");
}

#[test]
fn an_invitation_is_valid_for_one_source() {
    let server = TlsServer::inviting().unwrap();
    let invitation = invitation(&server);
    let first = TlsClient::invited(&invitation).unwrap();
    let (.., source) = handshake(&first, &server);
    server.accept_only(source);
    let second = TlsClient::invited(&invitation).unwrap();
    let (near, far) = refused(&second, &server);
    assert!(matches!(near, SecureError::AlreadyUsed), "{near}");
    assert!(matches!(far, SecureError::Used), "{far}");
    // All links of the first source's migration are accepted, later ones as well.
    let (near, far, again) = handshake(&first, &server);
    assert!(near.is_ok() && far.is_ok());
    assert_eq!(again, source);
}

#[test]
fn both_sides_authenticate_again_after_a_restart() {
    let server = TlsServer::inviting().unwrap();
    let invitation = invitation(&server);
    let client = TlsClient::invited(&invitation).unwrap();
    let (.., source) = handshake(&client, &server);
    server.accept_only(source);
    let written = serde_json::to_string(&client.credentials().unwrap()).unwrap();
    let client: SourceCredentials = serde_json::from_str(&written).unwrap();
    let shown = format!("{client:?}");
    let client = client.client().unwrap();
    let kept = serde_json::to_string(&server.credentials().unwrap()).unwrap();
    let server: DestinationCredentials = serde_json::from_str(&kept).unwrap();
    let shown = format!("{shown} {server:?}");
    let server = server.server().unwrap();
    let (near, far, again) = handshake(&client, &server);
    assert!(near.is_ok() && far.is_ok());
    assert_eq!(again, source);
    // Other sources are still refused.
    let other = TlsClient::invited(&invitation).unwrap();
    assert!(matches!(refused(&other, &server).1, SecureError::Used));
    // The debug output contains no secret.
    for (record, secret) in [
        (&written, "key"),
        (&written, "proof"),
        (&kept, "key"),
        (&kept, "secret"),
    ] {
        let value: serde_json::Value = serde_json::from_str(record).unwrap();
        let value = find(&value, secret).unwrap();
        assert!(value.len() > 20, "{secret}: {value}");
        assert!(!shown.contains(value), "{secret} in {shown}");
    }
}

/// The text of a field at any depth.
fn find<'a>(value: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let fields = value.as_object()?;
    fields.iter().find_map(|(key, value)| {
        let text = value.as_str().filter(|_| key == name);
        text.or_else(|| find(value, name))
    })
}

#[test]
fn a_wrong_key_and_a_wrong_secret_have_errors_of_their_own() {
    let server = TlsServer::inviting().unwrap();
    let other = TlsServer::inviting().unwrap();
    let (near, far) = refused(&TlsClient::invited(&invitation(&other)).unwrap(), &server);
    assert!(matches!(near, SecureError::WrongKey), "{near}");
    // The source gets the reason.
    assert!(matches!(far, SecureError::OtherInvitation), "{far}");
    let mut mixed = invitation(&server);
    mixed.secret = invitation(&other).secret;
    let (near, far) = refused(&TlsClient::invited(&mixed).unwrap(), &server);
    assert!(matches!(near, SecureError::WrongSecret), "{near}");
    assert!(matches!(far, SecureError::NotInvited), "{far}");
}

#[test]
fn silent_and_non_tls_peers_are_refused() {
    let server = TlsServer::inviting().unwrap();
    let (_near, mut far) = pair();
    let stop = CancelFlag::cancelled();
    let error = accept(&server, &mut far, limits(&stop)).unwrap_err();
    assert!(matches!(error, SecureError::TimedOut), "{error}");
    let (mut near, mut far) = pair();
    near.write_all(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n")
        .unwrap();
    let stop = CancelFlag::new();
    let error = accept(&server, &mut far, limits(&stop)).unwrap_err();
    assert!(matches!(error, SecureError::NotTls), "{error}");
    // The peer receives an alert.
    let mut alert = [0; 2];
    near.read_exact(&mut alert).unwrap();
    assert_eq!(alert, [21, 3]);
    // A peer that sends data without end.
    let (mut near, mut far) = pair();
    let flood = thread::spawn(move || while near.write_all(&[22, 3, 1, 255, 255]).is_ok() {});
    accept(&server, &mut far, limits(&stop)).unwrap_err();
    drop(far);
    flood.join().unwrap();
}

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

/// Any bytes, or such that look like a record.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let record = (0..700_u16, prop::collection::vec(any::<u8>(), 0..800));
    let record = record.prop_map(|(len, content)| {
        let header = [&[DATA, 3, 3], &len.to_be_bytes()[..]].concat();
        [header, content].concat()
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..4000), record]
}

/// Whether more bytes can make a record of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    match bytes {
        [DATA, 3, 3, high, low, content @ ..] => {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            (1 + TAG..=MAX_RECORD).contains(&len) && content.len() < len
        }
        short => [DATA, 3, 3].starts_with(&short[..short.len().min(3)]) && short.len() < 5,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_an_error_or_incomplete(bytes in bytes()) {
        let server = TlsServer::inviting().unwrap();
        let (mut near, mut far) = pair();
        near.write_all(&bytes).unwrap();
        drop(near);
        let stop = CancelFlag::new();
        prop_assert!(accept(&server, &mut far, limits(&stop)).is_err());
        let (_, (mut opener, _)) = connected_pair();
        // The right key is needed to open a record.
        match open(&mut opener, &bytes, 100) {
            Ok(plain) => prop_assert!(plain.is_empty() && is_incomplete(&bytes), "{plain:?}"),
            Err(error) => prop_assert!(!is_incomplete(&bytes), "{error}"),
        }
    }
}
