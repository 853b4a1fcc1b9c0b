//! Durations on the command line.

use std::ops::RangeInclusive;
use std::time::Duration;

use hikkoshi_engine::MAX_DOWNTIME;

/// The longest `--max-downtime`, in milliseconds.
pub(crate) const MAX_DOWNTIME_MS: u64 = MAX_DOWNTIME.as_secs() * 1000;

/// A century: the longest duration with which no clock overflows.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Parses a number with the unit s, m or h; without a unit, seconds.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let (digits, seconds) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let number = digits.parse::<u32>().ok().map(u64::from);
    number
        .and_then(|n| n.checked_mul(seconds))
        .map(Duration::from_secs)
        .filter(|time| *time <= LONGEST)
        .ok_or_else(|| {
            format!("'{text}' is not a duration; write seconds, or a number with s, m or h")
        })
}

/// Parses how long ago something was: as other durations, or a number of days.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    let days = text
        .strip_suffix('d')
        .and_then(|days| days.parse::<u32>().ok());
    let time = match days {
        Some(days) => Some(Duration::from_secs(u64::from(days) * 86_400)),
        None => parse(text).ok(),
    };
    time.filter(|time| *time <= LONGEST)
        .ok_or_else(|| format!("'{text}' is not a time; write a number with m, h or d, such as 7d"))
}

/// Parses a time in which something is to be done: `10min` is `10m`.
pub(super) fn parse_deadline(text: &str) -> Result<Duration, String> {
    let time = parse(
        text.strip_suffix("in")
            .filter(|it| it.ends_with('m'))
            .unwrap_or(text),
    )?;
    match time.is_zero() {
        true => Err("must be longer than no time".to_owned()),
        false => Ok(time),
    }
}

/// Parses how long to reconnect, or `none`: without a limit.
pub(super) fn parse_retry(text: &str) -> Result<Duration, String> {
    match text {
        "none" => Ok(LONGEST),
        time => parse(time).map_err(|error| format!("{error}; or none, for no limit")),
    }
}

/// Parses the time after which a link counts as lost. It has to be limited: a peer that hangs is
/// noticed only by this time, and the guest may wait for it.
pub(super) fn parse_stall(text: &str) -> Result<Duration, String> {
    let hour = Duration::from_secs(3600);
    if text == "none" {
        return Err(
            "a link that stalls must count as lost at some time, after 1h at the latest".into(),
        );
    }
    let time = parse(text)?;
    if time.is_zero() || time > hour {
        return Err("must be between 1s and 1h".into());
    }
    Ok(time)
}

/// Parses the longest downtime: whole milliseconds, or `none`, the longest there is.
pub(super) fn parse_max_downtime(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(MAX_DOWNTIME_MS);
    }
    let time = short(
        text,
        Duration::from_millis(1)..=Duration::from_millis(MAX_DOWNTIME_MS),
    )
    .ok_or_else(|| {
        format!(
            "'{text}' is not a time from 1ms to 10m; write a number with ms, s or m, such as \
                 300ms or 1.5s (without a unit: ms), or none"
        )
    })?;
    Ok(u64::try_from(time.as_millis()).unwrap_or(MAX_DOWNTIME_MS))
}

/// Parses the time between two measurements, in milliseconds.
pub(super) fn parse_interval(text: &str) -> Result<u32, String> {
    let time = short(text, Duration::from_millis(1)..=Duration::from_secs(3600));
    time.and_then(|time| u32::try_from(time.as_millis()).ok())
        .ok_or_else(|| {
            format!(
                "'{text}' is not a time from 1ms to 1h; write a number with ms, s or m, such as \
                 100ms (without a unit: ms)"
            )
        })
}

/// Parses the time from a message to its answer.
pub(super) fn parse_round_trip(text: &str) -> Result<Duration, String> {
    short(text, Duration::ZERO..=Duration::from_secs(60)).ok_or_else(|| {
        format!(
            "'{text}' is not a time up to 60s; write a number with us, ms or s, such as 0.2ms \
             (without a unit: ms)"
        )
    })
}

/// A short time: a number, which may have a fraction, with a unit; without a unit, milliseconds.
fn short(text: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "us" => 1e-6,
        "" | "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    // Rounds to nanoseconds.
    let time = Duration::try_from_secs_f64(number * seconds).ok()?;
    range.contains(&time).then_some(time)
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
        assert_eq!(parse_age("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse_age("12h"), parse("12h"));
        for bad in ["d", "-1d", "1.5d", "4294967295d", "week"] {
            assert!(parse_age(bad).unwrap_err().contains("7d"), "{bad}");
        }
        assert!(parse_stall("0").is_err() && parse_stall("61m").is_err());
        let unlimited = parse_stall("none").unwrap_err();
        assert!(unlimited.contains("1h at the latest"), "{unlimited}");
        assert_eq!(parse_retry("none"), Ok(LONGEST));
        assert_eq!(parse_retry("0"), Ok(Duration::ZERO));
        assert!(
            parse_retry("long")
                .unwrap_err()
                .ends_with("; or none, for no limit")
        );
    }

    #[test]
    fn a_downtime_has_a_unit_or_is_in_milliseconds() {
        for (text, ms) in [
            ("300", 300),
            ("300ms", 300),
            ("0.3s", 300),
            ("1.5s", 1500),
            ("1", 1),
            ("2m", 120_000),
            ("10m", 600_000),
            ("600000", 600_000),
            ("none", 600_000),
        ] {
            assert_eq!(parse_max_downtime(text), Ok(ms), "{text}");
        }
        for bad in [
            "", "ms", "0", "0.5ms", "-1", "600001", "11m", "soon", "300 ms", "1e3", "NaN", "inf",
            "..", "1d",
        ] {
            assert_eq!(
                parse_max_downtime(bad).unwrap_err(),
                format!(
                    "'{bad}' is not a time from 1ms to 10m; write a number with ms, s or m, such \
                     as 300ms or 1.5s (without a unit: ms), or none"
                )
            );
        }
    }

    #[test]
    fn times_of_measurements_have_units() {
        assert_eq!(parse_interval("100"), Ok(100));
        assert_eq!(parse_interval("2s"), Ok(2000));
        assert_eq!(parse_interval("1h"), Ok(3_600_000));
        assert!(parse_interval("0").is_err() && parse_interval("3600001").is_err());
        for (text, micros) in [("0.5", 500), ("200us", 200), ("0", 0), ("60s", 60_000_000)] {
            assert_eq!(parse_round_trip(text), Ok(Duration::from_micros(micros)));
        }
        assert!(parse_round_trip("61s").is_err() && parse_round_trip("-1").is_err());
    }
}
