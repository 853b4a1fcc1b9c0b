//! What identifies a key.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;

/// Bytes of a key's SHA-256 in an invitation: finding another key with the same bytes takes 2¹²⁸
/// tries.
pub(super) const FINGERPRINT_LEN: usize = 16;

/// Identifies a key: the first bytes of the SHA-256 of a public key (SubjectPublicKeyInfo, DER).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(super) [u8; FINGERPRINT_LEN]);

impl Fingerprint {
    pub(crate) fn of_key(public_key_der: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, public_key_der);
        let mut first = [0; FINGERPRINT_LEN];
        first.copy_from_slice(&digest.as_ref()[..FINGERPRINT_LEN]);
        Self(first)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; FINGERPRINT_LEN] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; FINGERPRINT_LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64URL_NOPAD.encode(&self.0))
    }
}
