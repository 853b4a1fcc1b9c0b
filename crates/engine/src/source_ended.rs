//! What both sides report when a machine has ended.

/// The reason that a source sends, and a destination reports, when the source's virtual machine has
/// ended.
pub(crate) const SOURCE_ENDED: &str =
    "the source's virtual machine has ended, and the guest with it";

/// The reason of an end, if it is known, after the words that report the end.
pub(crate) fn in_parentheses(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(" ({why})"))
}
