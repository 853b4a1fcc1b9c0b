//! Finds the headers in a stream of bytes that comes in pieces of any size.

/// The stream is not what was expected here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownFraming;

/// The position in a stream of headers, each of which may be followed by other bytes.
#[derive(Debug, Default)]
pub(super) struct Framing {
    /// The beginning of the next header.
    header: Vec<u8>,
    /// Bytes before it.
    skip: u64,
}

impl Framing {
    /// Takes bytes from the front of `bytes` up to the end of the next header. `None`: there are
    /// too few. `len` returns the length of a header, or of the part of it that says how long it
    /// is.
    pub(super) fn next(
        &mut self,
        bytes: &mut &[u8],
        len: impl Fn(&[u8]) -> Result<usize, UnknownFraming>,
    ) -> Result<Option<Vec<u8>>, UnknownFraming> {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX);
        let (skipped, rest) = bytes.split_at(skipped.min(bytes.len()));
        self.skip -= skipped.len() as u64;
        *bytes = rest;
        loop {
            let missing = len(&self.header)?.saturating_sub(self.header.len());
            if missing == 0 {
                return Ok(Some(std::mem::take(&mut self.header)));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.header.extend_from_slice(taken);
            *bytes = rest;
        }
    }

    /// So many bytes follow the header that are not one.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.skip = bytes;
    }
}

/// The number at this place of a header, which is long enough.
pub(super) fn u16_at(header: &[u8], at: usize) -> u16 {
    let bytes = header.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// The number of this width at this place of a header, which is long enough.
pub(super) fn u32_at(header: &[u8], at: usize) -> u32 {
    let bytes = header.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The number of this width at this place of a header, which is long enough.
pub(super) fn u64_at(header: &[u8], at: usize) -> u64 {
    let bytes = header.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
