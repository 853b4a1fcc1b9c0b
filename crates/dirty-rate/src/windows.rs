//! The windows whose working sets are measured.

use std::time::Duration;

/// The largest number of intervals in a measurement: their numbers have 16 bits, and 0 means that a
/// page was never written.
pub const MAX_INTERVALS: u32 = u16::MAX as u32;

/// Returns the lengths of the windows in intervals, ascending: those of 0.1 s, 0.2 s, 0.5 s, 1 s
/// and so on, as far as they are between one interval and the whole measurement, and both of these.
///
/// ```
/// # use std::time::Duration;
/// let lengths = hikkoshi_dirty_rate::window_lengths(Duration::from_millis(100), 15);
/// assert_eq!(lengths, [1, 2, 5, 10, 15]);
/// ```
#[must_use]
pub fn window_lengths(interval: Duration, intervals: u32) -> Vec<u32> {
    let whole = interval.saturating_mul(intervals);
    let interval = interval.as_micros().max(1);
    let mut lengths = vec![1];
    let mut decade: u128 = 1;
    while Duration::from_micros(u64::try_from(decade).unwrap_or(u64::MAX)) < whole {
        for micros in [decade, 2 * decade, 5 * decade] {
            // Rounded: a window has whole intervals.
            let length = (micros + interval / 2) / interval;
            lengths.extend(u32::try_from(length).ok().filter(|n| *n < intervals));
        }
        decade *= 10;
    }
    lengths.push(intervals);
    lengths.retain(|length| *length > 0);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_from_one_interval_to_the_whole_measurement() {
        let of = |millis, intervals| window_lengths(Duration::from_millis(millis), intervals);
        assert_eq!(of(100, 100), [1, 2, 5, 10, 20, 50, 100]);
        assert_eq!(of(50, 40), [1, 2, 4, 10, 20, 40]);
        assert_eq!(of(300, 7), [1, 2, 3, 7]);
        assert_eq!(of(1000, 1), [1]);
        assert_eq!(of(100, 0), [1]);
    }
}
