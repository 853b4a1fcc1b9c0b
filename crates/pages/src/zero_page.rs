//! The zero-page test.

/// Bytes looked at before a decision is taken. Long enough for the compiler to
/// use vector registers, short enough that a page with data in its first bytes
/// is told apart at once.
const STEP: usize = 256;

/// Whether all bytes are zero. Meant for one page or several; any length is
/// fine, and nothing at all counts as zero.
///
/// The memory of a running guest may change while it is looked at: compare a
/// copy, not the mapping.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    steps.iter().all(|step| any_bit(step) == 0) && any_bit(rest) == 0
}

/// All bytes or-ed together, without a branch, so that it becomes vector code.
fn any_bit(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |seen, byte| seen | byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    #[test]
    fn every_single_byte_counts() {
        let mut page = vec![0u8; PAGE_SIZE + 7];
        assert!(is_zero(&page));
        assert!(is_zero(&[]));
        for at in 0..page.len() {
            page[at] = 0x80;
            assert!(!is_zero(&page), "byte {at} was not noticed");
            assert!(is_zero(&page[at + 1..]), "bytes after {at} are all zero");
            assert!(is_zero(&page[..at]), "bytes before {at} are all zero");
            page[at] = 0;
        }
    }
}
