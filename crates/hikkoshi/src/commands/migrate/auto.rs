//! `--mode auto`: measures the guest and the line for a moment, and chooses the mode.

use std::time::Duration;

use hikkoshi_account::Auto;
use hikkoshi_engine::{CancelFlag, Mode, Observer};
use hikkoshi_estimate::{Span, WorkingSet};
use hikkoshi_link::Remote;

use crate::args::{Migrate, RequestedMode, WhenStalled};
use crate::commands::check::CheckedGuestOf;
use crate::commands::estimate::{NotEstimated, Request, estimate};
use crate::output::estimate::{Estimated, predicted};
use crate::output::exit::Exit;

/// How long the guest's writes are measured.
const SECONDS: Duration = Duration::from_millis(1500);

/// How much of one vCPU's time that may cost.
const MAX_COST: f64 = 0.02;

/// The most bytes to measure the line with.
const PROBE_LIMIT: u64 = 256 << 20;

/// What was chosen, and why.
#[derive(Debug)]
pub(super) struct Chosen {
    /// The command line, with the mode.
    pub(super) args: Migrate,
    pub(super) report: Auto,
    /// What the guest writes, if it was measured.
    pub(super) working_set: Option<WorkingSet>,
}

/// A mode, and why.
struct ChosenMode {
    mode: Mode,
    /// Whether post-copy is possible.
    may_postcopy: bool,
    report: Auto,
}

/// Chooses the mode. `None`: `--mode auto` was not given.
///
/// # Errors
/// The guest cannot be measured, or the destination does not answer. The guest is as before.
pub(super) fn choose(
    args: &Migrate,
    remote: &Remote,
    cancel: &CancelFlag,
    observer: &dyn Observer,
) -> Result<Option<Chosen>, Exit> {
    if args.mode != Some(RequestedMode::Auto) {
        return Ok(None);
    }
    let options = args.engine_options(&args.options());
    let request = Request {
        guest: CheckedGuestOf {
            domain: &args.domain,
            qmp: args.qmp.as_deref(),
            allow: &args.allow,
            disks: args.disks.selection(),
        },
        domain: &args.domain,
        qmp: args.qmp.as_deref(),
        remote: Some(remote),
        allow_cpu_mismatch: args.allow_cpu_mismatch,
        round_trip: None,
        options,
        seconds: SECONDS,
        max_cost: MAX_COST,
        probe_limit: PROBE_LIMIT,
    };
    let mut working_set = None;
    let chosen = match estimate(&request, cancel) {
        Ok(estimated) => {
            let chosen = choose_of(&estimated);
            working_set = Some(estimated.guest.working_set);
            chosen
        }
        Err(NotEstimated::NoDirtyLog) => without_estimate(
            Mode::Postcopy,
            "this host's kernel cannot track writes to the guest's memory",
        ),
        Err(NotEstimated::Failed(exit)) => return Err(exit),
    };
    let ChosenMode {
        mode,
        may_postcopy,
        report,
    } = chosen;
    observer.notice(&format!("mode {mode} was chosen: {}", report.reason));
    let mut args = args.clone();
    args.mode = Some(RequestedMode::Fixed(mode));
    if mode == Mode::Precopy && may_postcopy {
        // The guest may write more than it did while it was measured.
        args.convergence
            .when_stalled
            .get_or_insert(WhenStalled::Switch);
    }
    Ok(Some(Chosen {
        args,
        report,
        working_set,
    }))
}

fn choose_of(estimated: &Estimated) -> ChosenMode {
    // If no mode is possible, the attempt says why.
    let (mode, reason) = match &estimated.choice {
        Some(choice) => (choice.mode, choice.reason.clone()),
        None => (Mode::Hybrid, "no mode is possible".to_owned()),
    };
    let of = |mode| {
        let mut modes = estimated.modes.iter();
        modes.find(move |other| other.prediction.mode == mode)
    };
    let span = |span: fn(&hikkoshi_estimate::Prediction) -> Span| {
        of(mode).map(|of| predicted(span(&of.prediction), 1e3))
    };
    ChosenMode {
        mode,
        may_postcopy: of(Mode::Hybrid).is_some_and(|hybrid| hybrid.obstacles.is_empty()),
        report: Auto {
            chosen_mode: mode,
            reason,
            downtime_ms: span(|prediction| prediction.downtime),
            total_ms: span(|prediction| prediction.total),
        },
    }
}

fn without_estimate(mode: Mode, reason: &str) -> ChosenMode {
    ChosenMode {
        mode,
        may_postcopy: true,
        report: Auto {
            chosen_mode: mode,
            reason: reason.to_owned(),
            downtime_ms: None,
            total_ms: None,
        },
    }
}
