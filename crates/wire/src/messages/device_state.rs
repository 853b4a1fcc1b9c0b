//! What a guest's life depends on: the check over its device state.

use thiserror::Error;

/// Most bytes in one piece of device state: 512 KiB.
pub const MAX_DEVICE_CHUNK: usize = 512 << 10;

/// Most bytes of device state in all: 256 MiB. A QEMU guest with emulated
/// devices has some hundred kilobytes; the bound keeps a faulty peer from
/// filling the destination's memory.
pub const MAX_DEVICE_STATE: u64 = 256 << 20;

/// Length and CRC-32C of the device state, kept up as its pieces are sent or
/// come in. The source states both in
/// [`Switch`](crate::ToDestination::Switch), and the destination loads nothing
/// that does not [match](Self::verify).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStateDigest {
    bytes: u64,
    crc32c: u32,
}

impl DeviceStateDigest {
    /// Of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: 0,
            crc32c: 0,
        }
    }

    /// Takes in the next piece.
    ///
    /// # Errors
    ///
    /// If the state grows beyond [`MAX_DEVICE_STATE`]; the piece is not taken
    /// in then.
    pub fn update(&mut self, piece: &[u8]) -> Result<(), DeviceStateError> {
        let bytes = self.bytes.saturating_add(piece.len() as u64);
        if bytes > MAX_DEVICE_STATE {
            return Err(DeviceStateError::TooLong { bytes });
        }
        self.bytes = bytes;
        self.crc32c = crc32c::crc32c_append(self.crc32c, piece);
        Ok(())
    }

    /// Number of bytes so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// CRC-32C of the bytes so far.
    #[must_use]
    pub const fn crc32c(&self) -> u32 {
        self.crc32c
    }

    /// Whether what came in is what the source says it sent.
    ///
    /// # Errors
    ///
    /// If length or checksum differ: the state must not be loaded.
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
        "taking in the device state: it is at least {bytes} bytes long, at most {MAX_DEVICE_STATE} are possible; the guest stays at the source"
    )]
    TooLong {
        /// Its length with the piece that was too much.
        bytes: u64,
    },
    /// Some of it is missing, or there is too much.
    #[error(
        "checking the device state: {received} bytes arrived, the source sent {sent}; it was not loaded, the guest stays at the source; migrate again"
    )]
    Length {
        /// Bytes that the source sent.
        sent: u64,
        /// Bytes that arrived.
        received: u64,
    },
    /// It was changed on its way.
    #[error(
        "checking the device state: its checksum is {received:#010x}, the source sent {sent:#010x}; it was not loaded, the guest stays at the source; migrate again"
    )]
    Checksum {
        /// Checksum of what the source sent.
        sent: u32,
        /// Checksum of what arrived.
        received: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_the_whole() {
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
    fn the_checksum_is_the_castagnoli_one() {
        // The check value of CRC-32/ISCSI.
        let mut digest = DeviceStateDigest::new();
        digest.update(b"123456789").unwrap();
        assert_eq!(digest.crc32c(), 0xe306_9283);
    }

    #[test]
    fn a_changed_a_missing_and_a_surplus_byte_are_noticed() {
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
    fn state_without_end_is_refused() {
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
