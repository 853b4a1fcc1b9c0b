//! Options of pre-copy and of the links, for `migrate` and `estimate`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use hikkoshi_engine::{MAX_LINKS, SourceOptions};
use serde::{Deserialize, Serialize};

use super::durations;
use super::headings::{MIGRATION, TUNING};

/// When pre-copy ends, and how many links there are; `None`: not given.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConvergenceOptions {
    /// Longest pause of the guest in pre-copy, such as 300ms or 1.5s [default: 300ms]
    ///
    /// A number without a unit is in milliseconds. The longest is 10m; none is the same.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "TIME",
        value_parser = durations::parse_max_downtime,
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub max_downtime: Option<u64>,

    /// Action if pre-copy does not converge [default: continue]
    ///
    /// That is, after --max-rounds rounds. Not related to --stall-timeout, which is about links.
    #[arg(verbatim_doc_comment, long, value_name = "ACTION", value_enum, help_heading = MIGRATION)]
    pub when_stalled: Option<WhenStalled>,

    /// Background connections, each with a thread on both sides
    ///
    /// [default: half of this host's CPUs, between 1 and 8]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_LINKS)),
        help_heading = TUNING
    )]
    pub links: Option<u16>,

    /// Pre-copy rounds before the switchover in hybrid mode [default: 1]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = TUNING
    )]
    pub rounds: Option<u32>,

    /// Rounds after which pre-copy counts as not converging, or none [default: 30]
    #[arg(
        long,
        value_name = "N",
        value_parser = parse_max_rounds,
        help_heading = TUNING
    )]
    pub max_rounds: Option<u32>,
}

impl ConvergenceOptions {
    /// The engine's options with these; where one was not given, its default.
    pub(super) fn engine_options(&self) -> SourceOptions {
        let default = SourceOptions::default();
        SourceOptions {
            max_downtime: self
                .max_downtime
                .map_or(default.max_downtime, Duration::from_millis),
            precopy_rounds: self.rounds.unwrap_or(default.precopy_rounds),
            max_rounds: self.max_rounds.unwrap_or(default.max_rounds),
            when_stalled: self.when_stalled.map_or(default.when_stalled, Into::into),
            links: self.links.unwrap_or(default.links),
            ..default
        }
    }
}

/// Parses a number of rounds, or `none`: more than any pre-copy has.
fn parse_max_rounds(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(u32::MAX),
        number => number
            .parse()
            .ok()
            .filter(|&rounds| rounds > 0)
            .ok_or_else(|| format!("'{text}' is not a number of rounds from 1 on, or none")),
    }
}

/// What to do if pre-copy does not converge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenStalled {
    /// Report it and continue pre-copy
    Continue,
    /// Continue with post-copy
    Switch,
    /// Cancel the migration; the guest stays at the source
    Stop,
}

impl From<WhenStalled> for hikkoshi_engine::WhenStalled {
    fn from(action: WhenStalled) -> Self {
        match action {
            WhenStalled::Continue => Self::Continue,
            WhenStalled::Switch => Self::Switch,
            WhenStalled::Stop => Self::Stop,
        }
    }
}
