//! When a migration whose receiver has ended is resumed again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::guest_journals::Journals;

/// The time before a migration is resumed again; it doubles each time, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// When migrations are resumed again, by their journals: another guest may get the same name.
#[derive(Debug, Default)]
pub(super) struct ResumptionPauses(HashMap<PathBuf, Pause>);

#[derive(Debug, Clone, Copy)]
struct Pause {
    /// `None`: never; an operator decides.
    until: Option<Instant>,
    next: Duration,
}

impl ResumptionPauses {
    /// Whether the pause since the last attempt is over at `now`. Then the next one begins.
    pub(super) fn is_over(&mut self, journal: &Path, now: Instant) -> bool {
        let pause = self.0.get(journal).copied();
        if pause.is_some_and(|pause| pause.until.is_none_or(|until| now < until)) {
            return false;
        }
        let length = pause.map_or(FIRST_PAUSE, |pause| pause.next);
        let pause = Pause {
            until: Some(now + length),
            next: (2 * length).min(MAX_PAUSE),
        };
        self.0.insert(journal.to_owned(), pause);
        true
    }

    /// Another process has resumed it: if that ends, too, the next attempt follows at once.
    pub(super) fn forget(&mut self, journal: &Path) {
        if !self.is_stopped(journal) {
            self.0.remove(journal);
        }
    }

    /// Whether an operator decides.
    pub(super) fn is_stopped(&self, journal: &Path) -> bool {
        let pause = self.0.get(journal);
        pause.is_some_and(|pause| pause.until.is_none())
    }

    /// The migration is not resumed any more.
    pub(super) fn stop(&mut self, journal: &Path) {
        let pause = Pause {
            until: None,
            next: MAX_PAUSE,
        };
        self.0.insert(journal.to_owned(), pause);
    }

    /// Forgets journals that are not there any more.
    pub(super) fn retain(&mut self, journals: &Journals) {
        let known = |path: &PathBuf| journals.known.iter().any(|journal| journal.path == *path);
        self.0.retain(|path, _| known(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_and_belongs_to_a_journal() {
        let mut pauses = ResumptionPauses::default();
        let [one, other] = [Path::new("/one"), Path::new("/other")];
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(pauses.is_over(one, at(0)) && !pauses.is_over(one, at(0)));
        assert!(pauses.is_over(other, at(0)));
        assert!(pauses.is_over(one, at(1)) && !pauses.is_over(one, at(2)));
        assert!(pauses.is_over(one, at(3)));
        let mut now = 3;
        for _ in 0..10 {
            now += 60;
            assert!(pauses.is_over(one, at(now)));
        }
        assert!(!pauses.is_over(one, at(now + 59)) && pauses.is_over(one, at(now + 60)));
        pauses.stop(one);
        assert!(!pauses.is_over(one, at(now + 1_000_000)));
        assert!(pauses.is_over(other, at(1)));
        pauses.retain(&Journals::at(&["/one"]));
        assert!(!pauses.is_over(one, at(now + 1_000_000)));
        pauses.retain(&Journals::at(&[]));
        assert!(pauses.is_over(one, at(now)));
    }
}
