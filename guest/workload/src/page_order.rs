//! The order of accesses to pages.

use crate::options::Pattern;
use crate::random::Random;

/// Selects one page after the other.
#[derive(Debug)]
pub(crate) struct PageOrder {
    pattern: Pattern,
    next: usize,
}

impl PageOrder {
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
    fn sequential_order_starts_again_after_the_last_page() {
        let (mut page_order, mut random) = (PageOrder::new(Pattern::Sequential), Random::new(1));
        let visited: Vec<_> = (0..7).map(|_| page_order.next(&mut random, 3)).collect();
        assert_eq!(visited, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn random_order_is_uniform() {
        let (mut page_order, mut random) = (PageOrder::new(Pattern::Random), Random::new(0));
        let mut seen = [0u32; 50];
        for _ in 0..50_000 {
            seen[page_order.next(&mut random, 50)] += 1;
        }
        assert!(seen.iter().all(|&n| (700..1300).contains(&n)), "{seen:?}");
    }

    #[test]
    fn hotspot_selects_ten_percent_of_pages_most_often() {
        let (mut page_order, mut random) = (PageOrder::new(Pattern::Hotspot), Random::new(3));
        let hot = (0..10_000)
            .filter(|_| page_order.next(&mut random, 1000) < 100)
            .count();
        // 90 % by design, and a tenth of the rest at random.
        assert!((8900..9300).contains(&hot), "{hot}");
    }
}
