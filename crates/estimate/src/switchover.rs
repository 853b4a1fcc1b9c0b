//! What comes before the rounds and between them and the end: connecting, and the switchover.

use hikkoshi_engine::{Mode, SourceOptions};

use crate::float::float;
use crate::inputs::{Guest, Line};
use crate::precopy::Simulation;
use crate::span::{Scenario, Span};

/// Before the first page, s: the destination clears its memory and accepts the guest, QEMU's
/// settings are changed, the dirty log is opened.
const BEGIN: Span = Span {
    low: 0.02,
    likely: 0.045,
    high: 0.12,
};

/// After the last page, s: both sides say goodbye, and QEMU's settings are restored.
const END: Span = Span {
    low: 0.002,
    likely: 0.01,
    high: 0.04,
};

/// Preparing the pause, while the guest runs, s.
const PREPARE: f64 = 4e-3;

/// The pause of a guest with no dirty page and no devices, s: pausing, saving and loading the
/// device state, resuming. A guest of 512 MiB with one device is paused for 4.5 to 8.5 ms on 2
/// cores Intel Xeon (`make bench ARGS="--only estimate"`), and for 11 to 15 ms on 2 cores AMD EPYC
/// (`docs/assets/benchmarks/measured.md`).
const PAUSE: Span = Span {
    low: 3e-3,
    likely: 4e-3,
    high: 16e-3,
};

/// What a device adds to it, s, and a disk: the Debian guest of `docs/benchmarks.md` has four, two
/// of them disks, and is paused for 17 to 20 ms, 4.2 to 5.2 ms of them to open the disks' images.
const DEVICE: Span = Span {
    low: 0.3e-3,
    likely: 1.5e-3,
    high: 3e-3,
};
const DISK: Span = Span {
    low: 0.5e-3,
    likely: 2.9e-3,
    high: 10e-3,
};

/// What a vCPU beyond the first adds to it, s.
const VCPU: f64 = 0.3e-3;

/// The part of the pause in which dirty pages are sent already: saving the device state.
const OVERLAP: f64 = 2e-3;

/// Messages that follow each other in the pause, in round trips.
const TURNS: f64 = 2.0;

/// What marking a page as missing costs before the pause, s: it is looked up at the source, and
/// dropped at the destination, which takes 2.4 to 3.5 µs for each run of pages.
const STALE_PAGE: f64 = 2.5e-6;

/// What looking for a page with content costs, s: 10 ms for 600 MiB.
const FIND_PAGE: f64 = 65e-9;

/// From the start of the command's migration until the first round or switchover.
pub(crate) fn begin(
    line: &Line,
    options: &SourceOptions,
    guest: &Guest,
    scenario: Scenario,
) -> f64 {
    let may_postcopy = options.mode != Mode::Precopy;
    // The control link, the urgent link and the background links are opened one by one.
    let links = 1.0 + f64::from(options.links) + if may_postcopy { 1.0 } else { 0.0 };
    // Write protection is set page by page.
    let arm = match options.mode {
        Mode::Postcopy => 0.0,
        _ => float(guest.pages) * 10e-9,
    };
    BEGIN.cost(scenario)
        + links * line.open_link.cost(scenario)
        + 2.0 * line.round_trip.cost(scenario)
        + arm
}

/// From the last page until the end.
pub(crate) fn end(line: &Line, scenario: Scenario) -> f64 {
    END.cost(scenario) + line.round_trip.cost(scenario)
}

/// Before the pause, if post-copy follows: `stale` pages are dropped at the destination, after
/// pages were looked up.
pub(crate) fn drop_stale(simulation: &Simulation<'_>, stale: f64) -> f64 {
    simulation.read_log()
        + stale * STALE_PAGE
        + simulation.data * FIND_PAGE
        + simulation.round_trip
        + PREPARE
}

/// The pause, if post-copy follows.
pub(crate) fn pause(simulation: &Simulation<'_>) -> f64 {
    let guest = simulation.guest;
    let scenario = simulation.scenario;
    PAUSE.cost(scenario)
        + DEVICE.cost(scenario) * f64::from(guest.devices)
        + DISK.cost(scenario) * f64::from(guest.disks)
        + VCPU * f64::from(guest.vcpus.saturating_sub(1))
        + simulation.read_log()
        + TURNS * simulation.round_trip
}

/// The last rounds of pre-copy: while the guest runs, and while it is paused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastRounds {
    /// Seconds before the pause.
    pub(crate) running: f64,
    /// Seconds of the pause.
    pub(crate) paused: f64,
    /// Pages of both.
    pub(crate) pages: f64,
}

/// After rounds that have converged with `dirty` pages, the last of which took `last` seconds.
pub(crate) fn last_rounds(simulation: &Simulation<'_>, dirty: f64, last: f64) -> LastRounds {
    let page = simulation.scattered_page();
    let (running, before, rest) = if simulation.guest.drains {
        (PREPARE, 0.0, simulation.dirty(PREPARE, last + PREPARE))
    } else {
        let pages = simulation.dirty(PREPARE, last + PREPARE).max(dirty);
        let seconds = simulation.last_running(pages);
        (PREPARE + seconds, pages, simulation.curve.pages(seconds))
    };
    LastRounds {
        running,
        paused: pause(simulation) + (rest * page - OVERLAP).max(0.0) + simulation.round_trip,
        pages: before + rest,
    }
}
