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
            reason: reason_for_source(cause),
        },
    }
}

/// What a source is sent of a failure: the error with its sources, unless parts of it are only for
/// this host.
pub(crate) fn reason_for_source(cause: &DestinationFailure) -> String {
    let for_peer = match cause {
        DestinationFailure::Guest(error) => error.text_for_peer(),
        _ => None,
    };
    for_peer.map_or_else(|| Report::new(cause).to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_error::GuestError;

    #[test]
    fn a_source_is_sent_the_text_that_is_meant_for_it() {
        let error = || GuestError::new("loading: refused. It wrote: /secret");
        let reason = |error| match last_message(&DestinationFailure::Guest(error)) {
            ToSource::Failed { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(error()), "loading: refused. It wrote: /secret");
        let short = error().with_text_for_peer("loading: refused".into());
        assert_eq!(reason(short), "loading: refused");
        let cancelled = last_message(&DestinationFailure::Cancelled);
        assert!(matches!(cancelled, ToSource::Cancel { .. }));
    }
}
