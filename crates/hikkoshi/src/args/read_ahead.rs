//! `--read-ahead`.

use hikkoshi_engine::ReadAhead;

/// The largest number of pages that `--read-ahead` takes.
const MAX_READ_AHEAD: u32 = 256;

/// What [`parse`] reads.
pub(super) fn text(read_ahead: ReadAhead) -> String {
    match read_ahead {
        ReadAhead::Adaptive => "adaptive".to_owned(),
        ReadAhead::Off => "off".to_owned(),
        ReadAhead::Fixed(pages) => pages.to_string(),
    }
}

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
