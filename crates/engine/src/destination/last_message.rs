//! The last message on a control link.

use error_reporter::Report;
use hikkoshi_wire::ToSource;

use crate::destination::error::DestinationFailure;

/// The last message to a source whose guest is not received.
pub(crate) fn last_message(cause: &DestinationFailure) -> ToSource {
    match cause {
        DestinationFailure::Cancelled => ToSource::Cancel {
            reason: String::new(),
        },
        cause => ToSource::Failed {
            reason: Report::new(cause).to_string(),
        },
    }
}
