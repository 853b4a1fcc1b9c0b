//! Whether a plan meets a deadline, and what would: [`within`].

use hikkoshi_engine::{Compression, Mode};
use hikkoshi_estimate::Span;

use crate::inputs::Evacuation;
use crate::plan::{Plan, plan};

/// How many times as fast a line is tried.
const FASTER: [f64; 9] = [1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0];

/// Whether a deadline is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// Not even if all is fast.
    No,
    /// Only if all is fast.
    Unlikely,
    /// With the likely values.
    Likely,
    /// Also if all is slow.
    Yes,
}

impl Met {
    fn of(total: Span, seconds: f64) -> Self {
        match total {
            Span { high, .. } if high <= seconds => Self::Yes,
            Span { likely, .. } if likely <= seconds => Self::Likely,
            Span { low, .. } if low <= seconds => Self::Unlikely,
            _ => Self::No,
        }
    }
}

/// What could be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// More moves at once than the limits allow: so many.
    AtOnce(usize),
    /// No limit of the bandwidth.
    NoBandwidthLimit,
    /// All moves in this mode.
    Mode(Mode),
    /// Compression of background pages, where it pays.
    Compress,
    /// These guests stay, by their numbers.
    Without(Vec<usize>),
    /// Lines that are so many times as fast.
    FasterLines(f64),
}

/// Whether a plan meets a deadline.
#[derive(Debug, Clone, PartialEq)]
pub struct Within {
    /// The deadline, s.
    pub seconds: f64,
    /// Whether it is met.
    pub met: Met,
    /// Changes that make it likelier, with the time that the whole would take, and whether the
    /// deadline would be met then.
    pub changes: Vec<(Change, Span, Met)>,
}

/// Whether `planned`, the plan of `evacuation`, ends within so many seconds. If that is not
/// certain, single changes are tried.
#[must_use]
pub fn within(evacuation: &Evacuation, planned: &Plan, seconds: f64) -> Within {
    let met = Met::of(planned.total, seconds);
    let mut changes = Vec::new();
    if met < Met::Yes {
        let mut consider = |change: Change, changed: &Evacuation| {
            let plan = plan(changed);
            let then = Met::of(plan.total, seconds);
            let keeps_guests =
                matches!(change, Change::Without(_)) || plan.moves.len() >= planned.moves.len();
            let helps = then > met && then >= Met::Likely && keeps_guests;
            if helps {
                changes.push((change, plan.total, then));
            }
            helps
        };
        if let Some(changed) = without_limit_at_once(evacuation) {
            consider(Change::AtOnce(plan(&changed).at_once), &changed);
        }
        if let Some(changed) = without_bandwidth_limit(evacuation) {
            consider(Change::NoBandwidthLimit, &changed);
        }
        for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
            if evacuation.mode == Some(mode) {
                continue;
            }
            let changed = Evacuation {
                mode: Some(mode),
                ..evacuation.clone()
            };
            consider(Change::Mode(mode), &changed);
        }
        if evacuation.options.compression == Compression::Off {
            let mut changed = evacuation.clone();
            changed.options.compression = Compression::Auto;
            consider(Change::Compress, &changed);
        }
        for factor in FASTER {
            if consider(Change::FasterLines(factor), &faster(evacuation, factor)) {
                break;
            }
        }
        // The guests that take longest stay: as few as meet the deadline.
        let longest = longest(planned);
        let (mut few, mut enough) = (0, longest.len());
        while few + 1 < enough {
            let number = usize::midpoint(few, enough);
            let total = plan(&without(evacuation, &longest[..number])).total;
            match Met::of(total, seconds) {
                Met::Yes | Met::Likely => enough = number,
                Met::Unlikely | Met::No => few = number,
            }
        }
        if let Some(staying) = longest.get(..enough).filter(|it| it.len() < longest.len()) {
            let mut numbers = staying.to_vec();
            numbers.sort_unstable();
            consider(Change::Without(numbers), &without(evacuation, staying));
        }
    }
    Within {
        seconds,
        met,
        changes,
    }
}

/// The guests that are moved, those that take longest first.
fn longest(planned: &Plan) -> Vec<usize> {
    let mut moves: Vec<_> = planned.moves.iter().collect();
    moves.sort_by(|one, other| other.total.likely.total_cmp(&one.total.likely));
    moves.iter().map(|it| it.guest).collect()
}

/// These guests stay.
fn without(evacuation: &Evacuation, staying: &[usize]) -> Evacuation {
    let mut changed = evacuation.clone();
    for &number in staying {
        changed.guests[number].modes.clear();
    }
    changed
}

fn without_limit_at_once(evacuation: &Evacuation) -> Option<Evacuation> {
    let destinations = evacuation.destinations.iter();
    let mut limits = destinations.map(|it| it.limits).chain([evacuation.source]);
    limits.any(|it| it.at_once.is_some()).then(|| {
        let mut changed = evacuation.clone();
        changed.source.at_once = None;
        for destination in &mut changed.destinations {
            destination.limits.at_once = None;
        }
        changed
    })
}

fn without_bandwidth_limit(evacuation: &Evacuation) -> Option<Evacuation> {
    let destinations = evacuation.destinations.iter();
    let mut limits = destinations.map(|it| it.limits).chain([evacuation.source]);
    limits.any(|it| it.bandwidth.is_some()).then(|| {
        let mut changed = evacuation.clone();
        changed.source.bandwidth = None;
        for destination in &mut changed.destinations {
            destination.limits.bandwidth = None;
        }
        changed
    })
}

fn faster(evacuation: &Evacuation, factor: f64) -> Evacuation {
    let mut changed = evacuation.clone();
    changed.source_rate *= factor;
    for destination in &mut changed.destinations {
        let rate = &mut destination.line.rate;
        *rate = Span {
            low: rate.low * factor,
            likely: rate.likely * factor,
            high: rate.high * factor,
        };
    }
    changed
}
