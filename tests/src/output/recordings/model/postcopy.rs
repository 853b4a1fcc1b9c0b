//! Post-copy: the guest faults, and the link sends the rest.

use hikkoshi_account::{Mode, Outage, Phase};

use crate::output::recordings::Ending;

use super::{Model, PAGE_BYTES, add};

/// Pages that are on their way when the links are lost.
const RESENT: u64 = 48;

impl Model<'_> {
    pub(super) fn postcopy(&mut self) {
        self.phase = Phase::Postcopy;
        let missing: Vec<u64> = match self.case.mode {
            Mode::Hybrid => self.map.dirty.clone(),
            Mode::Precopy | Mode::Postcopy => {
                self.map.sent.iter().map(|_| self.case.cell_pages).collect()
            }
        };
        self.map.dirty.fill(0);
        for map in [&mut self.map, &mut self.arrived] {
            map.by_request = vec![0; missing.len()];
            map.background = vec![0; missing.len()];
            map.missing = missing.clone();
        }
        self.arrived.waiting = vec![0; missing.len()];
        self.total = missing.iter().sum();
        self.done = 0;
        let mut tick = 0_u64;
        while self.done < self.total {
            if self.case.ending == Ending::Lost && self.done * 2 > self.total {
                return;
            }
            tick += 1;
            if self.case.outage && tick == 4 {
                self.outage();
            }
            self.requests(tick);
            self.background();
            self.tick();
        }
        self.arrived.waiting.fill(0);
        self.tick();
    }

    /// The guest faults in some cells.
    fn requests(&mut self, tick: u64) {
        self.arrived.waiting.fill(0);
        let cells = self.map.missing.len();
        for number in 0..60_u64 {
            let cell = usize::try_from((number * number * 31 + tick * 97) % cells as u64).unwrap();
            let cell = if number % 2 == 0 {
                cell / 40 * 40 + 7
            } else {
                cell
            };
            let Some(missing @ 1..) = self.map.missing.get(cell).copied() else {
                continue;
            };
            let pages = missing.min(3);
            for _ in 0..pages {
                self.latencies.add();
            }
            self.install(cell, pages, true);
            self.pages.urgent += pages;
            self.bytes.urgent += pages * PAGE_BYTES;
            self.sent_in_tick += pages * PAGE_BYTES;
            if number % 9 == 0 && self.map.missing[cell] > 0 {
                self.arrived.waiting[cell] = 1;
            }
        }
    }

    fn background(&mut self) {
        let mut left = self.case.link_pages / 2;
        for cell in 0..self.map.missing.len() {
            let pages = self.map.missing[cell].min(left);
            if pages == 0 {
                continue;
            }
            left -= pages;
            self.install(cell, pages, false);
            self.pages.background += pages;
            self.bytes.background += pages * PAGE_BYTES;
            self.sent_in_tick += pages * PAGE_BYTES;
        }
    }

    fn install(&mut self, cell: usize, pages: u64, requested: bool) {
        self.done += pages;
        if self.case.mode == Mode::Hybrid {
            add(&mut self.repeats.stale, pages);
        }
        for map in [&mut self.map, &mut self.arrived] {
            map.missing[cell] -= pages;
            match requested {
                true => map.by_request[cell] += pages,
                false => map.background[cell] += pages,
            }
        }
    }

    /// Two seconds without links: a page that the guest waits for takes as long.
    fn outage(&mut self) {
        let from_ms = self.at_ms;
        self.outages.push(Outage {
            from_ms,
            before_ms: 0,
            to_ms: None,
            until_ms: None,
        });
        self.arrived.waiting[47] = 1;
        for _ in 0..20 {
            self.tick();
        }
        self.latencies.add_micros(2_000_310.0);
        // These were on their way.
        add(&mut self.repeats.resent, RESENT);
        self.pages.background += RESENT;
        self.bytes.background += RESENT * PAGE_BYTES;
        self.outages.last_mut().unwrap().to_ms = Some(self.at_ms);
    }
}
