//! Fields at fixed places in arrays of fixed size, checked when compiling.

/// The `N` bytes from `AT` on.
pub(crate) fn field<const AT: usize, const N: usize, const LEN: usize>(
    bytes: &[u8; LEN],
) -> [u8; N] {
    const { assert!(AT + N <= LEN) };
    std::array::from_fn(|index| bytes[AT + index])
}

/// Puts `value` where [`field`] finds it.
pub(crate) fn put<const AT: usize, const N: usize, const LEN: usize>(
    bytes: &mut [u8; LEN],
    value: [u8; N],
) {
    const { assert!(AT + N <= LEN) };
    bytes[AT..AT + N].copy_from_slice(&value);
}
