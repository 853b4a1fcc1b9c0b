//! Random numbers.

/// A small and fast pseudo-random number generator (xorshift with a multiplied result).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        // The generator never leaves the state zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`; 0 if `limit` is 0. `limit` is at most 2^32.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let scaled = high.wrapping_mul(limit as u64) >> 32;
        // The result is below `limit`, which is a `usize`.
        usize::try_from(scaled).unwrap_or(0)
    }

    /// True in `percent` of 100 calls on average.
    pub fn percent(&mut self, percent: u64) -> bool {
        (self.below(100) as u64) < percent
    }
}
