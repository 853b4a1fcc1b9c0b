//! Numbers with their units, for people.

use std::time::Duration;

use hikkoshi_account::rate_text;

/// Bytes in MiB.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A limit of bytes a second.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn limit(bytes_per_second: Option<u64>) -> String {
    bytes_per_second.map_or_else(|| "none".to_owned(), |limit| rate_text(limit as f64))
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
    }
}
