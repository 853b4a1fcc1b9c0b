//! `--read-ahead`.

use hikkoshi_engine::ReadAhead;

/// The largest number of pages that `--read-ahead` takes.
pub(crate) const MAX_READ_AHEAD: u32 = 256;

/// Parses `adaptive`, `off` or a number of pages.
pub(super) fn parse(text: &str) -> Result<ReadAhead, String> {
    match text {
        "adaptive" => Ok(ReadAhead::Adaptive),
        "off" => Ok(ReadAhead::Off),
        number => match number.parse() {
            Ok(0) => Ok(ReadAhead::Off),
            Ok(pages @ 1..=MAX_READ_AHEAD) => Ok(ReadAhead::Fixed(pages)),
            _ => Err(format!(
                "'{text}' must be adaptive, off, or a number of pages up to {MAX_READ_AHEAD}"
            )),
        },
    }
}
