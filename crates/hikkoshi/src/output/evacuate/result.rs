//! What has become of the guests.

use std::fmt::Write as _;
use std::time::Duration;

use hikkoshi_status::{Evacuation, EvacuationPlan};
use serde::Serialize;

use super::plan_text::{columns, span, time};
use crate::output::exit::ExitStatus;

/// Where a guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// At the destination.
    Moved,
    /// At this host.
    Stays,
    /// Handed over, or perhaps so, and its migration is not finished.
    Unfinished,
    /// Lost.
    Lost,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Stays => "stays",
            Self::Unfinished => "unfinished",
            Self::Lost => "lost",
        }
    }
}

/// A guest at the end.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EndedGuest {
    pub(crate) guest: String,
    pub(crate) outcome: Outcome,
    /// Its destination, unless it stays.
    pub(crate) to: Option<String>,
    /// How often moving it was begun.
    pub(crate) attempts: u32,
    /// When its last move began and ended, from the start of the moves on. `null`: it had none in
    /// this run.
    pub(crate) begins_ms: Option<f64>,
    pub(crate) ends_ms: Option<f64>,
    /// `null`: it was not moved, or an engine was killed.
    pub(crate) total_ms: Option<f64>,
    pub(crate) downtime_ms: Option<f64>,
    /// What the guest has lost of its time.
    pub(crate) felt_ms: Option<f64>,
    /// Why it is not moved, for people.
    pub(crate) message: Option<String>,
    /// The command that resumes its migration.
    pub(crate) resume: Option<String>,
}

/// The result of an evacuation, as `--json` writes it (`docs/evacuating.md`).
#[derive(Debug, Serialize)]
pub(crate) struct ResultReport {
    /// The exit status of the program.
    exit_status: u8,
    guests: Vec<EndedGuest>,
    /// How long this run took, with planning.
    run_ms: f64,
    /// How long the moves took, from the start of the first one to the end of the last. `null`:
    /// there were none.
    total_ms: Option<f64>,
    /// What all guests have lost of their time. `null`: not known of one that has moved.
    felt_ms: Option<f64>,
    /// What was planned.
    plan: EvacuationPlan,
}

impl ResultReport {
    pub(crate) fn new(
        plan: EvacuationPlan,
        guests: Vec<EndedGuest>,
        evacuation: &Evacuation,
        run: Duration,
    ) -> Self {
        Self {
            exit_status: status_of(&guests).code(),
            guests,
            run_ms: run.as_secs_f64() * 1e3,
            total_ms: evacuation.total_ms(),
            felt_ms: evacuation.felt_ms(),
            plan,
        }
    }
}

/// How the program ends.
pub(crate) fn status_of(guests: &[EndedGuest]) -> ExitStatus {
    let any = |outcome| guests.iter().any(|it| it.outcome == outcome);
    if any(Outcome::Lost) {
        ExitStatus::Lost
    } else if any(Outcome::Unfinished) {
        ExitStatus::Unfinished
    } else if any(Outcome::Stays) {
        ExitStatus::AtSource
    } else {
        ExitStatus::Moved
    }
}

/// The result as text.
pub(crate) fn result_text(report: &ResultReport) -> String {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), time);
    let mut rows =
        vec![["guest", "is", "to", "attempts", "total", "downtime", "felt"].map(str::to_owned)];
    rows.extend(report.guests.iter().map(|it| {
        [
            it.guest.clone(),
            it.outcome.name().to_owned(),
            it.to.clone().unwrap_or_else(|| "-".to_owned()),
            it.attempts.to_string(),
            ms(it.total_ms),
            ms(it.downtime_ms),
            ms(it.felt_ms),
        ]
    }));
    let mut text = columns(&rows);
    // Writing to a String cannot fail.
    for it in &report.guests {
        if let Some(message) = &it.message {
            let _ = writeln!(text, "{}: {message}", it.guest);
        }
        if let Some(resume) = &it.resume {
            let _ = writeln!(text, "{}: to resume it: {resume}", it.guest);
        }
    }
    let moved = report
        .guests
        .iter()
        .filter(|it| it.outcome == Outcome::Moved);
    let _ = writeln!(
        text,
        "{} of {} guests have moved, in {} (planned: {}); with planning {}",
        moved.count(),
        report.guests.len(),
        ms(report.total_ms),
        span(report.plan.total_ms, time),
        time(report.run_ms)
    );
    if status_of(&report.guests) != ExitStatus::Moved {
        text.push_str("next: the same command again continues the evacuation\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_the_worst_guest() {
        let guest = |outcome| EndedGuest {
            guest: "a".to_owned(),
            outcome,
            to: None,
            attempts: 1,
            begins_ms: None,
            ends_ms: None,
            total_ms: None,
            downtime_ms: None,
            felt_ms: None,
            message: None,
            resume: None,
        };
        use Outcome::{Lost, Moved, Stays, Unfinished};
        for (outcomes, code) in [
            (&[][..], 0),
            (&[Moved, Moved], 0),
            (&[Moved, Stays], 1),
            (&[Stays, Unfinished], 3),
            (&[Unfinished, Lost, Stays], 4),
        ] {
            let guests: Vec<_> = outcomes.iter().map(|it| guest(*it)).collect();
            assert_eq!(status_of(&guests).code(), code, "{outcomes:?}");
        }
    }
}
