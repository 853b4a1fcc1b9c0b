//! Options of both sides that `--resume` takes from the journal.

use std::time::Duration;

use clap::Args;
use hikkoshi_engine::{Observer, RetryFor};
use hikkoshi_qemu::AllowedTypes;

use super::durations;
use super::headings::{CONNECTION, MIGRATION, RECOVERY};

/// How long a link may stall, unless an option says otherwise.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of both sides that are kept in the journal; `None` and empty: not given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct JournaledOptions {
    /// Allow a device, network backend or block driver that hikkoshi does not know
    ///
    /// A guest with such a device is refused otherwise. Writes of the device to the guest's memory
    /// that bypass QEMU's page tables are lost. Can be given several times.
    #[arg(verbatim_doc_comment, long, value_name = "TYPE", help_heading = MIGRATION)]
    pub allow_device: Vec<String>,

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
    /// Such as 0, 90s, 15m or 2h. Only time without links counts, and time with links is
    /// subtracted from it. After that the command ends; --resume resumes the migration.
    /// [default: 15m if the migration ends in post-copy, otherwise 0]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DURATION",
        value_parser = durations::parse,
        help_heading = RECOVERY
    )]
    pub retry_for: Option<Duration>,
}

impl JournaledOptions {
    /// These options, and where one was not given, that of `earlier`.
    #[must_use]
    pub(crate) fn or(mut self, earlier: Self) -> Self {
        let mut allow_device = earlier.allow_device;
        self.allow_device
            .retain(|device| !allow_device.contains(device));
        allow_device.append(&mut self.allow_device);
        Self {
            allow_device,
            stall_timeout: self.stall_timeout.or(earlier.stall_timeout),
            retry_for: self.retry_for.or(earlier.retry_for),
        }
    }

    /// The types of devices that the user allows.
    pub(crate) fn allowed(&self) -> AllowedTypes {
        AllowedTypes::new(self.allow_device.iter().cloned())
    }

    /// Reports what `--allow-device` means.
    pub(crate) fn warn_of_devices(&self, observer: &dyn Observer) {
        for device in &self.allow_device {
            observer.notice(&format!(
                "--allow-device {device}: hikkoshi does not check whether this device writes to \
                 the guest's memory in a way that it cannot see; if it does, the guest loses pages"
            ));
        }
    }

    pub(super) fn retry_for(&self) -> RetryFor {
        self.retry_for.map_or(RetryFor::BY_MODE, RetryFor::always)
    }

    pub(super) fn stall_timeout(&self) -> Duration {
        self.stall_timeout.unwrap_or(STALL_TIMEOUT)
    }
}
