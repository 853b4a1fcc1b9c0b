//! ACPI's power-management timer: a counter of 24 bits. The guest measures its time-stamp counter
//! by it.

use std::time::Instant;

use serde::{Deserialize, Serialize};

const HZ: u128 = 3_579_545;
const BITS: u32 = 24;

#[derive(Debug)]
pub(crate) struct AcpiTimer {
    since: Instant,
    /// What it counted until then.
    base: u32,
}

/// What the timer reads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SavedAcpiTimer(u32);

impl AcpiTimer {
    pub(crate) fn load(saved: SavedAcpiTimer) -> Self {
        Self {
            since: Instant::now(),
            base: saved.0,
        }
    }

    pub(crate) fn save(&self) -> SavedAcpiTimer {
        SavedAcpiTimer(self.read())
    }

    #[allow(clippy::cast_possible_truncation)] // the mask fits
    pub(crate) fn read(&self) -> u32 {
        let ticks = self.since.elapsed().as_nanos() * HZ / 1_000_000_000;
        (u128::from(self.base) + ticks) as u32 & ((1 << BITS) - 1)
    }
}

impl Default for AcpiTimer {
    fn default() -> Self {
        Self::load(SavedAcpiTimer(0))
    }
}
