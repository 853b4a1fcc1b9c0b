//! The records after a handshake, and bytes that are none.

use std::io::{self, Write};

use hikkoshi_linux::CancelFlag;
use proptest::prelude::*;

use super::{handshake, invitation, limits, open, pair, seal};
use crate::tls::keys::{DATA, MAX_PLAIN, TAG};
use crate::tls::record_decrypt::MAX_RECORD;
use crate::tls::{Opener, Sealer, TlsClient, TlsServer, accept};

/// Two sides after a successful handshake.
fn connected_pair() -> ((Opener, Sealer), (Opener, Sealer)) {
    let server = TlsServer::inviting().unwrap();
    let client = TlsClient::invited(&invitation(&server)).unwrap();
    let (near, far, _) = handshake(&client, &server);
    (near.unwrap(), far.unwrap())
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
