//! Numbers of bytes on the command line.
//!
//! A number, which may have a fraction, and one of these units:
//!
//! | unit | stands for |
//! |---|---|
//! | `B` | a byte |
//! | `K` `M` `G` `T`, also `KB` … | 1000, 1000², … bytes |
//! | `Ki` `Mi` `Gi` `Ti`, also `KiB` … | 1024, 1024², … bytes |
//! | `bit`, `Kbit` …, `Kibit` … | an eighth of that |
//!
//! A number without a unit is refused: `virsh` counts MiB, QEMU bytes, others Mbit or KiB. Case
//! does not matter, with one exception: `B` is a byte, and `b` alone is refused because it is used
//! for bits and for bytes. A rate may end in `/s`. Fractions of a byte are dropped.
//!
//! This is not done by a crate: those that parse sizes do not know bits, and read `Mb` as
//! megabytes.

/// Parses a number of bytes, at least one.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    read(number).map_err(|why| match why {
        NotBytes::NoUnit => format!(
            "'{text}' has no unit; write {number}MiB or {number}MB (bytes), or {number}Mbit \
             (bits), or with K, G or T"
        ),
        NotBytes::Other(why) => format!(
            "'{text}' {why}; write a number with a unit, such as 50MB, 50MiB, 1.5G or 400Mbit"
        ),
    })
}

/// Why a text is not a number of bytes.
enum NotBytes {
    /// It is a number above 0.
    NoUnit,
    /// It does this.
    Other(&'static str),
}

impl From<&'static str> for NotBytes {
    fn from(why: &'static str) -> Self {
        Self::Other(why)
    }
}

fn read(text: &str) -> Result<u64, NotBytes> {
    if text.starts_with('-') {
        return Err("is not a number of bytes".into());
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (factor, divisor) = factor(unit)?;
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return Err("is not a number of bytes".into()),
        Some(parts) => parts,
        None => (number, ""),
    };
    let digits = |text: &str| text.parse::<u64>().map(u128::from);
    let whole = digits(whole).map_err(|_| "is not a number of bytes")?;
    // Digits beyond the 15th are less than a byte, even of terabits.
    let fraction = fraction.get(..15).unwrap_or(fraction);
    let places = u32::try_from(fraction.len()).unwrap_or(0);
    let fraction = match fraction {
        "" => 0,
        text => digits(text).map_err(|_| "is not a number of bytes")?,
    };
    let scale = 10_u128.pow(places);
    // At most 64 + 50 bits.
    let scaled = (whole * scale + fraction)
        .checked_mul(factor)
        .ok_or("is too large")?;
    match u64::try_from(scaled / scale / divisor) {
        _ if unit.is_empty() && scaled > 0 => Err(NotBytes::NoUnit),
        Ok(0) => Err("is less than a byte".into()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err("is too large".into()),
    }
}

/// The factor and the divisor of a unit.
fn factor(unit: &str) -> Result<(u128, u128), &'static str> {
    if unit.is_empty() || unit == "B" {
        return Ok((1, 1));
    }
    let (prefix, divisor) = if let Some(prefix) = unit.strip_suffix('B') {
        (prefix, 1)
    } else {
        let lower = unit.len().saturating_sub("bit".len());
        match unit.split_at_checked(lower) {
            Some((prefix, bit)) if bit.eq_ignore_ascii_case("bit") => (prefix, 8),
            _ => (unit, 1),
        }
    };
    let mut letters = prefix.chars();
    let power = match letters.next().map(|c| c.to_ascii_lowercase()) {
        None if divisor == 8 => 0,
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        _ => return Err("has an unknown unit"),
    };
    let base: u128 = match letters.as_str() {
        "" => 1000,
        "i" | "I" => 1024,
        "b" | "ib" => return Err("may mean bits or bytes: write B for bytes, bit for bits"),
        _ => return Err("has an unknown unit"),
    };
    Ok((base.pow(power), divisor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_have_their_usual_meaning() {
        for (text, bytes) in [
            ("20B", 20),
            ("20B/s", 20),
            ("3k", 3_000),
            ("3K", 3_000),
            ("50M", 50_000_000),
            ("50m", 50_000_000),
            ("50MB", 50_000_000),
            ("50MiB", 50 << 20),
            ("50Mi", 50 << 20),
            ("50MB/s", 50_000_000),
            ("1G", 1_000_000_000),
            ("1.5G", 1_500_000_000),
            ("0.5KiB", 512),
            ("2T", 2_000_000_000_000),
            ("400mbit", 50_000_000),
            ("400Mbit", 50_000_000),
            ("10Gbit/s", 1_250_000_000),
            ("1Mibit", 131_072),
            ("64bit", 8),
            ("1.999999999999999999999999999999K", 1999),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn ambiguous_and_invalid_sizes_are_refused() {
        for (text, why) in [
            ("", "not a number"),
            ("k", "not a number"),
            ("0", "less than a byte"),
            ("0.0001K", "less than a byte"),
            ("7bit", "less than a byte"),
            ("0/s", "less than a byte"),
            ("-1", "not a number"),
            ("-1M", "not a number"),
            ("--plaintext", "not a number"),
            ("1.K", "not a number"),
            (".5K", "not a number"),
            ("1.2.3K", "not a number"),
            ("50Mb", "bits or bytes"),
            ("50mib", "bits or bytes"),
            ("50b", "unknown unit"),
            ("50 MB", "unknown unit"),
            ("50X", "unknown unit"),
            ("1Mbps", "unknown unit"),
            ("50MBB", "unknown unit"),
            ("1é", "unknown unit"),
            ("99999999999999999999", "not a number"),
            ("18446744073709551615K", "too large"),
            ("18446744073709551615TiB", "too large"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why) && error.contains("1.5G"), "{error}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_examples() {
        assert_eq!(
            parse("100").unwrap_err(),
            "'100' has no unit; write 100MiB or 100MB (bytes), or 100Mbit (bits), or with K, G or T"
        );
        assert_eq!(
            parse("1.5").unwrap_err(),
            "'1.5' has no unit; write 1.5MiB or 1.5MB (bytes), or 1.5Mbit (bits), or with K, G or T"
        );
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,12}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_number_is_multiplied_by_its_unit(
            number in 1_u64..10_000_000,
            (unit, factor) in prop::sample::select(vec![
                ("B", 1), ("k", 1000), ("MB", 1_000_000), ("Gi", 1 << 30),
            ]),
        ) {
            let bytes = number.checked_mul(factor);
            prop_assert_eq!(parse(&format!("{number}{unit}")).ok(), bytes);
        }

        #[test]
        fn bits_are_an_eighth(number in 8_u64..1_000_000_000) {
            prop_assert_eq!(parse(&format!("{number}bit")), Ok(number / 8));
            prop_assert_eq!(parse(&format!("{number}kbit")), Ok(number * 125));
        }

        #[test]
        fn fractions_are_exact(thousandths in 1_u64..1_000_000_000) {
            let text = format!("{}.{:03}K", thousandths / 1000, thousandths % 1000);
            prop_assert_eq!(parse(&text), Ok(thousandths));
        }
    }
}
