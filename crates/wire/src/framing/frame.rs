//! Frame headers.
//!
//! ```text
//! offset  bytes
//!      0      2  magic "hk"
//!      2      1  kind
//!      3      1  0
//!      4      4  length of the payload that follows, in bytes
//!      8      8  first page | bytes acknowledged | 0
//!     16      4  number of pages | 0
//!     20      4  CRC-32C of the 20 bytes before
//! ```
//!
//! All numbers are little-endian. Each frame has exactly one encoding: fields
//! that a kind does not use must be 0.

use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, usize_from};
use thiserror::Error;

use super::fields::{field, put};
use crate::limits::Limits;

/// The length of a frame header in bytes.
pub const HEADER_LEN: usize = 24;

/// The most bytes in one frame of a disk's link: 256 KiB.
pub const MAX_DISK_BYTES: usize = 256 << 10;

/// The most pages in one frame with contents: 1 MiB. Bounds how long an urgent
/// page waits behind a background frame on a shared connection.
pub const MAX_PAGES_PER_FRAME: u64 = 256;

/// The most pages in one request: 1 GiB, the largest host page.
pub const MAX_PAGES_PER_REQUEST: u64 = 1 << 18;

/// The most pages in one frame of zero pages: 1 GiB.
pub const MAX_PAGES_PER_ZEROS: u64 = 1 << 18;

const MAGIC: [u8; 2] = *b"hk";

const CONTROL: u8 = 1;
const PAGES: u8 = 2;
const ZEROS: u8 = 3;
const REQUEST: u8 = 4;
const ACK: u8 = 5;
const DISK: u8 = 6;
const LZ4: u8 = 7;
const ZSTD: u8 = 8;

/// How the contents of pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressionMethod {
    /// One block of LZ4 (the LZ4 block format), without a size before it.
    Lz4,
    /// One frame of Zstandard (RFC 8878).
    Zstd,
}

impl CompressionMethod {
    /// All methods.
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A frame, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A control message of `len` bytes follows: 1 to [`Limits::max_control`]. See
    /// [`decode_control`](crate::decode_control).
    Control {
        /// The length of the encoded message in bytes.
        len: u32,
    },
    /// The contents of 1 to [`MAX_PAGES_PER_FRAME`] pages follow, 4096 bytes
    /// for each.
    Pages {
        /// The pages.
        range: PageRange,
    },
    /// These pages, 1 to [`MAX_PAGES_PER_ZEROS`], hold only zeros.
    Zeros {
        /// The pages.
        range: PageRange,
    },
    /// The destination requests these pages, 1 to [`MAX_PAGES_PER_REQUEST`].
    Request {
        /// The pages.
        range: PageRange,
    },
    /// The destination has processed this many bytes of this background link.
    Ack {
        /// The bytes since the hello, headers included.
        bytes: u64,
    },
    /// The next bytes of a disk's connection follow: at most
    /// [`MAX_DISK_BYTES`]. None: no more follow in this direction.
    Disk {
        /// The number of bytes.
        len: u32,
    },
    /// The contents of 1 to [`MAX_PAGES_PER_FRAME`] pages follow, compressed: only to a
    /// destination with [`Features::COMPRESSED_PAGES`](crate::Features::COMPRESSED_PAGES), and only
    /// if they are smaller than the pages.
    Compressed {
        /// The pages.
        range: PageRange,
        /// How they are compressed.
        method: CompressionMethod,
        /// The number of bytes that follow: at least 1, and less than the pages have.
        len: u32,
    },
}

impl Frame {
    /// Returns the frame's header.
    ///
    /// The caller keeps the limits that the variants state. A frame beyond them
    /// is a bug (debug builds panic), and the other side refuses its header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let (value, pages) = match *self {
            Self::Control { .. } | Self::Disk { .. } => (0, 0),
            Self::Pages { range }
            | Self::Zeros { range }
            | Self::Request { range }
            | Self::Compressed { range, .. } => (range.start().index(), range.len()),
            Self::Ack { bytes } => (bytes, 0),
        };
        debug_assert!(
            self.max_pages()
                .is_none_or(|max| (1..=max).contains(&pages)),
            "{self:?} is beyond its limits"
        );
        let mut header = [0; HEADER_LEN];
        put::<0, 2, HEADER_LEN>(&mut header, MAGIC);
        put::<2, 1, HEADER_LEN>(&mut header, [self.kind()]);
        // Saturated numbers are beyond every limit, so the peer refuses them.
        let payload = u32::try_from(self.payload_len()).unwrap_or(u32::MAX);
        put::<4, 4, HEADER_LEN>(&mut header, payload.to_le_bytes());
        put::<8, 8, HEADER_LEN>(&mut header, value.to_le_bytes());
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        put::<16, 4, HEADER_LEN>(&mut header, pages.to_le_bytes());
        let checksum = checksum(&header);
        put::<20, 4, HEADER_LEN>(&mut header, checksum.to_le_bytes());
        header
    }

    /// Decodes a header.
    ///
    /// The returned frame is within all limits: its range is not empty and
    /// inside the layout, and its payload is not longer than the variant states.
    ///
    /// # Errors
    ///
    /// See [`DecodeError`]. After any of them the stream cannot be decoded
    /// further: close the link.
    pub fn decode(header: &[u8; HEADER_LEN], limits: &Limits) -> Result<Self, DecodeError> {
        let magic = field::<0, 2, HEADER_LEN>(header);
        if magic != MAGIC {
            return Err(DecodeError::NotAFrame { found: magic });
        }
        let stated = u32::from_le_bytes(field::<20, 4, HEADER_LEN>(header));
        let computed = checksum(header);
        if stated != computed {
            return Err(DecodeError::Checksum { stated, computed });
        }
        let [kind, reserved] = field::<2, 2, HEADER_LEN>(header);
        let payload = u32::from_le_bytes(field::<4, 4, HEADER_LEN>(header));
        let value = u64::from_le_bytes(field::<8, 8, HEADER_LEN>(header));
        let count = u64::from(u32::from_le_bytes(field::<16, 4, HEADER_LEN>(header)));
        let range = PageRange::from_len(Page::new(value), count);
        let frame = match kind {
            CONTROL => Self::Control { len: payload },
            PAGES => Self::Pages { range },
            ZEROS => Self::Zeros { range },
            REQUEST => Self::Request { range },
            ACK => Self::Ack { bytes: value },
            DISK => Self::Disk { len: payload },
            LZ4 | ZSTD => Self::Compressed {
                range,
                method: if kind == LZ4 {
                    CompressionMethod::Lz4
                } else {
                    CompressionMethod::Zstd
                },
                len: payload,
            },
            _ => return Err(DecodeError::UnknownKind { kind }),
        };
        let name = frame.name();
        if let Some(max) = frame.max_pages() {
            if !(1..=max).contains(&count) {
                return Err(DecodeError::PageCount { name, count, max });
            }
            if value
                .checked_add(count)
                .is_none_or(|end| end > limits.pages)
            {
                return Err(DecodeError::OutsideLayout {
                    name,
                    first: value,
                    count,
                    pages: limits.pages,
                });
            }
        } else if count != 0 {
            return Err(DecodeError::Malformed { name });
        }
        if let Self::Control { len } = frame {
            let max = limits.max_control();
            if len == 0 || usize_from(u64::from(len)) > max {
                return Err(DecodeError::ControlLength { len, max });
            }
            if value != 0 {
                return Err(DecodeError::Malformed { name });
            }
        }
        if let Self::Disk { len } = frame {
            if usize_from(u64::from(len)) > MAX_DISK_BYTES {
                return Err(DecodeError::DiskLength { len });
            }
            if value != 0 {
                return Err(DecodeError::Malformed { name });
            }
        }
        if let Self::Compressed { range, len, .. } = frame
            && (len == 0 || u64::from(len) >= range.bytes())
        {
            let most = range.bytes() - 1;
            return Err(DecodeError::CompressedLength { len, most });
        }
        if reserved != 0 || usize_from(u64::from(payload)) != frame.payload_len() {
            return Err(DecodeError::Malformed { name });
        }
        Ok(frame)
    }

    /// Returns the number of bytes that follow the header.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        match *self {
            Self::Control { len } | Self::Disk { len } | Self::Compressed { len, .. } => {
                usize_from(u64::from(len))
            }
            Self::Pages { range } => usize_from(range.len()).saturating_mul(PAGE_SIZE),
            Self::Zeros { .. } | Self::Request { .. } | Self::Ack { .. } => 0,
        }
    }

    /// Returns its name in messages to people.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Control { .. } => "control",
            Self::Pages { .. } => "pages",
            Self::Zeros { .. } => "zeros",
            Self::Request { .. } => "request",
            Self::Ack { .. } => "acknowledgement",
            Self::Disk { .. } => "disk",
            Self::Compressed { .. } => "compressed pages",
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Control { .. } => CONTROL,
            Self::Pages { .. } => PAGES,
            Self::Zeros { .. } => ZEROS,
            Self::Request { .. } => REQUEST,
            Self::Ack { .. } => ACK,
            Self::Disk { .. } => DISK,
            Self::Compressed { method, .. } => match method {
                CompressionMethod::Lz4 => LZ4,
                CompressionMethod::Zstd => ZSTD,
            },
        }
    }

    /// The most pages, for the kinds with a range.
    const fn max_pages(&self) -> Option<u64> {
        match self {
            Self::Pages { .. } | Self::Compressed { .. } => Some(MAX_PAGES_PER_FRAME),
            Self::Zeros { .. } => Some(MAX_PAGES_PER_ZEROS),
            Self::Request { .. } => Some(MAX_PAGES_PER_REQUEST),
            Self::Control { .. } | Self::Ack { .. } | Self::Disk { .. } => None,
        }
    }
}

fn checksum(header: &[u8; HEADER_LEN]) -> u32 {
    crc32c::crc32c(&field::<0, 20, HEADER_LEN>(header))
}

/// Why a frame header was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It does not begin like a frame header.
    #[error(
        "reading a frame header: it begins with the bytes {found:02x?}, not {MAGIC:02x?}; the peer does not speak this protocol or the stream is out of step; close the link"
    )]
    NotAFrame {
        /// The two bytes found.
        found: [u8; 2],
    },
    /// It was damaged, or the bytes are not a header.
    #[error(
        "reading a frame header: it states the checksum {stated:#010x} but has {computed:#010x}; it was damaged in transit or the stream is out of step; close the link"
    )]
    Checksum {
        /// The checksum in the header.
        stated: u32,
        /// The checksum of the header.
        computed: u32,
    },
    /// A kind that this version does not have.
    #[error(
        "reading a frame header: frames of kind {kind} are unknown to this version; close the link, and use the same version of hikkoshi on both sides"
    )]
    UnknownKind {
        /// The number of the kind.
        kind: u8,
    },
    /// Fields contradict each other, or an unused field is not 0.
    #[error(
        "reading a frame header: the fields of this {name} frame contradict each other; the peer is faulty; close the link"
    )]
    Malformed {
        /// Its kind.
        name: &'static str,
    },
    /// A control message that is empty or too long.
    #[error(
        "reading a frame header: it announces a control message of {len} bytes, 1 to {max} are possible; the peer is faulty; close the link"
    )]
    ControlLength {
        /// The length in bytes.
        len: u32,
        /// The longest possible.
        max: usize,
    },
    /// Too many bytes of a disk.
    #[error(
        "reading a frame header: it announces {len} bytes of a disk, at most {MAX_DISK_BYTES} are possible; the peer is faulty; close the link"
    )]
    DiskLength {
        /// The number of bytes.
        len: u32,
    },
    /// Compressed pages of no bytes, or that compression has not made smaller.
    #[error(
        "reading a frame header: it announces compressed pages of {len} bytes, 1 to {most} are possible for so many pages; the peer is faulty; close the link"
    )]
    CompressedLength {
        /// The number of bytes.
        len: u32,
        /// The most bytes for the pages of the frame.
        most: u64,
    },
    /// No pages, or too many.
    #[error(
        "reading a frame header: a {name} frame for {count} pages, 1 to {max} are possible; the peer is faulty; close the link"
    )]
    PageCount {
        /// Its kind.
        name: &'static str,
        /// The number of pages.
        count: u64,
        /// The most pages of this kind of frame.
        max: u64,
    },
    /// Pages that the guest does not have.
    #[error(
        "reading a frame header: a {name} frame for {count} pages from page {first} on, but the guest has only {pages} pages; the peer is faulty or moves another guest; close the link"
    )]
    OutsideLayout {
        /// Its kind.
        name: &'static str,
        /// The first page.
        first: u64,
        /// The number of pages.
        count: u64,
        /// The number of pages in the layout.
        pages: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_CONTROL;

    const LIMITS: Limits = Limits { pages: 1 << 20 };

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::from_len(Page::new(start), pages)
    }

    /// A header with these fields and a correct checksum.
    fn header(kind: u8, reserved: u8, payload: u32, value: u64, count: u32) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        put::<0, 2, HEADER_LEN>(&mut header, MAGIC);
        put::<2, 2, HEADER_LEN>(&mut header, [kind, reserved]);
        put::<4, 4, HEADER_LEN>(&mut header, payload.to_le_bytes());
        put::<8, 8, HEADER_LEN>(&mut header, value.to_le_bytes());
        put::<16, 4, HEADER_LEN>(&mut header, count.to_le_bytes());
        let checksum = checksum(&header);
        put::<20, 4, HEADER_LEN>(&mut header, checksum.to_le_bytes());
        header
    }

    fn refused(header: [u8; HEADER_LEN]) -> DecodeError {
        Frame::decode(&header, &LIMITS).expect_err("must be refused")
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let bytes = Frame::Pages {
            range: range(0x0102_0304, 2),
        };
        let limits = Limits { pages: 1 << 30 };
        let expected = header(2, 0, 8192, 0x0102_0304, 2);
        assert_eq!(bytes.encode(), expected);
        assert_eq!(
            &expected[..12],
            b"hk\x02\x00\x00\x20\x00\x00\x04\x03\x02\x01"
        );
        assert_eq!(Frame::decode(&expected, &limits), Ok(bytes));
    }

    #[test]
    fn any_changed_bit_is_detected() {
        let good = Frame::Zeros {
            range: range(1000, 300),
        }
        .encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::decode(&bad, &LIMITS).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn counts_are_bounded_for_each_kind() {
        for (kind, max) in [
            (2u8, 256u32),
            (3, 1 << 18),
            (4, 1 << 18),
            (7, 256),
            (8, 256),
        ] {
            let payload = |count| match kind {
                2 => count * 4096,
                7 | 8 => 1000,
                _ => 0,
            };
            assert!(Frame::decode(&header(kind, 0, payload(max), 0, max), &LIMITS).is_ok());
            for count in [0, max + 1] {
                let error = refused(header(kind, 0, payload(count), 0, count));
                assert!(matches!(error, DecodeError::PageCount { .. }), "{error}");
            }
        }
    }

    #[test]
    fn ranges_must_lie_in_the_layout() {
        let last = (1 << 20) - 1;
        for kind in [2u8, 3, 4, 7, 8] {
            let payload = |count| match kind {
                2 => count * 4096,
                7 | 8 => 1000,
                _ => 0,
            };
            assert!(Frame::decode(&header(kind, 0, payload(1), last, 1), &LIMITS).is_ok());
            for (first, count) in [(last, 2), (last + 1, 1), (u64::MAX, 1), (u64::MAX - 1, 2)] {
                let error = refused(header(kind, 0, payload(count), first, count));
                assert!(
                    matches!(error, DecodeError::OutsideLayout { .. }),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for bad in [
            header(2, 0, 4095, 0, 1),
            header(2, 0, 0, 0, 1),
            header(2, 1, 4096, 0, 1),
            header(3, 0, 4096, 0, 1),
            header(4, 0, 1, 0, 1),
            header(1, 0, 5, 1, 0),
            header(1, 0, 5, 0, 1),
            header(5, 0, 8, 1, 0),
            header(5, 0, 0, 1, 1),
            header(6, 0, 8, 1, 0),
            header(6, 0, 8, 0, 1),
            header(7, 1, 8, 0, 1),
            header(8, 1, 8, 0, 1),
        ] {
            let error = refused(bad);
            assert!(matches!(error, DecodeError::Malformed { .. }), "{error}");
        }
        for len in [0, (1 << 20) + 1, u32::MAX] {
            let error = refused(header(1, 0, len, 0, 0));
            let max = MAX_CONTROL;
            assert_eq!(error, DecodeError::ControlLength { len, max });
        }
        // Before the layout is known, a message may be an offer.
        let offer = Limits { pages: 0 };
        for (len, is_possible) in [((1 << 20) + 1, true), ((4 << 20) + 1, false)] {
            let decoded = Frame::decode(&header(1, 0, len, 0, 0), &offer);
            assert_eq!(decoded.is_ok(), is_possible, "{len}");
        }
        for len in [(256 << 10) + 1, u32::MAX] {
            let error = refused(header(6, 0, len, 0, 0));
            assert_eq!(error, DecodeError::DiskLength { len });
        }
        for kind in [7, 8] {
            for (count, len) in [(1, 0), (1, 4096), (2, 8192), (256, 1 << 20), (1, u32::MAX)] {
                let error = refused(header(kind, 0, len, 0, count));
                let most = u64::from(count) * 4096 - 1;
                assert_eq!(error, DecodeError::CompressedLength { len, most });
            }
            for (count, len) in [(1, 1), (1, 4095), (256, (1 << 20) - 1)] {
                let frame = Frame::decode(&header(kind, 0, len, 0, count), &LIMITS).unwrap();
                assert_eq!(frame.payload_len(), len as usize);
            }
        }
        for kind in [0, 9, 255] {
            assert_eq!(
                refused(header(kind, 0, 0, 0, 0)),
                DecodeError::UnknownKind { kind }
            );
        }
        assert_eq!(
            refused([0; HEADER_LEN]),
            DecodeError::NotAFrame { found: [0; 2] }
        );
    }

    #[test]
    fn an_error_says_what_is_wrong_and_what_to_do() {
        assert_eq!(
            refused(header(4, 0, 0, 1 << 20, 3)).to_string(),
            "reading a frame header: a request frame for 3 pages from page 1048576 on, but the \
             guest has only 1048576 pages; the peer is faulty or moves another guest; close the \
             link"
        );
        assert_eq!(
            refused(*b"SSH-2.0-OpenSSH_9.2p1 De").to_string(),
            "reading a frame header: it begins with the bytes [53, 53], not [68, 6b]; the peer \
             does not speak this protocol or the stream is out of step; close the link"
        );
    }
}
