//! Reports the outcome of a migration at the destination.

use std::path::Path;

use hikkoshi_account::{Account, GuestState};
use hikkoshi_engine::ReceiveError;
use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_handover::{DestinationRecord, Outcome};

use crate::commands::print_result::{SourceExtras, print_result};
use crate::commands::resume_command::{GIVE_UP_HINT, resume_command};
use crate::journal::DestinationEntry;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::status::RunPublisher;

/// What to report if the guest was not received, and QEMU cannot receive another one.
pub(super) const AT_SOURCE: &str =
    "the guest stays at the source; restart this QEMU before the next try";

const LOST: &str = "the guest is lost: it ran in that QEMU. Unless it was shut down, the changes to \
                    its memory since the handover are lost. The source's QEMU, which is paused \
                    ('hikkoshi migrate --resume' there names its process), holds a stale snapshot, \
                    which must not be continued on its disks, which are newer. Reboot the guest \
                    from its disks";

const MAY_BE_LOST: &str = "the guest was started in that QEMU, and may have run. If it has, the \
                           changes to its memory are lost, and the source holds a stale snapshot, \
                           which must not be continued on its disks, which are newer. Its owner \
                           has to decide: hikkoshi migrate --resume --give-up at the source \
                           explains how";

/// What is left of the destination's machine if the guest stays at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DestinationLeft {
    /// A QEMU into which nothing was loaded.
    Unused,
    /// A QEMU that cannot receive another guest.
    Used,
    /// Nothing: the QEMU that was started for the guest is ended.
    Ends,
    /// Nothing: the domain was removed again.
    Domain,
}

/// Whether a guest that was not received does not run here and will not, whatever is done next.
pub(super) fn is_gone(error: &ReceiveError, qemu_has_ended: bool) -> bool {
    match error.outcome {
        Outcome::AtSource | Outcome::Stopped | Outcome::Declined | Outcome::Lost => true,
        Outcome::Paused | Outcome::AtDestination => qemu_has_ended,
    }
}

/// Reports the outcome. `qemu_has_ended` is about the destination's QEMU.
pub(super) fn report(
    publisher: &RunPublisher,
    result: Result<Account, ReceiveError>,
    journal: &Path,
    qemu_has_ended: bool,
    after: DestinationLeft,
) -> Result<ExitStatus, Exit> {
    let error = match result {
        Ok(account) => return success(publisher, &account, journal),
        Err(error) => error,
    };
    if let DestinationFailure::SourceMemoryLost(_) = error.cause
        && error.outcome == Outcome::Lost
        && !qemu_has_ended
    {
        return Err(source_memory_lost(&error, journal));
    }
    let outcome = match error.outcome {
        Outcome::AtDestination if qemu_has_ended => Outcome::Lost,
        outcome => outcome,
    };
    let again = resume_command::<DestinationEntry>(journal);
    let next = match outcome {
        // `Stopped` is an outcome of sources only.
        Outcome::AtSource | Outcome::Stopped => at_source(&error.cause, after),
        Outcome::Declined => format!(
            "the guest has not run here and never will, but its source may not know that and may \
             keep the guest paused. Unless 'hikkoshi migrate' reports that the guest runs at the \
             source, resume at the source with 'hikkoshi migrate --resume', and here with: {again}"
        ),
        Outcome::Lost => LOST.to_owned(),
        Outcome::Paused if qemu_has_ended => MAY_BE_LOST.to_owned(),
        Outcome::Paused => format!(
            "as far as is known the guest has not run here, and no data is lost: keep both QEMU \
             processes. {GIVE_UP_HINT} Unless 'hikkoshi migrate' reports that the guest runs at \
             the source (then end this QEMU and remove {}), resume here with: {again}",
            journal.display(),
        ),
        Outcome::AtDestination => format!(
            "the guest runs here with the pages that have arrived, and waits when it needs others, \
             which are still at the source. No data is lost: never continue it there. To resume, \
             run 'hikkoshi migrate --resume' at the source, and here: {again}"
        ),
    };
    let reason = match outcome {
        Outcome::Lost => Reason::GuestLost,
        // A domain was ended because of the failure, if the guest stays at the source.
        Outcome::AtSource | Outcome::Stopped if after == DestinationLeft::Domain => {
            Reason::from(&error.cause)
        }
        _ if qemu_has_ended => Reason::QemuEnded,
        _ => Reason::from(&error.cause),
    };
    let exit = Exit::caused(outcome.into(), reason, &error)
        .with(next)
        .held_by(holder(outcome, &error.cause));
    Err(match outcome {
        Outcome::AtSource | Outcome::Stopped | Outcome::Lost => exit,
        Outcome::Paused | Outcome::AtDestination | Outcome::Declined => exit.resumed_by(again),
    })
}

/// Who has the guest.
fn holder(outcome: Outcome, cause: &DestinationFailure) -> Holder {
    match (outcome, cause) {
        (Outcome::AtSource, DestinationFailure::SourceEnded) => Holder::Nobody,
        // Only the source knows whether it still has the guest.
        (Outcome::AtSource, DestinationFailure::CancelledBySource(_)) => Holder::Unknown,
        (outcome, _) => outcome.into(),
    }
}

/// The guest waits here for pages that were lost at the source.
fn source_memory_lost(error: &ReceiveError, journal: &Path) -> Exit {
    let give_up = format!(
        "{} --give-up --other-side-is-lost",
        resume_command::<DestinationEntry>(journal)
    );
    let next = format!(
        "the guest is lost: it waits here for those pages, as soon as it accesses one. End this \
         QEMU and reboot the guest from its disks. This command ends it, and removes the journal: \
         {give_up}"
    );
    Exit::caused(ExitStatus::Lost, Reason::MemoryLost, error)
        .with(next)
        .held_by(Holder::Destination)
        .resumed_by(give_up)
}

fn success(
    publisher: &RunPublisher,
    account: &Account,
    journal: &Path,
) -> Result<ExitStatus, Exit> {
    let what = match account.guest_state {
        GuestState::Running => "the guest runs here",
        GuestState::Paused => "the guest is here, paused as before",
        GuestState::ShutDown => "the guest has run here and has shut down",
        GuestState::Unknown => {
            "the guest is here with all of its memory; QEMU has not answered whether it still runs \
             (query-status tells)"
        }
    };
    print_result(account, publisher, what, None, SourceExtras::default())?;
    if journal.exists() {
        publisher.observer().notice(&format!(
            "the source may not know that: do not continue the guest there. If 'hikkoshi migrate' \
             has not ended with success there, run it with --resume there, and here: {}",
            resume_command::<DestinationEntry>(journal)
        ));
    }
    Ok(ExitStatus::after_move(account.guest_state))
}

/// Where a guest is that was not received, and whether this QEMU can receive one later.
fn at_source(cause: &DestinationFailure, after: DestinationLeft) -> String {
    let guest = match cause {
        DestinationFailure::SourceEnded => "the guest was not received here",
        DestinationFailure::CancelledBySource(_) => {
            "the guest was not received here, and the source reports where it is"
        }
        _ => "the guest stays at the source",
    };
    let here = match after {
        DestinationLeft::Unused => {
            "nothing was loaded into this QEMU, which can still receive a guest"
        }
        DestinationLeft::Used => "restart this QEMU before the next try",
        DestinationLeft::Ends => "the QEMU that was started for it ends",
        DestinationLeft::Domain => "nothing is left of its domain here",
    };
    format!("{guest}; {here}")
}

/// Where the guest is if the destination's QEMU ended before the source knew that all pages had
/// arrived.
pub(super) fn qemu_ended(record: &DestinationRecord, what: String, left: &str) -> Exit {
    let (status, reason, holder, next) = if record.started {
        (ExitStatus::Lost, Reason::GuestLost, Holder::Nobody, LOST)
    } else {
        (
            ExitStatus::Unfinished,
            Reason::QemuEnded,
            Holder::Undecided,
            MAY_BE_LOST,
        )
    };
    Exit::new(status, reason, what)
        .with(format!("{next}. {left}"))
        .held_by(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_may_have_ended_is_not_reported_to_have_the_guest() {
        let reported = |cause: &DestinationFailure| {
            (
                holder(Outcome::AtSource, cause),
                at_source(cause, DestinationLeft::Used).contains("stays at the source"),
            )
        };
        // Whatever the source reports as the reason.
        let cancelled = DestinationFailure::CancelledBySource("anything".into());
        assert_eq!(reported(&cancelled), (Holder::Unknown, false));
        let ended = DestinationFailure::SourceEnded;
        assert_eq!(reported(&ended), (Holder::Nobody, false));
        let here = DestinationFailure::Cancelled;
        assert_eq!(reported(&here), (Holder::Source, true));
        assert_eq!(holder(Outcome::Paused, &cancelled), Holder::Undecided);
    }
}
