//! The keys of one direction of a protected connection, and how they are updated.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use ring::aead::{self, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use rustls::kernel::KernelConnection;

/// The largest content of a record (RFC 8446, section 5.1), in bytes.
pub(crate) const MAX_PLAIN: usize = 1 << 14;

/// Bytes before a record's content: type, version, length.
pub(crate) const HEADER: usize = 5;

/// Bytes of the authentication tag; the same for all cipher suites of TLS 1.3.
pub(crate) const TAG: usize = 16;

/// Record type: application data.
pub(crate) const DATA: u8 = 23;
/// Record type: handshake. After the handshake this is only a key update.
pub(crate) const HANDSHAKE: u8 = 22;
/// Record type: alert. The peer ends the connection, and may send a reason.
pub(crate) const ALERT: u8 = 21;

/// A key update that does not request one of the peer (RFC 8446, section 4.6.3).
pub(crate) const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// Derives the next keys of a connection.
pub(crate) trait Renew: Send {
    /// The next key for sending.
    fn next_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
    /// The next key for receiving.
    fn next_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
}

impl<D: Send> Renew for KernelConnection<D> {
    fn next_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_tx_secret()
    }

    fn next_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_rx_secret()
    }
}

/// What the two directions share. It is needed once in millions of records.
pub(crate) struct KeyRenewal {
    pub(crate) renew: Mutex<Box<dyn Renew>>,
    /// The peer has requested a key update in the other direction.
    pub(crate) update_requested: AtomicBool,
}

impl KeyRenewal {
    pub(crate) fn new(renew: Box<dyn Renew>) -> Arc<Self> {
        Arc::new(Self {
            renew: Mutex::new(renew),
            update_requested: AtomicBool::new(false),
        })
    }

    /// Derives the next key, by one of [`Renew`]'s methods.
    pub(crate) fn next(
        &self,
        which: impl FnOnce(&mut dyn Renew) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>,
    ) -> io::Result<Key> {
        let mut renew = self
            .renew
            .lock()
            .map_err(|_| io::Error::other("a thread panicked while it renewed the keys"))?;
        Key::new(which(&mut **renew).map_err(io::Error::other)?)
    }
}

impl fmt::Debug for KeyRenewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRenewal").finish_non_exhaustive()
    }
}

/// One direction's key, and the number of the next record.
pub(crate) struct Key {
    aead: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    sequence: u64,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Key {
    pub(crate) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Self> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let (algorithm, key, iv) = match &secrets {
            Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
            Chacha20Poly1305 { key, iv } => (&aead::CHACHA20_POLY1305, key, iv),
            _ => return Err(io::Error::other("an unknown cipher was negotiated")),
        };
        let unusable = |_| io::Error::other("the negotiated keys cannot be used");
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(unusable)?;
        let iv = iv
            .as_ref()
            .try_into()
            .map_err(|_| io::Error::other("the negotiated keys cannot be used"))?;
        Ok(Self {
            aead: LessSafeKey::new(key),
            iv,
            sequence,
        })
    }

    /// How many records were sealed or opened with this key.
    pub(crate) fn records(&self) -> u64 {
        self.sequence
    }

    /// The next record's nonce: never the same twice (RFC 8446, section 5.3).
    fn nonce(&mut self) -> io::Result<Nonce> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence = self
            .sequence
            .checked_add(1)
            .ok_or_else(|| io::Error::other("too many records with one key"))?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Encrypts `content` in place; returns the tag that follows it.
    pub(crate) fn seal(&mut self, header: &[u8], content: &mut [u8]) -> io::Result<aead::Tag> {
        let nonce = self.nonce()?;
        self.aead
            .seal_in_place_separate_tag(nonce, aead::Aad::from(header), content)
            .map_err(|_| io::Error::other("a TLS record could not be encrypted"))
    }

    /// Decrypts `sealed` (with its tag) in place; returns the content.
    pub(crate) fn open<'a>(
        &mut self,
        header: [u8; HEADER],
        sealed: &'a mut [u8],
    ) -> io::Result<&'a mut [u8]> {
        let nonce = self.nonce()?;
        self.aead
            .open_in_place(nonce, aead::Aad::from(header), sealed)
            .map_err(|_| {
                let text = "a TLS record was changed in transit, or forged";
                io::Error::new(io::ErrorKind::InvalidData, text)
            })
    }
}
