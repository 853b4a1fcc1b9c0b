//! Numbers with their units, for people.

use std::time::Duration;

use hikkoshi_account::rate_text;
use hikkoshi_engine::MAX_DOWNTIME;

/// Bytes in MiB.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Bytes, in a unit that fits.
pub(crate) fn bytes(bytes: f64) -> String {
    for (name, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        let size = float(1 << shift);
        if bytes >= size {
            return format!("{:.1} {name}", bytes / size);
        }
    }
    format!("{bytes:.0} B")
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// A limit of bytes a second.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn limit(bytes_per_second: Option<u64>) -> String {
    bytes_per_second.map_or_else(|| "none".to_owned(), |limit| rate_text(limit as f64))
}

/// A limit of the downtime, in milliseconds; the longest one is none.
pub(crate) fn downtime_limit(ms: u64) -> String {
    match Duration::from_millis(ms) < MAX_DOWNTIME {
        true => format!("{ms} ms"),
        false => "none".to_owned(),
    }
}

/// A duration to a tenth of a second.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_rate_or_none() {
        assert_eq!(limit(None), "none");
        assert_eq!(limit(Some(1 << 20)), "1.0 MiB/s");
        assert_eq!(downtime_limit(300), "300 ms");
        assert_eq!(downtime_limit(600_000), "none");
    }
}
