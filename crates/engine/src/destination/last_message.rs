//! The last message on a control link, and how long to wait for the peer's.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_wire::ToSource;

use crate::destination::error::DestinationFailure;

/// How long to wait for the reason after a link has failed: a busy host may be slow. The end of the
/// control link ends the wait.
pub(crate) const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// The last message to a source whose guest is not received.
pub(crate) fn last_message(cause: &DestinationFailure) -> ToSource {
    match cause {
        DestinationFailure::Cancelled => ToSource::Cancel {
            reason: "cancelled by the operator".into(),
        },
        cause => ToSource::Failed {
            reason: Report::new(cause).to_string(),
        },
    }
}
