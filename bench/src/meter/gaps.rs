//! The time between two answers of the guest, by the phase of the migration.

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::time::seconds_between;

/// The moments that delimit the phases of a migration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MigrationTimeline {
    /// The command was given.
    pub started: Instant,
    /// The source's guest stopped.
    pub stop: Instant,
    /// The destination's guest ran.
    pub resume: Instant,
    /// The last page was received.
    pub ended: Instant,
}

/// The longest times between two answers that follow each other, ms.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Gaps {
    /// Of all.
    pub longest: f64,
    /// When the longest began, ms after the source's guest stopped; negative if before.
    pub longest_began: f64,
    /// Of those that ended before the command.
    pub before: f64,
    /// From the command on, of those that ended before the source's guest stopped.
    pub until_stop: f64,
    /// Of those that overlap the time from `STOP` to `RESUME`: the switchover by itself.
    pub switchover: f64,
    /// When the gap of the switchover began, ms after the source's guest stopped.
    pub switchover_began: f64,
    /// From then to the last page.
    pub until_end: f64,
    /// Of those that began after the last page.
    pub after: f64,
}

impl Gaps {
    /// Finds them; `answered` is in order.
    pub(crate) fn find(answered: &[Instant], moments: MigrationTimeline) -> Self {
        let mut gaps = Self::default();
        for pair in answered.windows(2) {
            let &[from, to] = pair else { continue };
            let ms = seconds_between(from, to) * 1e3;
            let began = seconds_between(moments.stop, from) * 1e3;
            if ms > gaps.longest {
                (gaps.longest, gaps.longest_began) = (ms, began);
            }
            let longest = if to <= moments.started {
                &mut gaps.before
            } else if to <= moments.stop {
                &mut gaps.until_stop
            } else if from <= moments.resume {
                if ms > gaps.switchover {
                    gaps.switchover_began = began;
                }
                &mut gaps.switchover
            } else if from <= moments.ended {
                &mut gaps.until_end
            } else {
                &mut gaps.after
            };
            *longest = longest.max(ms);
        }
        gaps
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} ms at STOP {:+.1} ms (before {:.1}, until STOP {:.1}, switchover {:.1} from \
             {:+.1} ms, until the end {:.1}, after {:.1})",
            self.longest,
            self.longest_began,
            self.before,
            self.until_stop,
            self.switchover,
            self.switchover_began,
            self.until_end,
            self.after
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_gap_belongs_to_the_phase_in_which_it_was() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let moments = MigrationTimeline {
            started: at(100),
            stop: at(200),
            resume: at(210),
            ended: at(300),
        };
        let answered = [10, 15, 101, 140, 199, 203, 230, 290, 291, 400, 402].map(at);
        let gaps = Gaps::find(&answered, moments);
        let rounded = |value: f64| value.round();
        assert_eq!(rounded(gaps.before), 5.0);
        assert_eq!(rounded(gaps.until_stop), 86.0, "it ended after the command");
        assert_eq!(rounded(gaps.switchover), 27.0, "from 203 to 230");
        assert_eq!(rounded(gaps.switchover_began), 3.0);
        assert_eq!(
            rounded(gaps.until_end),
            109.0,
            "it began before the last page"
        );
        assert_eq!(rounded(gaps.after), 2.0);
        assert_eq!(rounded(gaps.longest), 109.0);
        assert_eq!(rounded(gaps.longest_began), 91.0);
        assert_eq!(Gaps::find(&[], moments).longest, 0.0);
    }
}
