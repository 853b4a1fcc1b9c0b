//! Refuses a limit of the bandwidth with which a migration would not end in a sensible time.

use std::fmt;
use std::time::Duration;

use hikkoshi_account::rate_text;
use thiserror::Error;

/// How long the limit may make a migration take. 2 TB of disks over 100 Mbit/s are two days.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A limit of the bandwidth is too low.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "with a limit of {} the {} of the guest would take {} (allow at least {} KB/s, with \
     which that takes a week)",
    rate(*limit), Size(*bytes), Time(seconds(*bytes, *limit)), least(*bytes).div_ceil(1000)
)]
pub struct BandwidthTooLow {
    /// About how many bytes have to be sent.
    pub bytes: u64,
    /// The limit, in bytes a second.
    pub limit: u64,
}

/// Checks a limit for a migration that has to send about so many bytes.
pub(crate) fn check(bytes: u64, limit: Option<u64>) -> Result<(), BandwidthTooLow> {
    match limit {
        Some(limit) if limit < least(bytes) => Err(BandwidthTooLow { bytes, limit }),
        _ => Ok(()),
    }
}

fn least(bytes: u64) -> u64 {
    bytes.div_ceil(LONGEST.as_secs())
}

fn seconds(bytes: u64, limit: u64) -> u64 {
    bytes / limit.max(1)
}

#[allow(clippy::cast_precision_loss)] // For people.
fn rate(bytes_per_second: u64) -> String {
    rate_text(bytes_per_second as f64)
}

/// Bytes, for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0.div_ceil(1 << 20))
    }
}

/// Seconds that are more than a week, for people.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0 / (24 * 3600);
        match days / 365 {
            0 | 1 => write!(f, "{days} days"),
            years => write!(f, "{years} years"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_must_allow_to_end_in_a_week() {
        let week = 7 * 24 * 3600;
        assert!(check(4 << 30, None).is_ok() && check(0, Some(1)).is_ok());
        assert!(check(week, Some(1)).is_ok());
        assert!(check(week + 1, Some(1)).is_err() && check(week + 1, Some(2)).is_ok());
        let refused = |bytes, limit| check(bytes, Some(limit)).unwrap_err().to_string();
        assert_eq!(
            refused(256 << 20, 100),
            "with a limit of 0.000095 MiB/s the 256 MiB of the guest would take 31 days (allow at \
             least 1 KB/s, with which that takes a week)"
        );
        let years = refused(4 << 30, 1);
        assert!(years.contains("would take 136 years"), "{years}");
    }
}
