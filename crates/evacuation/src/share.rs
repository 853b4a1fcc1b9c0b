//! What each move gets of the lines that it uses.

/// Divides lines that carry `capacities` among moves by max-min fairness: no move can have more
/// without another that has no more than it getting less. `paths` has the numbers of the lines that
/// each move uses.
pub(crate) fn shares(paths: &[[usize; 2]], capacities: &[f64]) -> Vec<f64> {
    let mut left = capacities.to_vec();
    let mut shares = vec![f64::INFINITY; paths.len()];
    let mut open: Vec<usize> = (0..paths.len()).collect();
    while !open.is_empty() {
        let users = |line: usize| {
            let uses = open.iter().filter(|&&at| paths[at].contains(&line));
            uses.count()
        };
        // The line of which each of its moves gets the least.
        let tightest = (0..left.len())
            .filter_map(|line| match users(line) {
                0 => None,
                #[allow(clippy::cast_precision_loss)] // Some moves.
                users => Some((line, left[line].max(0.0) / users as f64)),
            })
            .min_by(|one, other| one.1.total_cmp(&other.1));
        let Some((tightest, share)) = tightest else {
            break;
        };
        open.retain(|&at| {
            let path = paths[at];
            if !path.contains(&tightest) {
                return true;
            }
            shares[at] = share;
            for line in path {
                left[line] -= share;
            }
            false
        });
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_move_over_a_slow_line_leaves_the_rest_to_the_others() {
        // A line of 100 for all, and then 20, 100 and 100.
        let paths = [[0, 1], [0, 2], [0, 2], [0, 3]];
        let got = shares(&paths, &[100.0, 20.0, 100.0, 100.0]);
        for (got, expected) in got.iter().zip([20.0, 80.0 / 3.0, 80.0 / 3.0, 80.0 / 3.0]) {
            assert!((got - expected).abs() < 1e-9, "{got}");
        }
        assert_eq!(shares(&[[0, 1]], &[100.0, 30.0]), [30.0]);
        assert!(shares(&[], &[1.0]).is_empty());
    }

    proptest! {
        #[test]
        fn no_line_carries_more_than_it_can_and_no_move_could_have_more(
            capacities in vec(1.0..1e9_f64, 4),
            to in vec(1..4_usize, 1..12),
        ) {
            let paths: Vec<_> = to.iter().map(|&line| [0, line]).collect();
            let got = shares(&paths, &capacities);
            let used = |line: usize| -> f64 {
                let of = paths.iter().zip(&got).filter(|(path, _)| path.contains(&line));
                of.map(|(_, share)| share).sum()
            };
            for (line, capacity) in capacities.iter().enumerate() {
                prop_assert!(used(line) <= capacity * (1.0 + 1e-9));
            }
            for (path, share) in paths.iter().zip(&got) {
                // One of its lines is full, and nobody has more there.
                let limits = path.iter().any(|&line| {
                    let most = paths.iter().zip(&got).filter(|(other, _)| other.contains(&line));
                    let most = most.map(|(_, share)| *share).fold(0.0, f64::max);
                    used(line) >= capacities[line] * (1.0 - 1e-9) && most <= share * (1.0 + 1e-9)
                });
                prop_assert!(limits, "{path:?} {share}");
            }
        }
    }
}
