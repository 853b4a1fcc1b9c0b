//! What has become of the guests.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::plan::PlanReport;
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
    /// `null`: it was not moved, or an engine was killed.
    pub(crate) total_ms: Option<f64>,
    pub(crate) downtime_ms: Option<f64>,
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
    /// What was planned.
    plan: PlanReport,
}

impl ResultReport {
    pub(crate) fn new(plan: PlanReport, guests: Vec<EndedGuest>, run: Duration) -> Self {
        Self {
            exit_status: status(&guests).code(),
            guests,
            run_ms: run.as_secs_f64() * 1e3,
            plan,
        }
    }

    /// How the program ends.
    pub(crate) fn status(&self) -> ExitStatus {
        status(&self.guests)
    }
}

fn status(guests: &[EndedGuest]) -> ExitStatus {
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
    let mut rows = vec![["guest", "is", "to", "attempts", "total", "downtime"].map(str::to_owned)];
    rows.extend(report.guests.iter().map(|it| {
        [
            it.guest.clone(),
            it.outcome.name().to_owned(),
            it.to.clone().unwrap_or_else(|| "-".to_owned()),
            it.attempts.to_string(),
            ms(it.total_ms),
            ms(it.downtime_ms),
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
        "{} of {} guests have moved in {}, with planning (planned: {})",
        moved.count(),
        report.guests.len(),
        time(report.run_ms),
        span(report.plan.total_ms, time)
    );
    if report.status() != ExitStatus::Moved {
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
            total_ms: None,
            downtime_ms: None,
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
            assert_eq!(status(&guests).code(), code, "{outcomes:?}");
        }
    }
}
