//! Which page is next.

use crate::options::Pattern;

/// A small, quick generator of random numbers (xorshift with a multiplied result).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Zero is the one state that the generator never leaves.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`; 0 if `limit` is 0. `limit` is at most 2^32.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let scaled = high.wrapping_mul(limit as u64) >> 32;
        // Below `limit`, which is a `usize`.
        usize::try_from(scaled).unwrap_or(0)
    }

    /// True in `percent` of a hundred calls.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        (self.below(100) as u64) < percent
    }
}

/// Picks page after page of a share.
#[derive(Debug)]
pub(crate) struct Pick {
    pattern: Pattern,
    next: usize,
}

impl Pick {
    pub(crate) fn new(pattern: Pattern) -> Self {
        Self { pattern, next: 0 }
    }

    /// The next of `pages` pages (at least one).
    pub(crate) fn next(&mut self, random: &mut Random, pages: usize) -> usize {
        match self.pattern {
            Pattern::Random => random.below(pages),
            Pattern::Sequential => {
                let page = if self.next < pages { self.next } else { 0 };
                self.next = page + 1;
                page
            }
            Pattern::Hotspot => {
                if random.percent(90) {
                    random.below(pages.div_ceil(10))
                } else {
                    random.below(pages)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_visits_all_and_starts_again() {
        let (mut pick, mut random) = (Pick::new(Pattern::Sequential), Random::new(1));
        let visited: Vec<_> = (0..7).map(|_| pick.next(&mut random, 3)).collect();
        assert_eq!(visited, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn random_reaches_every_page_and_stays_inside() {
        let (mut pick, mut random) = (Pick::new(Pattern::Random), Random::new(0));
        let mut seen = [0u32; 50];
        for _ in 0..50_000 {
            seen[pick.next(&mut random, 50)] += 1;
        }
        assert!(seen.iter().all(|&n| (700..1300).contains(&n)), "{seen:?}");
    }

    #[test]
    fn hotspot_puts_nine_tenths_on_a_tenth() {
        let (mut pick, mut random) = (Pick::new(Pattern::Hotspot), Random::new(3));
        let hot = (0..10_000)
            .filter(|_| pick.next(&mut random, 1000) < 100)
            .count();
        // 90 % by choice, and a tenth of the rest by chance.
        assert!((8900..9300).contains(&hot), "{hot}");
    }
}
