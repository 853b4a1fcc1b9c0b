//! Length and checksum of the device state.

use thiserror::Error;

/// The most bytes in one piece of device state: 512 KiB.
pub const MAX_DEVICE_CHUNK: usize = 512 << 10;

/// The most bytes of device state in total: 256 MiB. A QEMU guest with emulated
/// devices has some hundred kilobytes. The bound prevents a faulty peer from
/// filling the destination's memory.
pub const MAX_DEVICE_STATE: u64 = 256 << 20;

/// Length and CRC-32C of the device state, updated with each piece that is sent
/// or received. The source sends both in
/// [`Switch`](crate::ToDestination::Switch), and the destination loads only a
/// device state that [matches](Self::verify) them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStateDigest {
    bytes: u64,
    crc32c: u32,
}

impl DeviceStateDigest {
    /// The digest of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: 0,
            crc32c: 0,
        }
    }

    /// Adds the next piece.
    ///
    /// # Errors
    ///
    /// If the state grows beyond [`MAX_DEVICE_STATE`]; the piece is not added
    /// then.
    pub fn update(&mut self, piece: &[u8]) -> Result<(), DeviceStateError> {
        let bytes = self.bytes.saturating_add(piece.len() as u64);
        if bytes > MAX_DEVICE_STATE {
            return Err(DeviceStateError::TooLong { bytes });
        }
        self.bytes = bytes;
        self.crc32c = crc32c::crc32c_append(self.crc32c, piece);
        Ok(())
    }

    /// The number of bytes so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The CRC-32C of the bytes so far.
    #[must_use]
    pub const fn crc32c(&self) -> u32 {
        self.crc32c
    }

    /// Checks that what arrived is what the source sent.
    ///
    /// # Errors
    ///
    /// If the length or the checksum differs: the state must not be loaded.
    pub const fn verify(&self, bytes: u64, crc32c: u32) -> Result<(), DeviceStateError> {
        if self.bytes != bytes {
            return Err(DeviceStateError::Length {
                sent: bytes,
                received: self.bytes,
            });
        }
        if self.crc32c != crc32c {
            return Err(DeviceStateError::Checksum {
                sent: crc32c,
                received: self.crc32c,
            });
        }
        Ok(())
    }
}

/// Why device state was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceStateError {
    /// More than [`MAX_DEVICE_STATE`].
    #[error(
        "receiving the device state: it has at least {bytes} bytes, the limit is {MAX_DEVICE_STATE}; the guest stays at the source"
    )]
    TooLong {
        /// Its length including the piece that exceeded the limit.
        bytes: u64,
    },
    /// It is shorter or longer than what was sent.
    #[error(
        "checking the device state: {received} bytes arrived, the source sent {sent}; it was not loaded, the guest stays at the source; migrate again"
    )]
    Length {
        /// The bytes that the source sent.
        sent: u64,
        /// The bytes that arrived.
        received: u64,
    },
    /// It was changed in transit.
    #[error(
        "checking the device state: its checksum is {received:#010x}, the source sent {sent:#010x}; it was not loaded, the guest stays at the source; migrate again"
    )]
    Checksum {
        /// The checksum of what the source sent.
        sent: u32,
        /// The checksum of what arrived.
        received: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let state: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[1]).collect();
        let mut whole = DeviceStateDigest::new();
        whole.update(&state).unwrap();
        let mut pieces = DeviceStateDigest::new();
        for piece in state.chunks(7777) {
            pieces.update(piece).unwrap();
        }
        assert_eq!(whole, pieces);
        assert_eq!(whole.bytes(), 100_000);
        assert_eq!(pieces.verify(whole.bytes(), whole.crc32c()), Ok(()));
    }

    #[test]
    fn the_checksum_is_crc32c() {
        // The check value of CRC-32/ISCSI.
        let mut digest = DeviceStateDigest::new();
        digest.update(b"123456789").unwrap();
        assert_eq!(digest.crc32c(), 0xe306_9283);
    }

    #[test]
    fn a_changed_a_missing_and_an_extra_byte_are_detected() {
        let digest = |state: &[u8]| {
            let mut digest = DeviceStateDigest::new();
            digest.update(state).unwrap();
            digest
        };
        let sent = digest(b"device state");
        let verify = |state| digest(state).verify(sent.bytes(), sent.crc32c());
        assert!(verify(b"device state").is_ok());
        for bad in [&b"device stat"[..], b"device state "] {
            assert!(matches!(verify(bad), Err(DeviceStateError::Length { .. })));
        }
        let error = verify(b"device statf").unwrap_err();
        assert!(
            matches!(error, DeviceStateError::Checksum { .. }),
            "{error}"
        );
    }

    #[test]
    fn state_beyond_the_limit_is_refused() {
        let piece = vec![0; MAX_DEVICE_CHUNK];
        let mut digest = DeviceStateDigest::new();
        for _ in 0..MAX_DEVICE_STATE / piece.len() as u64 {
            digest.update(&piece).unwrap();
        }
        let full = digest;
        let error = digest.update(&[0]).unwrap_err();
        assert_eq!(
            error,
            DeviceStateError::TooLong {
                bytes: MAX_DEVICE_STATE + 1
            }
        );
        assert_eq!(digest, full);
    }
}
