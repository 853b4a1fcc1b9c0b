//! `--mode`.

use hikkoshi_engine::Mode;

/// Reads a mode by its name.
pub(super) fn parse(text: &str) -> Result<Mode, String> {
    text.parse()
}
