//! The map of the guest's memory, from the counts of its cells.

use std::time::Duration;

use hikkoshi_engine::report::{GuestAt, MemoryMap, Snapshot};
use hikkoshi_status::Map;

/// What is remembered of each cell between two states.
#[derive(Debug, Default)]
pub(super) struct Cells {
    cells: Vec<Tracked>,
}

/// The dirty log of one cell.
#[derive(Debug, Clone, Copy, Default)]
struct Tracked {
    /// Pages whose log had been taken, and dirty pages, at the end of the last whole pass.
    visited: u64,
    dirty: u64,
    /// When that was.
    at: Option<Duration>,
    /// Dirty pages of the last whole pass, and their number per second since the pass before.
    found: u64,
    rate: f64,
}

impl Cells {
    /// The map now, and the pages that the guest dirties per second, if that is known.
    pub(super) fn map(&mut self, map: &MemoryMap, now: &Snapshot) -> (Map, Option<f64>) {
        self.cells.resize(map.cells(), Tracked::default());
        let is_source = matches!(now.stage, hikkoshi_engine::report::Stage::Source(_));
        // Once the guest is paused, what is not sent is missing.
        let has_log = is_source && now.guest_at == GuestAt::Source && map.cells() > 0;
        let mut shown = Map::default();
        let mut rate = None;
        for (number, tracked) in self.cells.iter_mut().enumerate() {
            let (pages, counts) = (map.pages_of(number), map.cell(number));
            // The last page may have arrived while the map was made.
            let missing = match now.missing {
                Some(0) => 0,
                _ => counts.missing,
            };
            // Zeros that are holes at the source do not travel. When it is known what is missing,
            // everything else is at the destination.
            let here = match is_source || now.missing.is_none() {
                true => counts.copied,
                false => pages.saturating_sub(missing + counts.urgent + counts.background),
            };
            shown.sent.push(here.min(pages));
            shown.missing.push(missing);
            shown.by_request.push(counts.urgent);
            shown.background.push(counts.background);
            if has_log {
                tracked.update(now.at, pages, counts.visited, counts.dirty);
                if tracked.rate > 0.0 || tracked.found > 0 {
                    *rate.get_or_insert(0.0) += tracked.rate;
                }
                shown.dirty.push(tracked.estimate(now.at, pages));
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                shown.dirty_per_second.push(tracked.rate.round() as u64);
            }
        }
        if !is_source {
            shown.waiting = vec![0; map.cells()];
            for page in &now.waiting {
                if let Some(waiting) = shown.waiting.get_mut(map.cell_of(*page)) {
                    *waiting += 1;
                }
            }
        }
        for list in [
            &mut shown.sent,
            &mut shown.missing,
            &mut shown.by_request,
            &mut shown.background,
            &mut shown.dirty,
            &mut shown.dirty_per_second,
            &mut shown.waiting,
        ] {
            if list.iter().all(|&number| number == 0) {
                list.clear();
            }
        }
        let second_round = now.round > 1 || rate.is_some();
        (shown, rate.or((has_log && second_round).then_some(0.0)))
    }
}

impl Tracked {
    /// Notes a pass over the whole cell.
    #[allow(clippy::cast_precision_loss)]
    fn update(&mut self, now: Duration, pages: u64, visited: u64, dirty: u64) {
        if pages == 0 || visited.saturating_sub(self.visited) < pages {
            return;
        }
        // In the first round all pages are sent, whatever the log has.
        if let Some(before) = self.at {
            let seconds = now.saturating_sub(before).as_secs_f64();
            self.found = dirty.saturating_sub(self.dirty).min(pages);
            self.rate = match seconds > 0.0 {
                true => self.found as f64 / seconds,
                false => 0.0,
            };
        }
        (self.visited, self.dirty, self.at) = (visited, dirty, Some(now));
    }

    /// Pages that are dirty now, if the guest writes as before.
    fn estimate(&self, now: Duration, pages: u64) -> u64 {
        let since = self
            .at
            .map_or(0.0, |at| now.saturating_sub(at).as_secs_f64());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let written = (self.rate * since) as u64;
        written.min(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_between_two_whole_passes() {
        let at = Duration::from_secs;
        let mut cell = Tracked::default();
        cell.update(at(1), 512, 511, 0);
        assert_eq!(cell.at, None, "not a whole pass");
        cell.update(at(1), 512, 512, 0);
        assert_eq!((cell.rate, cell.estimate(at(5), 512)), (0.0, 0));
        cell.update(at(3), 512, 1024, 100);
        assert!((cell.rate - 50.0).abs() < 1e-9);
        assert_eq!(cell.estimate(at(4), 512), 50);
        assert_eq!(cell.estimate(at(1000), 512), 512);
        // The guest has stopped writing.
        cell.update(at(4), 512, 1536, 100);
        assert_eq!((cell.rate, cell.estimate(at(9), 512)), (0.0, 0));
    }
}
