//! Who goes where.

use std::cmp::Reverse;

use crate::admission::{Refusal, obstacle, refusal};
use crate::inputs::{Evacuation, float};

/// Which of the destinations that can have a guest gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The one with the largest part of its memory left afterwards.
    Loosest,
    /// The one with the least memory left afterwards: best fit.
    Tightest,
}

/// A guest and its destination, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) guest: usize,
    pub(crate) destination: usize,
}

/// Where the guests go, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) placed: Vec<Placed>,
    pub(crate) refused: Vec<(usize, Refusal)>,
}

/// Places each guest, or says why it cannot be. Guests with few destinations come first, and then
/// those with much memory.
pub(crate) fn place(evacuation: &Evacuation, fit: Fit) -> Placement {
    let destinations = &evacuation.destinations;
    let mut left: Vec<u64> = destinations.iter().map(|it| it.free_memory).collect();
    let mut refused = Vec::new();
    let mut order = Vec::new();
    for (number, guest) in evacuation.guests.iter().enumerate() {
        if let Some(why) = refusal(evacuation, guest) {
            refused.push((number, why));
            continue;
        }
        let choices = destinations
            .iter()
            .filter(|it| obstacle(guest, it, it.free_memory).is_none());
        order.push((choices.count(), Reverse(guest.memory), number));
    }
    order.sort_unstable();
    let mut placed = Vec::new();
    for (_, _, number) in order {
        let guest = &evacuation.guests[number];
        let rest = |at: usize| left[at].saturating_sub(guest.needs());
        let part = |at: usize| float(rest(at)) / float(destinations[at].free_memory.max(1));
        let possible = (0..destinations.len())
            .filter(|&at| obstacle(guest, &destinations[at], left[at]).is_none());
        let best = match fit {
            Fit::Tightest => possible.min_by_key(|&at| rest(at)),
            Fit::Loosest => possible.min_by(|&one, &other| part(other).total_cmp(&part(one))),
        };
        match best {
            Some(at) => {
                left[at] = rest(at);
                placed.push(Placed {
                    guest: number,
                    destination: at,
                });
            }
            None => {
                let why = destinations.iter().zip(&left);
                let why = why.filter_map(|(it, &left)| obstacle(guest, it, left));
                refused.push((number, Refusal::Nowhere(why.collect())));
            }
        }
    }
    placed.sort_unstable_by_key(|it| it.guest);
    refused.sort_by_key(|(number, _)| *number);
    Placement { placed, refused }
}
