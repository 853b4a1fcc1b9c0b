//! Rounds of pre-copy: the link sends pages, and the guest writes.

use hikkoshi_account::{Mode, Round};

use crate::output::recordings::Ending;

use super::{Model, PAGE_BYTES, TICK, add};

impl Model<'_> {
    fn hot(&self, cell: usize) -> bool {
        matches!(cell % 40, 7 | 8)
    }

    /// Rounds until few pages are dirty. Returns whether it was not cancelled.
    pub(super) fn precopy(&mut self) -> bool {
        let rounds = if self.case.mode == Mode::Hybrid { 1 } else { 6 };
        for round in 1..=rounds {
            let begun_ms = self.at_ms;
            self.rounds.push(Round {
                round,
                begun_ms,
                ended_ms: None,
                pages: 0,
                zero: 0,
                bytes: 0,
                dirty_pages: None,
            });
            if !self.round(round) {
                return false;
            }
            let dirty = self.map.dirty.iter().sum();
            let last = self.rounds.last_mut().unwrap();
            last.ended_ms = Some(self.at_ms);
            last.dirty_pages = Some(dirty);
            if dirty < self.case.link_pages / 8 {
                break;
            }
        }
        true
    }

    fn round(&mut self, round: u32) -> bool {
        self.done = 0;
        self.total = match round {
            1 => self.case.cells * self.case.cell_pages,
            _ => self.map.dirty.iter().sum(),
        };
        let mut left = self.case.link_pages;
        for cell in 0..self.map.sent.len() {
            let mut send = match round {
                1 => self.case.cell_pages,
                _ => self.map.dirty[cell],
            };
            // A quarter of a guest is zero.
            let zero = if round == 1 && cell % 4 == 3 {
                send / 2
            } else {
                0
            };
            self.done += zero;
            self.pages.zero += zero;
            self.map.sent[cell] += zero;
            self.rounds.last_mut().unwrap().zero += zero;
            send -= zero;
            if round > 1 {
                self.map.dirty[cell] = 0;
                self.sent_again(send);
            }
            while send > 0 {
                let part = send.min(left);
                if round == 1 {
                    self.map.sent[cell] += part;
                }
                self.send_precopy(part);
                send -= part;
                left -= part;
                if left == 0 {
                    self.dirty();
                    self.tick();
                    if let Ending::Cancelled(after) = self.case.ending
                        && self.states.len() as u64 >= after
                    {
                        return false;
                    }
                    left = self.case.link_pages;
                }
            }
        }
        self.dirty();
        self.tick();
        true
    }

    pub(super) fn sent_again(&mut self, pages: u64) {
        add(&mut self.repeats.precopy, pages);
    }

    pub(super) fn send_precopy(&mut self, pages: u64) {
        self.done += pages;
        self.pages.precopy += pages;
        self.bytes.precopy += pages * PAGE_BYTES;
        self.sent_in_tick += pages * PAGE_BYTES;
        let round = self.rounds.last_mut().unwrap();
        round.pages += pages;
        round.bytes += pages * PAGE_BYTES;
    }

    /// The guest writes for one step.
    fn dirty(&mut self) {
        for cell in 0..self.map.sent.len() {
            let hot = self.hot(cell);
            let rate = match hot {
                true => self.case.hot_rate + cell as u64 / 8,
                false if cell % 5 == 0 => self.case.hot_rate / 60,
                false => 0,
            };
            let written = rate * TICK / 1000;
            let sent = self.map.sent[cell];
            let before = self.map.dirty[cell];
            let after = (before + written).min(sent);
            self.map.dirty[cell] = after;
            self.map.dirty_per_second[cell] = if sent > 0 { rate } else { 0 };
            self.dirtied_in_tick += after - before;
        }
    }
}
