//! What both sides report when the source's machine has ended.

/// The reason that a source sends, and a destination reports, when the source's virtual machine has
/// ended.
pub(crate) const SOURCE_ENDED: &str =
    "the source's virtual machine has ended, and the guest with it";
