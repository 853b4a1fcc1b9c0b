//! Durations on the command line.

use std::time::Duration;

/// Parses a number with the unit s, m or h; without a unit, seconds.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let (digits, seconds) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    // At most a century, so that no clock overflows.
    let number = digits.parse::<u32>().ok().map(u64::from);
    number
        .and_then(|n| n.checked_mul(seconds))
        .filter(|&n| n <= 100 * 365 * 24 * 3600)
        .map(Duration::from_secs)
        .ok_or_else(|| {
            format!("'{text}' is not a duration; write seconds, or a number with s, m or h")
        })
}

/// Parses the time after which a link counts as lost.
pub(super) fn parse_stall(text: &str) -> Result<Duration, String> {
    let hour = Duration::from_secs(3600);
    let time = parse(text)?;
    if time.is_zero() || time > hour {
        return Err("must be between 1s and 1h".into());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [
            ("0", 0),
            ("90", 90),
            ("90s", 90),
            ("15m", 900),
            ("2h", 7200),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "s", "-1", "1d", "4294967296", "4294967295h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse_stall("0").is_err() && parse_stall("61m").is_err());
    }
}
