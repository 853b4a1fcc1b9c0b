//! The functions of the fuzz targets `link_*` (`fuzz/fuzz_targets`): properties of all bytes that a
//! peer without a key can send, of all bytes that a peer with the keys can send, and of all text
//! that an operator can enter.
//!
//! The property tests below run them on random input, and on the kept fuzz inputs.

use std::io::{self, Read, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::pki_types::CertificateDer;

use crate::Address;
use crate::tls::invited_handshake::{accept, connect};
use crate::tls::keys::{ALERT, DATA, HANDSHAKE, Key, KeyRenewal, MAX_PLAIN, Renew, TAG};
use crate::tls::peer_key::fingerprint;
use crate::tls::record_decrypt::{MAX_EMPTY, MAX_RECORD};
use crate::tls::{
    Invitation, InvitationError, Opener, SecureError, TimeLimits, TlsClient, TlsServer,
};
use hikkoshi_linux::CancelFlag;

/// A socket that holds everything that the peer sends.
struct Sent<'a> {
    bytes: &'a [u8],
    /// How many bytes one read returns at most.
    piece: usize,
}

impl<'a> Sent<'a> {
    fn new(bytes: &'a [u8], piece: u8) -> Self {
        Self {
            bytes,
            piece: 1 + usize::from(piece),
        }
    }
}

impl Read for Sent<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.bytes.len().min(buffer.len()).min(self.piece);
        let (now, later) = self.bytes.split_at(len);
        buffer[..len].copy_from_slice(now);
        self.bytes = later;
        Ok(len)
    }
}

impl Write for Sent<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static SIDES: LazyLock<(TlsClient, TlsServer)> = LazyLock::new(|| {
    let sides = || -> Result<_, Box<dyn std::error::Error>> {
        let server = TlsServer::inviting()?;
        let address = "127.0.0.1:7000".parse()?;
        let invitation = server.invitation(address).ok_or("it does not invite")?;
        Ok((TlsClient::invited(&invitation)?, server))
    };
    sides().unwrap_or_else(|error| panic!("two sides: {error}"))
});

/// The handshake, on either side. The first byte is the size of the pieces in which the others
/// arrive. A peer without a key is refused.
pub fn tls_handshake(bytes: &[u8]) {
    let (&piece, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let (client, server) = &*SIDES;
    let stop = CancelFlag::new();
    let limits = TimeLimits {
        deadline: Instant::now() + Duration::from_secs(60),
        stop: &stop,
    };
    // In complete records, too, so that their contents are parsed.
    for framed in [bytes.to_vec(), framed(bytes)] {
        let mut socket = Sent::new(&framed, piece);
        refused(accept(server, &mut socket, limits));
        let mut socket = Sent::new(&framed, piece);
        refused(connect(client, &mut socket, limits));
    }
}

fn refused<T>(passed: Result<T, SecureError>) {
    let Err(error) = passed else {
        panic!("let in");
    };
    let text = error.to_string();
    assert!(
        text.len() < 4096 && !text.contains(char::is_control),
        "{text}"
    );
}

/// Records of the handshake that hold `bytes`.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    for piece in bytes.chunks(MAX_PLAIN) {
        let [.., high, low] = piece.len().to_be_bytes();
        records.extend([HANDSHAKE, 3, 3, high, low]);
        records.extend_from_slice(piece);
    }
    records
}

/// Keys that are derived from a number: both sides have the same.
struct Numbered(u8);

impl Renew for Numbered {
    fn next_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.next_rx()
    }

    fn next_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.0 = self.0.wrapping_add(1);
        Ok(secrets(self.0))
    }
}

fn secrets(number: u8) -> (u64, ConnectionTrafficSecrets) {
    let (key, iv) = (AeadKey::from([number; 32]), Iv::from([number; 12]));
    let secrets = ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv };
    (0, secrets)
}

fn key(number: u8) -> Key {
    Key::new(secrets(number)).unwrap_or_else(|error| panic!("a key: {error}"))
}

/// A peer that has the keys, and seals any records with them.
struct Peer {
    key: Key,
    number: u8,
    sent: Vec<u8>,
    /// The plaintext that must be read.
    plain: Vec<u8>,
    /// How reading must end, if it must end before the last record.
    end: Option<End>,
    /// Records without content in a row.
    empty: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Alert,
    Malformed,
}

impl Peer {
    /// Seals `inner` in a correct record and sends it.
    fn record(&mut self, inner: &[u8]) {
        let len = inner.len() + TAG;
        let [.., high, low] = len.to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        let mut sealed = inner.to_vec();
        let Ok(tag) = self.key.seal(&header, &mut sealed) else {
            panic!("no record of {} bytes", inner.len());
        };
        self.sent.extend(header);
        self.sent.extend(sealed);
        self.sent.extend_from_slice(tag.as_ref());
        if self.end.is_none() {
            self.end = self.meant(inner);
        }
    }

    /// How such a record ends reading, if it does: RFC 8446, sections 4.6.3, 5.1, 5.4 and 6.
    fn meant(&mut self, inner: &[u8]) -> Option<End> {
        let padding = inner.iter().rev().take_while(|&&byte| byte == 0).count();
        let Some((&kind, content)) = inner[..inner.len() - padding].split_last() else {
            return Some(End::Malformed);
        };
        // The limits of a record and of its content.
        if inner.len() + TAG > MAX_RECORD || content.len() > MAX_PLAIN {
            return Some(End::Malformed);
        }
        match (kind, content) {
            (DATA, content) => {
                self.plain.extend_from_slice(content);
                self.empty = if content.is_empty() {
                    self.empty + 1
                } else {
                    0
                };
            }
            (HANDSHAKE, [24, 0, 0, 1, 0 | 1]) => {
                self.number = self.number.wrapping_add(1);
                self.key = key(self.number);
                self.empty += 1;
            }
            (ALERT, [_, 0]) => return Some(End::Closed),
            (ALERT, [_, _]) => return Some(End::Alert),
            _ => return Some(End::Malformed),
        }
        (self.empty > MAX_EMPTY).then_some(End::Malformed)
    }
}

/// Records that a peer with the right keys seals, and damages. The plaintext up to the first error
/// is read, for any size of the pieces in which they arrive.
pub fn tls_records(bytes: &[u8]) {
    let mut peer = Peer {
        key: key(0),
        number: 0,
        sent: Vec::new(),
        plain: Vec::new(),
        end: None,
        empty: 0,
    };
    let (&piece, mut rest) = bytes.split_first().unwrap_or((&0, &[]));
    while let [what, amount, more @ ..] = rest {
        let (content, after) = more.split_at(more.len().min(usize::from(*amount)));
        rest = after;
        match what % 8 {
            // Any content.
            0 => peer.record(content),
            1 => peer.record(&[content, &[DATA]].concat()),
            2 => peer.record(&[content, &[DATA], &[0; 40]].concat()),
            // The longest content, and a little longer.
            3 => {
                let mut inner = content.repeat(1 + (MAX_PLAIN + 8) / content.len().max(1));
                inner.truncate(MAX_PLAIN - 8 + usize::from(*amount % 16));
                peer.record(&[&inner[..], &[DATA]].concat());
            }
            4 => peer.record(&[24, 0, 0, 1, *amount % 3, HANDSHAKE]),
            5 => peer.record(&[2, *amount, ALERT]),
            // Raw bytes: usually not a record.
            6 => {
                peer.sent.extend_from_slice(content);
                if !content.is_empty() {
                    raw(&mut peer);
                    break;
                }
            }
            // One changed byte, anywhere.
            _ => {
                let at = usize::from(*amount) * 257 % peer.sent.len().max(1);
                if peer.end.is_none()
                    && let Some(byte) = peer.sent.get_mut(at)
                {
                    *byte ^= 1;
                    return changed(&peer, piece);
                }
            }
        }
    }
    let (plain, end) = read(&peer.sent, usize::from(piece));
    assert_eq!(plain, peer.plain);
    assert_eq!(end, peer.end.unwrap_or(End::Closed));
    assert_eq!(read(&peer.sent, 1 << 16), (plain, end), "in other pieces");
}

/// The last bytes are not sealed. They are an error, or the reader waits for the rest, if they can
/// be the start of a record.
fn raw(peer: &mut Peer) {
    let (_, end) = read(&peer.sent, 1 << 16);
    assert_ne!((peer.end, end), (None, End::Alert));
    peer.end.get_or_insert(end);
}

/// One byte was changed. The plaintext that is read is a prefix of the original.
fn changed(peer: &Peer, piece: u8) {
    let (plain, end) = read(&peer.sent, usize::from(piece));
    assert!(peer.plain.starts_with(&plain), "{plain:?}");
    // The changed byte may make the record longer: then the reader waits for the rest.
    assert!(end == End::Malformed || end == End::Closed, "{end:?}");
}

/// Reads all of it, `piece` bytes at a time.
fn read(sent: &[u8], piece: usize) -> (Vec<u8>, End) {
    let mut opener = Opener::new(key(0), KeyRenewal::new(Box::new(Numbered(0))), &[]);
    let mut pieces = sent.chunks(piece.max(1));
    let (mut plain, mut buffer) = (Vec::new(), [0; 1000]);
    loop {
        let got = opener.read(&mut buffer, |raw| {
            let piece = pieces.next().unwrap_or_default();
            raw[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        });
        match got {
            Ok(0) => return (plain, End::Closed),
            Ok(n) => plain.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                return (plain, End::Alert);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                return (plain, End::Malformed);
            }
        }
    }
}

/// A certificate that an unknown peer presents.
pub fn certificate(bytes: &[u8]) {
    let shown = CertificateDer::from(bytes);
    if let Ok(key) = fingerprint(&shown) {
        // The fingerprint depends only on the certificate.
        assert_eq!(fingerprint(&shown).ok(), Some(key));
    }
}

/// An invitation's text. An accepted text is displayed and parsed to the same invitation. An error
/// does not repeat the text.
pub fn invitation(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<Invitation>() {
        Ok(invitation) => {
            let shown = invitation.to_string();
            let again = shown.parse::<Invitation>().map(|again| again.to_string());
            assert!(again.is_ok_and(|again| again == shown), "{shown}");
        }
        // This error repeats only the address, which follows the secret.
        Err(InvitationError::Address(error)) => {
            let address = text.trim().split_once('@').map(|(_, address)| address);
            let alone = address.map(str::parse::<Address>);
            let Some(Err(expected)) = alone else {
                panic!("{error}");
            };
            assert_eq!(error.to_string(), expected.to_string());
        }
        Err(InvitationError::Scheme | InvitationError::Damaged) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::identity::Identity;
    use proptest::prelude::*;

    const TARGETS: [hikkoshi_fuzz_replay::Target; 4] = [
        ("tls_handshake", tls_handshake),
        ("tls_records", tls_records),
        ("invitation", invitation),
        ("certificate", certificate),
    ];

    /// A real one.
    static CERTIFICATE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let (certificate, _) = Identity::generate().unwrap().certificate().unwrap();
        assert!(fingerprint(&certificate).is_ok());
        certificate.to_vec()
    });

    fn shown() -> String {
        let address = "host.example:7000".parse().unwrap();
        SIDES.1.invitation(address).unwrap().to_string()
    }

    /// The first message of a real source.
    fn greeting() -> Vec<u8> {
        struct Kept(Vec<u8>);
        impl Read for Kept {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Ok(0)
            }
        }
        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let stop = CancelFlag::new();
        let limits = TimeLimits {
            deadline: Instant::now() + Duration::from_secs(60),
            stop: &stop,
        };
        let mut kept = Kept(Vec::new());
        connect(&SIDES.0, &mut kept, limits).unwrap_err();
        kept.0
    }

    proptest! {
        #[test]
        fn any_bytes_keep_the_properties(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            for (_, target) in TARGETS {
                target(&bytes);
            }
        }

        #[test]
        fn a_damaged_greeting_keeps_the_properties(
            piece in any::<u8>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = greeting();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(1 + cut.index(bytes.len()));
            bytes.insert(0, piece);
            tls_handshake(&bytes);
        }

        #[test]
        fn many_records_keep_the_properties(
            piece in any::<u8>(),
            records in prop::collection::vec((0..8_u8, 0..9_u8), 0..60),
        ) {
            let mut bytes = vec![piece];
            for (what, amount) in records {
                bytes.extend([what, amount]);
                bytes.extend((0..amount).map(|at| what ^ at));
            }
            tls_records(&bytes);
        }

        #[test]
        fn a_damaged_certificate_keeps_the_properties(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = CERTIFICATE.clone();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(1 + cut.index(2 * bytes.len()));
            certificate(&bytes);
        }

        #[test]
        fn a_damaged_invitation_keeps_the_properties(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = shown().into_bytes();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            invitation(&bytes);
        }
    }

    #[test]
    fn the_kept_fuzz_inputs_pass() {
        hikkoshi_fuzz_replay::replay("link", &TARGETS);
    }
}
