//! The head of a file from which libvirt restores a domain.
//!
//! `qemu_saveimage.h` of libvirt defines it; version 2 is written since 2010 and read by every
//! later libvirt. The numbers are of the host's byte order.
//!
//! ```text
//! offset  bytes
//!      0     16  magic "LibvirtQemudSave"
//!     16      4  version: 2
//!     20      4  length of what follows the head, with its end mark
//!     24      4  whether the domain ran
//!     28      4  compression: 0 none
//!     32      4  offset of the cookie in what follows: 0 none
//!     36     56  zero
//!     92         the domain's XML, zero bytes; then QEMU's migration stream
//! ```
//!
//! libvirt itself writes zero bytes behind the XML, as room for changes. Here they fill a block:
//! the helper that libvirt 12.9 has between the file and itself passes on whole blocks only.
//!
//! The cookie repeats the exact processor, which a running domain's migratable XML has as well.

/// Bytes before the XML.
const HEAD_BYTES: usize = 92;

/// What a helper passes on at once (`src/util/iohelper.c`).
const BLOCK_BYTES: usize = 1 << 20;

/// Everything before QEMU's stream.
pub(super) fn head(xml: &str, running: bool) -> Vec<u8> {
    let bytes = (HEAD_BYTES + xml.len() + 1).next_multiple_of(BLOCK_BYTES);
    let length = u32::try_from(bytes - HEAD_BYTES).unwrap_or(u32::MAX);
    let mut head = b"LibvirtQemudSave".to_vec();
    for number in [2, length, u32::from(running), 0, 0] {
        head.extend(number.to_ne_bytes());
    }
    head.resize(HEAD_BYTES, 0);
    head.extend(xml.as_bytes());
    head.resize(bytes, 0);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a file that libvirt 9.0 has written, without its cookie.
    #[test]
    fn the_head_is_as_libvirt_writes_it() {
        let head = head("<domain/>", true);
        assert_eq!(head.len(), BLOCK_BYTES);
        assert_eq!(&head[..20], b"LibvirtQemudSave\x02\0\0\0");
        assert_eq!(&head[20..36], b"\xa4\xff\x0f\0\x01\0\0\0\0\0\0\0\0\0\0\0");
        assert!(head[36..92].iter().all(|byte| *byte == 0));
        assert_eq!(&head[92..101], b"<domain/>");
        assert!(head[101..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_zero_byte_follows_each_description() {
        let fits = BLOCK_BYTES - HEAD_BYTES - 1;
        for (bytes, blocks) in [(fits, 1), (fits + 1, 2)] {
            let head = head(&" ".repeat(bytes), true);
            assert_eq!(head.len(), blocks * BLOCK_BYTES);
            assert_eq!(head[HEAD_BYTES + bytes], 0);
        }
    }
}
