//! Random numbers from a seed that is printed, so that a run can be repeated.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pseudo-random numbers (SplitMix64, by Steele, Lea and Flood).
#[derive(Clone, Debug)]
pub struct Random(pub(super) u64);

impl Random {
    /// Numbers from that seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.number() % below.max(1)
    }

    /// A random part of `whole`.
    pub fn part_of(&mut self, whole: Duration) -> Duration {
        whole.mul_f64(self.part())
    }

    #[allow(clippy::cast_precision_loss)] // 53 bits
    pub(super) fn part(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The seed of all random numbers.
pub(super) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("HIKKOSHI_SEED") {
        Ok(text) => text.parse().expect("HIKKOSHI_SEED is a number"),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |now| u64::from(now.subsec_nanos()) ^ now.as_secs()),
    })
}
