//! Numbers and times as text, as the page's scripts write them (`web/js/format.js`).

/// What stands for a number that is not known.
pub(super) const NONE: &str = "–";

/// `1,234,567`.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// About three digits.
fn three(value: f64) -> String {
    // Values that are rounded to more digits than they have.
    if value >= 100.0 {
        return whole(value);
    }
    match value {
        0.0 => "0".to_owned(),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates.
fn whole(value: f64) -> String {
    count(value.round() as u64)
}

/// `12.3 MiB`.
#[allow(clippy::cast_precision_loss)] // For people.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let number = match unit == 0 || value.fract() == 0.0 {
        true => whole(value),
        false => three(value),
    };
    format!("{number} {}", units.get(unit).copied().unwrap_or_default())
}

/// An address or a length without rounding: `1,664 MiB`.
pub(super) fn exact_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value > 0 && value.is_multiple_of(1024) && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    format!(
        "{} {}",
        count(value),
        units.get(unit).copied().unwrap_or_default()
    )
}

/// A time in ms: `0.42 ms`, `3.10 s`, `2 min 5 s`, `1 h 2 min`.
pub(super) fn duration(ms: f64) -> String {
    if !ms.is_finite() {
        return NONE.to_owned();
    }
    let seconds = ms / 1e3;
    if ms < 1e3 {
        return format!("{} ms", three(ms));
    }
    if seconds < 100.0 {
        return format!("{} s", three(seconds));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates.
    let whole = seconds.round() as u64;
    match whole < 3600 {
        true => format!("{} min {} s", whole / 60, whole % 60),
        false => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A duration that is a whole number of ms.
#[allow(clippy::cast_precision_loss)] // For people.
pub(super) fn duration_of(ms: u64) -> String {
    duration(ms as f64)
}

/// A time in µs.
pub(super) fn micros(us: f64) -> String {
    match us < 1e3 {
        true => format!("{} µs", three(us)),
        false => duration(us / 1e3),
    }
}

/// A time since the migration began: `0:07.5`.
pub(super) fn elapsed(ms: u64) -> String {
    let tenths = ms.saturating_add(50) / 100;
    let rest = match tenths % 10 {
        0 => String::new(),
        rest => format!(".{rest}"),
    };
    format!("{}:{:02}{rest}", tenths / 600, tenths % 600 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes(1023), "1,023 B");
        assert_eq!(bytes(1 << 30), "1 GiB");
        assert_eq!(bytes(1_500_000), "1.43 MiB");
        assert_eq!(bytes(u64::MAX), "16,384 PiB");
        assert_eq!(exact_bytes(0), "0 B");
        assert_eq!(exact_bytes(1664 << 20), "1,664 MiB");
        assert_eq!(exact_bytes(3 << 30), "3 GiB");
        assert_eq!(exact_bytes(4097), "4,097 B");
        assert_eq!(duration(0.0), "0 ms");
        assert_eq!(duration(0.416), "0.42 ms");
        assert_eq!(duration(99_000.0), "99.0 s");
        assert_eq!(duration(125_000.0), "2 min 5 s");
        assert_eq!(duration(3_725_000.0), "1 h 2 min");
        assert_eq!(duration(f64::INFINITY), NONE);
        assert_eq!(micros(64.0), "64.0 µs");
        assert_eq!(micros(1024.0), "1.02 ms");
        assert_eq!(elapsed(7_540), "0:07.5");
        assert_eq!(elapsed(60_000), "1:00");
    }
}
