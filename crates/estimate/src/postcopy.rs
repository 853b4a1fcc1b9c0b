//! Post-copy, simulated in small steps of time: background pages, and the guest's page faults.

use crate::costs::{
    FAULT, FAULT_PAGES, FAULT_STOPS_BACKGROUND, INSTALL_PAGE, LEAST_BACKGROUND, PAGE_BYTES,
    POSTCOPY_SHARE, SEND_PAGE,
};
use crate::precopy::Simulation;
use crate::span::Scenario;

/// In a step about this part of the missing pages arrives.
const STEPS: f64 = 400.0;

/// The most steps: a guest whose faults leave the background the least time.
const MOST_STEPS: u32 = 20_000;

/// A guest that waits for a page this often, in seconds, waits all the time for the engine: it
/// expects the next request soon (`RECENT` in `link/src/flow/urgent_activity.rs`).
const WAITS: f64 = 50e-3;

/// The time of a background page.
struct Background {
    /// On the line, …
    on_line: f64,
    /// … there with the limit of the bandwidth, …
    whole: f64,
    /// … and of the processors.
    by_processor: f64,
}

/// How post-copy went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Postcopy {
    pub(crate) seconds: f64,
    /// Page faults.
    pub(crate) faults: f64,
    /// Background pages that were compressed.
    pub(crate) compressed: f64,
    /// How long the guest's vCPUs waited, together, in seconds.
    pub(crate) waited: f64,
}

/// Simulates post-copy until `missing` pages have arrived; so many pages were `sent` in pre-copy.
/// `hit`: the part of the pages that the
/// guest writes for the first time which is missing at the beginning.
pub(crate) fn postcopy(simulation: &Simulation<'_>, sent: f64, missing: f64, hit: f64) -> Postcopy {
    let mut all = Postcopy::default();
    if missing < 1.0 {
        return all;
    }
    // Reads are not known. Read-ahead saves faults where accesses are near each other.
    let (touched, faults_saved) = match simulation.scenario {
        Scenario::Easy => (1.0, 4.0),
        Scenario::Likely => (1.0, 1.3),
        Scenario::Hard => (2.0, 1.0),
    };
    // Pages that the guest waits for are not compressed.
    let on_line = PAGE_BYTES / simulation.line_rate;
    let in_postcopy = |on_line: f64| (on_line / POSTCOPY_SHARE).max(on_line + INSTALL_PAGE);
    let page = in_postcopy(on_line);
    // The measured rate contains the processors' time. So it is less than that of other processors,
    // if the rate is higher than they allow.
    let by_processor = ((simulation.guest.read_page + SEND_PAGE) / simulation.links).min(page);
    // The limit of the bandwidth is one for the background.
    let plain = Background {
        on_line: page,
        whole: page.max(PAGE_BYTES / simulation.rate),
        by_processor,
    };
    let compressed = in_postcopy(simulation.page_bytes / simulation.line_rate);
    let compressed = Background {
        on_line: compressed,
        whole: compressed.max(simulation.page()),
        by_processor: by_processor + simulation.compressing / simulation.links,
    };
    let mut before = simulation.sent_before - sent;
    let latency = simulation.round_trip + FAULT_PAGES * on_line + FAULT.cost(simulation.scenario);
    let stops = FAULT_STOPS_BACKGROUND.cost(simulation.scenario);
    let vcpus = f64::from(simulation.guest.vcpus.max(1));
    let mut left = missing;
    // How long the guest has run, without its waits.
    let mut ran = 0.0;
    for _ in 0..MOST_STEPS {
        let density = hit * left / missing;
        let wanted = simulation.curve.growth(ran) * touched * density / faults_saved;
        let runs = 1.0 / (1.0 + wanted * latency / vcpus);
        // Nothing is compressed while the guest waits for pages.
        let waits = wanted * runs * WAITS >= 1.0;
        let background_page = match waits || before > 0.0 {
            true => &plain,
            false => &compressed,
        };
        // The background keeps a part of the line, however many vCPUs wait.
        let most_faults = (1.0 - LEAST_BACKGROUND) / page;
        let step =
            missing / STEPS / ((wanted * runs).min(most_faults) + 1.0 / background_page.whole);
        let runs = step * runs;
        let faults = (wanted * runs).min(most_faults * step).min(left);
        let runs = if wanted > 0.0 { faults / wanted } else { runs };
        let processor = (step - faults * stops).max(LEAST_BACKGROUND * step);
        let background = (step / background_page.whole)
            .min((step - faults * page) / background_page.on_line)
            .min(processor / background_page.by_processor)
            .max(LEAST_BACKGROUND * step / background_page.whole);
        ran += runs;
        all.seconds += step;
        all.faults += faults;
        all.waited += vcpus * (step - runs).max(0.0);
        if waits || before > 0.0 {
            before -= background;
        } else {
            all.compressed += background;
        }
        let arrived = faults + background;
        if arrived >= left {
            // The step ends with the last page.
            all.seconds -= step * (1.0 - left / arrived);
            break;
        }
        left -= arrived;
    }
    all.seconds += simulation.round_trip;
    all
}
