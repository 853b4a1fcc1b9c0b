//! Rates as text.

/// Bytes per second in MiB/s, the only unit of rates: with one place, or with as many as two digits
/// need. The page's scripts write them so, too.
#[must_use]
pub fn rate_text(bytes_per_second: f64) -> String {
    let mib = bytes_per_second / f64::from(1 << 20);
    let places = match mib {
        0.0..0.095 if mib > 0.0 => 2.0 - mib.log10().ceil(),
        _ => 1.0,
    };
    // At most 8, for a byte per second.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let places = places.min(8.0) as usize;
    format!("{mib:.places$} MiB/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_one_unit_and_two_digits() {
        for (bytes, text) in [
            (0.0, "0.0 MiB/s"),
            (1.0, "0.00000095 MiB/s"),
            (5000.0, "0.0048 MiB/s"),
            (50_000.0, "0.048 MiB/s"),
            (102_400.0, "0.1 MiB/s"),
            (1_000_000.0, "1.0 MiB/s"),
            (50_000_000.0, "47.7 MiB/s"),
            (1.25e9, "1192.1 MiB/s"),
        ] {
            assert_eq!(rate_text(bytes), text);
        }
    }
}
