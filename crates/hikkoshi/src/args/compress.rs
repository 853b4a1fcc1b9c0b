//! `--compress`.

use hikkoshi_engine::Compression;
use hikkoshi_wire::CompressionMethod;

/// All values, as they are given.
const VALUES: [(&str, Compression); 4] = [
    ("auto", Compression::Auto),
    ("off", Compression::Off),
    always(CompressionMethod::Lz4),
    always(CompressionMethod::Zstd),
];

const fn always(method: CompressionMethod) -> (&'static str, Compression) {
    (method.name(), Compression::Always(method))
}

/// What [`parse`] reads.
pub(super) fn text(compression: Compression) -> &'static str {
    let mut values = VALUES.into_iter();
    let found = values.find(|(_, value)| *value == compression);
    found.map_or("off", |(text, _)| text)
}

/// Parses `auto`, `off` or a method.
pub(super) fn parse(text: &str) -> Result<Compression, String> {
    let mut values = VALUES.into_iter();
    let found = values.find(|(value, _)| *value == text);
    let refused = || format!("'{text}' must be auto, off, lz4 or zstd");
    found
        .map(|(_, compression)| compression)
        .ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_text() {
        for (value, compression) in VALUES {
            assert_eq!(parse(value), Ok(compression));
            assert_eq!(text(compression), value);
        }
        let refused = parse("gzip").unwrap_err();
        assert_eq!(refused, "'gzip' must be auto, off, lz4 or zstd");
    }
}
