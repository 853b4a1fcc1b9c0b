//! The sending direction: plain bytes become TLS records.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::tls::keys::{DATA, HANDSHAKE, HEADER, KEY_UPDATE, Key, KeyRenewal, MAX_PLAIN, TAG};

/// The number of records after which the key is renewed: half of what the weakest cipher suite
/// allows (AES-GCM, 2^24: RFC 8446, section 5.5).
const RENEW_AFTER: u64 = 1 << 23;

/// Seals the records of one direction of a connection.
#[derive(Debug)]
pub struct Sealer {
    key: Key,
    renewal: Arc<KeyRenewal>,
    renew_after: u64,
}

impl Sealer {
    pub(crate) fn new(key: Key, renewal: Arc<KeyRenewal>) -> Self {
        Self {
            key,
            renewal,
            renew_after: RENEW_AFTER,
        }
    }

    /// The maximum number of bytes that [`seal`](Self::seal) makes of `plain` bytes.
    pub const fn sealed_len(plain: usize) -> usize {
        let records = plain / MAX_PLAIN + 1;
        // One more record for a key update.
        plain + (records + 1) * (HEADER + 1 + TAG) + KEY_UPDATE.len()
    }

    /// Seals `head` and then `body`, and appends the records to `sealed`. They must be sent before
    /// anything that is sealed later.
    ///
    /// # Errors
    /// When a record cannot be sealed; then nothing more may be sent.
    pub fn seal(&mut self, head: &[u8], body: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        let (mut head, mut body) = (head, body);
        while !head.is_empty() || !body.is_empty() {
            if self.key.records() >= self.renew_after
                || self.renewal.update_requested.swap(false, Ordering::Relaxed)
            {
                self.record(&KEY_UPDATE, &[], HANDSHAKE, sealed)?;
                self.key = self.renewal.next(|renew| renew.next_tx())?;
            }
            let (first, head_rest) = head.split_at(head.len().min(MAX_PLAIN));
            let (second, body_rest) = body.split_at(body.len().min(MAX_PLAIN - first.len()));
            self.record(first, second, DATA, sealed)?;
            (head, body) = (head_rest, body_rest);
        }
        Ok(())
    }

    fn record(
        &mut self,
        first: &[u8],
        second: &[u8],
        kind: u8,
        sealed: &mut Vec<u8>,
    ) -> io::Result<()> {
        let len = first.len() + second.len() + 1 + TAG;
        let [.., high, low] = len.to_be_bytes();
        // A record looks like TLS 1.2 (RFC 8446, section 5.2).
        let header: [u8; HEADER] = [DATA, 3, 3, high, low];
        sealed.extend_from_slice(&header);
        let from = sealed.len();
        sealed.extend_from_slice(first);
        sealed.extend_from_slice(second);
        sealed.push(kind);
        let tag = self.key.seal(&header, &mut sealed[from..])?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Updates the key and requests a key update of the peer.
    #[cfg(test)]
    pub(crate) fn request_key_update(&mut self, sealed: &mut Vec<u8>) {
        self.record(&[24, 0, 0, 1, 1], &[], HANDSHAKE, sealed)
            .unwrap();
        self.key = self.renewal.next(|renew| renew.next_tx()).unwrap();
    }

    /// Sets the number of records after which the key is renewed.
    #[cfg(test)]
    pub(crate) fn renew_after(&mut self, records: u64) {
        self.renew_after = records;
    }
}
