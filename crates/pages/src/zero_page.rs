//! The zero-page test.

/// Number of bytes that are tested without a branch. Large enough for vector instructions, small
/// enough to reject a page with data in its first bytes quickly.
const STEP: usize = 256;

/// Whether all bytes are zero. Intended for one page or several, but any length is allowed; an
/// empty slice counts as zero.
///
/// The memory of a running guest can change during the test: test a copy, not the mapping.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    steps.iter().all(|step| any_bit(step) == 0) && any_bit(rest) == 0
}

/// ORs all bytes without a branch, so that the compiler vectorizes the loop.
fn any_bit(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |seen, byte| seen | byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    #[test]
    fn every_byte_is_tested() {
        let mut page = vec![0u8; PAGE_SIZE + 7];
        assert!(is_zero(&page));
        assert!(is_zero(&[]));
        for at in 0..page.len() {
            page[at] = 0x80;
            assert!(!is_zero(&page), "byte {at} was not tested");
            assert!(is_zero(&page[at + 1..]), "bytes after {at} are all zero");
            assert!(is_zero(&page[..at]), "bytes before {at} are all zero");
            page[at] = 0;
        }
    }
}
