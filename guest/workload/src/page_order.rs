//! Which page is next.

use crate::options::Pattern;
use crate::random::Random;

/// Picks page after page of a share.
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
    fn sequential_visits_all_and_starts_again() {
        let (mut page_order, mut random) = (PageOrder::new(Pattern::Sequential), Random::new(1));
        let visited: Vec<_> = (0..7).map(|_| page_order.next(&mut random, 3)).collect();
        assert_eq!(visited, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn random_reaches_every_page_and_stays_inside() {
        let (mut page_order, mut random) = (PageOrder::new(Pattern::Random), Random::new(0));
        let mut seen = [0u32; 50];
        for _ in 0..50_000 {
            seen[page_order.next(&mut random, 50)] += 1;
        }
        assert!(seen.iter().all(|&n| (700..1300).contains(&n)), "{seen:?}");
    }

    #[test]
    fn hotspot_puts_nine_tenths_on_a_tenth() {
        let (mut page_order, mut random) = (PageOrder::new(Pattern::Hotspot), Random::new(3));
        let hot = (0..10_000)
            .filter(|_| page_order.next(&mut random, 1000) < 100)
            .count();
        // 90 % by choice, and a tenth of the rest by chance.
        assert!((8900..9300).contains(&hot), "{hot}");
    }
}
