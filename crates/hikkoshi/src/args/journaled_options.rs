//! Options of both sides that `--resume` takes from the journal.

use std::time::Duration;

use clap::Args;
use hikkoshi_engine::RetryFor;

use super::allow_device::AllowDevice;
use super::durations;
use super::headings::{CONNECTION, RECOVERY};

/// How long a link may stall, unless an option says otherwise.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of both sides that are kept in the journal; `None` and empty: not given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct JournaledOptions {
    #[command(flatten)]
    pub devices: AllowDevice,

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

impl JournaledOptions {
    /// These options, and where one was not given, that of `earlier`.
    #[must_use]
    pub(crate) fn or(self, earlier: Self) -> Self {
        Self {
            devices: self.devices.after(earlier.devices),
            stall_timeout: self.stall_timeout.or(earlier.stall_timeout),
            retry_for: self.retry_for.or(earlier.retry_for),
        }
    }

    pub(super) fn retry_for(&self) -> RetryFor {
        self.retry_for.map_or(RetryFor::BY_MODE, RetryFor::always)
    }

    pub(super) fn stall_timeout(&self) -> Duration {
        self.stall_timeout.unwrap_or(STALL_TIMEOUT)
    }
}
