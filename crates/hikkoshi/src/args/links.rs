//! Options of both sides about their links.

use std::time::Duration;

use clap::Args;
use hikkoshi_engine::RetryFor;
use hikkoshi_link::DEFAULT_STALL_TIMEOUT;
use serde::{Deserialize, Deserializer, Serialize};

use super::durations;
use super::headings::{CONNECTION, RECOVERY};
use super::stored_value::within;

/// What was given; `None`: nothing.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LinkArgs {
    /// How long a link may stall before it counts as lost [default: 20s]
    ///
    /// From 1s to 1h.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DURATION",
        value_parser = durations::parse_stall,
        help_heading = CONNECTION
    )]
    pub stall_timeout: Option<Duration>,

    /// How long to try to reconnect if links are lost after the handover
    ///
    /// Such as 0, 90s, 15m or 2h; none: no limit. Only time without links counts, and time
    /// with links is subtracted from it. After that the command ends; --resume resumes the
    /// migration.
    /// [default: 15m if the migration ends in post-copy, otherwise 0]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DURATION",
        value_parser = durations::parse_retry,
        help_heading = RECOVERY
    )]
    pub retry_for: Option<Duration>,
}

/// The resolved options, as the journal stores them. The command line takes whole seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkOptions {
    #[serde(deserialize_with = "stall_timeout")]
    stall_timeout_s: u64,
    /// `None`: it depends on the mode.
    retry_for_s: Option<u64>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            stall_timeout_s: DEFAULT_STALL_TIMEOUT.as_secs(),
            retry_for_s: None,
        }
    }
}

impl LinkArgs {
    /// These options, and where one was not given, that of `earlier`.
    pub(super) fn over(&self, earlier: &LinkOptions) -> LinkOptions {
        let seconds = |given: Option<Duration>| given.map(|time| time.as_secs());
        LinkOptions {
            stall_timeout_s: seconds(self.stall_timeout).unwrap_or(earlier.stall_timeout_s),
            retry_for_s: seconds(self.retry_for).or(earlier.retry_for_s),
        }
    }
}

impl LinkOptions {
    pub(super) fn stall_timeout(&self) -> Duration {
        Duration::from_secs(self.stall_timeout_s)
    }

    pub(super) fn retry_for(&self) -> RetryFor {
        let given = self.retry_for_s.map(Duration::from_secs);
        given.map_or(RetryFor::BY_MODE, RetryFor::always)
    }
}

fn stall_timeout<'de, D: Deserializer<'de>>(file: D) -> Result<u64, D::Error> {
    within("stall-timeout", u64::deserialize(file)?, &(1..=3600))
}
