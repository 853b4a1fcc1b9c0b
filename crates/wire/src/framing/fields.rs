//! Fields at fixed offsets in arrays of fixed size, checked at compile time.

/// Returns the `N` bytes at offset `AT`.
pub(crate) fn field<const AT: usize, const N: usize, const LEN: usize>(
    bytes: &[u8; LEN],
) -> [u8; N] {
    const { assert!(AT + N <= LEN) };
    std::array::from_fn(|index| bytes[AT + index])
}

/// Writes `value` at offset `AT`.
pub(crate) fn put<const AT: usize, const N: usize, const LEN: usize>(
    bytes: &mut [u8; LEN],
    value: [u8; N],
) {
    const { assert!(AT + N <= LEN) };
    bytes[AT..AT + N].copy_from_slice(&value);
}
