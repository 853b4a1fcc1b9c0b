//! How numbers are written.

/// Writes a time, given in nanoseconds, with three digits or fewer.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

/// Writes a count in thousands or millions.
pub(crate) fn short(number: u64) -> String {
    match number {
        number if number >= 1_000_000 => {
            format!("{:.1} M", number as f64 / 1e6).replace(".0 ", " ")
        }
        number if number >= 1_000 => format!("{} k", number / 1_000),
        number => number.to_string(),
    }
}
