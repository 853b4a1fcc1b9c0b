//! The highest and the mean dirty rate of each cell, of all states.

use crate::{DirtyRates, MAX_CELLS, Recording};
use hikkoshi_account::{Map, State};

/// Computes [`DirtyRates`] from one state after another. A rate counts for the time since the state
/// before.
#[derive(Debug, Default)]
pub(crate) struct RatesByCell {
    /// Pages of the guest.
    pages: u64,
    /// The time of the last state.
    at_ms: u64,
    /// The rate of each cell, in pages per second, times the milliseconds for which it counts.
    sums: Vec<u64>,
}

impl RatesByCell {
    /// Of a guest of so many pages.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            pages,
            ..Self::default()
        }
    }

    /// Continues the rates of a recording.
    pub(crate) fn continuing(recording: &Recording) -> Self {
        let rates = recording.dirty_rates.as_ref();
        let sums = rates.map_or(Vec::new(), |rates| {
            let mean = rates.mean.iter().take(MAX_CELLS);
            mean.map(|mean| mean.saturating_mul(rates.measured_ms))
                .collect()
        });
        Self {
            pages: recording.migration.memory.pages,
            at_ms: recording.state.as_ref().map_or(0, |state| state.at_ms),
            sums,
        }
    }

    /// Adds a state to `rates`.
    pub(crate) fn add(&mut self, state: &State, rates: &mut DirtyRates) {
        let lasted = state.at_ms.saturating_sub(self.at_ms);
        self.at_ms = state.at_ms;
        // Cells of the first round that are not known would count as clean.
        let is_rated = Map::is_rated(state.map.rated_pages, self.pages);
        if state.dirty_pages_per_second.is_none() || !is_rated || lasted == 0 {
            return;
        }
        let present = &state.map.dirty_per_second;
        let cells = present.len().min(MAX_CELLS).max(self.sums.len());
        self.sums.resize(cells, 0);
        rates.highest.resize(cells, 0);
        rates.measured_ms = rates.measured_ms.saturating_add(lasted);
        for ((sum, highest), rate) in self.sums.iter_mut().zip(&mut rates.highest).zip(present) {
            *sum = sum.saturating_add(rate.saturating_mul(lasted));
            *highest = (*highest).max(*rate);
        }
        let measured_ms = rates.measured_ms;
        // Rounded, so that a cell that was written once in a while is not one that never was.
        let mean = |sum: &u64| sum.saturating_add(measured_ms / 2) / measured_ms;
        rates.mean.clear();
        rates.mean.extend(self.sums.iter().map(mean));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::examples::{migration, state};
    use crate::{Recorder, StatusRecord};

    /// A state of the second round.
    fn dirty(at_ms: u64, rates: &[u64]) -> State {
        let mut state = state(at_ms);
        #[allow(clippy::cast_precision_loss)]
        let all = rates.iter().map(|rate| *rate as f64).sum();
        state.dirty_pages_per_second = Some(all);
        state.map.dirty_per_second = rates.to_vec();
        state.map.rated_pages = 1024;
        state
    }

    #[test]
    fn rates_count_for_as_long_as_they_last() {
        let mut recorder = Recorder::new(migration());
        recorder.add(state(100));
        let rates = |recorder: &Recorder| recorder.recording().dirty_rates.clone().unwrap();
        assert_eq!(rates(&recorder), DirtyRates::default());
        recorder.add(dirty(200, &[10, 0]));
        recorder.add(dirty(300, &[40, 8]));
        // All zeros: an empty list.
        recorder.add(dirty(400, &[]));
        recorder.add(dirty(600, &[0, 20]));
        // The guest is paused: no rate is known.
        recorder.add(state(10_000));
        let expected = DirtyRates {
            measured_ms: 500,
            highest: vec![40, 20],
            mean: vec![10, 10], // 5000 / 500, and 4800 / 500
        };
        assert_eq!(rates(&recorder), expected);
    }

    /// In the first round, the rates of some cells are known, and those of others are not yet.
    #[test]
    fn rates_of_a_part_of_the_memory_are_not_compared() {
        let mut recorder = Recorder::new(migration());
        recorder.add(state(100));
        let mut first = dirty(200, &[10, 0]);
        first.map.rated_pages = 900;
        recorder.add(first);
        let rates = recorder.recording().dirty_rates.clone();
        assert_eq!(rates, Some(DirtyRates::default()));
        let mut second = dirty(300, &[20, 8]);
        second.map.rated_pages = 922;
        recorder.add(second);
        let rates = recorder.recording().dirty_rates.clone().unwrap();
        assert_eq!((rates.measured_ms, rates.highest), (100, vec![20, 8]));
    }

    /// A short peak stays, when the frames around it are thinned out.
    #[test]
    fn a_peak_between_frames_is_kept() {
        let mut recorder = Recorder::new(migration());
        for tenth in 0..5000 {
            let peak = if tenth == 4001 { 70_000 } else { 1 };
            recorder.add(dirty(tenth * 100, &[peak, 500]));
        }
        let recording = recorder.recording();
        let in_frames = recording.frames.iter();
        let in_frames = in_frames.map(|frame| frame.map.dirty_per_second[0]);
        assert_eq!(in_frames.max(), Some(1), "the test has a peak in a frame");
        let rates = recording.dirty_rates.as_ref().unwrap();
        assert_eq!(rates.highest, [70_000, 500]);
        assert_eq!(rates.mean, [15, 500]);
    }

    #[test]
    fn a_follower_has_the_same_rates() {
        let mut recorder = Recorder::new(migration());
        for tenth in 0..50 {
            recorder.add(dirty(tenth * 100, &[tenth % 7 * 100, 3]));
        }
        let mut follower = Recorder::following(recorder.recording().clone());
        for tenth in 50..100 {
            let state = dirty(tenth * 100, &[tenth % 7 * 100, 3]);
            recorder.add(state.clone());
            follower.apply(StatusRecord::State(Box::new(state)));
        }
        let [here, there] = [&recorder, &follower].map(|it| it.recording().dirty_rates.clone());
        let (here, there) = (here.unwrap(), there.unwrap());
        assert_eq!(here.highest, there.highest);
        assert_eq!(here.measured_ms, there.measured_ms);
        assert!(here.mean[0].abs_diff(there.mean[0]) <= 1 && here.mean[1] == there.mean[1]);
    }

    #[test]
    fn lists_are_bounded() {
        let mut recorder = Recorder::new(migration());
        recorder.add(dirty(100, &vec![u64::MAX; 10 * MAX_CELLS]));
        recorder.add(dirty(u64::MAX, &[u64::MAX; 3]));
        let rates = recorder.recording().dirty_rates.clone().unwrap();
        assert_eq!(
            (rates.highest.len(), rates.mean.len()),
            (MAX_CELLS, MAX_CELLS)
        );
    }
}
