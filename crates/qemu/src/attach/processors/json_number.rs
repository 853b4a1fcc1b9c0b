//! Numbers in QEMU's answers.

use serde_json::Value;

/// The number in a value; `None` if it is something else, or does not fit.
pub(super) fn number(value: Option<&Value>) -> Option<u32> {
    value?.as_u64()?.try_into().ok()
}
