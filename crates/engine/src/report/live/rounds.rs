//! The rounds of pre-copy.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hikkoshi_account::Round;

use crate::report::{Counters, whole_millis};

/// The most rounds that are kept.
const KEPT: usize = 100;

/// The newest rounds.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Mutex<VecDeque<Begun>>);

#[derive(Debug, Clone, Copy)]
struct Begun {
    round: u32,
    begun: Instant,
    ended: Option<Instant>,
    /// Counts before the round; when it has ended: of the round.
    pages: u64,
    zero: u64,
    bytes: u64,
    dirty_pages: Option<u64>,
}

impl Rounds {
    /// A round begins.
    pub(crate) fn begin(&self, round: u32, counters: &Counters) {
        let (pages, bytes) = (counters.pages(0), counters.bytes());
        let mut rounds = self.lock();
        if rounds.len() >= KEPT {
            rounds.pop_front();
        }
        rounds.push_back(Begun {
            round,
            begun: Instant::now(),
            ended: None,
            pages: pages.precopy,
            zero: pages.zero,
            bytes: bytes.precopy,
            dirty_pages: None,
        });
    }

    /// Everything of the present round has arrived, and so many pages are dirty.
    pub(crate) fn end(&self, counters: &Counters, dirty_pages: Option<u64>) {
        let (pages, bytes) = (counters.pages(0), counters.bytes());
        if let Some(round) = self.lock().back_mut()
            && round.ended.is_none()
        {
            round.ended = Some(Instant::now());
            round.pages = pages.precopy.saturating_sub(round.pages);
            round.zero = pages.zero.saturating_sub(round.zero);
            round.bytes = bytes.precopy.saturating_sub(round.bytes);
            round.dirty_pages = dirty_pages;
        }
    }

    /// All rounds that are kept. The present one has what was sent so far.
    pub(crate) fn newest(&self, zero: Instant, counters: &Counters) -> Vec<Round> {
        let since = |at: Instant| whole_millis(at.saturating_duration_since(zero));
        let (pages, bytes) = (counters.pages(0), counters.bytes());
        let account = |round: &Begun| {
            let has_ended = round.ended.is_some();
            let counted = |count: u64, now: u64| match has_ended {
                true => count,
                false => now.saturating_sub(count),
            };
            Round {
                round: round.round,
                begun_ms: since(round.begun),
                ended_ms: round.ended.map(since),
                pages: counted(round.pages, pages.precopy),
                zero: counted(round.zero, pages.zero),
                bytes: counted(round.bytes, bytes.precopy),
                dirty_pages: round.dirty_pages,
            }
        };
        self.lock().iter().map(account).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_what_was_sent_in_it() {
        let (rounds, counters) = (Rounds::default(), Counters::default());
        let zero = Instant::now();
        Counters::add(&counters.precopy, 5);
        rounds.begin(1, &counters);
        Counters::add(&counters.precopy, 7);
        Counters::add(&counters.precopy_bytes, 70);
        assert_eq!(rounds.newest(zero, &counters)[0].pages, 7, "in progress");
        rounds.end(&counters, Some(3));
        rounds.end(&counters, Some(9));
        Counters::add(&counters.precopy, 11);
        let [round] = rounds.newest(zero, &counters)[..] else {
            panic!("one round");
        };
        assert_eq!(
            (round.pages, round.bytes, round.dirty_pages),
            (7, 70, Some(3))
        );
        assert!(round.ended_ms >= Some(round.begun_ms));
    }

    #[test]
    fn the_newest_are_kept() {
        let (rounds, counters) = (Rounds::default(), Counters::default());
        for round in 1..=150 {
            rounds.begin(round, &counters);
            rounds.end(&counters, None);
        }
        let kept = rounds.newest(Instant::now(), &counters);
        assert_eq!((kept.len(), kept[0].round), (KEPT, 51));
    }
}
