//! Reports the outcome of a migration at the source.

use std::path::Path;

use error_reporter::Report;
use hikkoshi_account::{Account, GuestState, SourceQuit};
use hikkoshi_engine::MigrateError;
use hikkoshi_engine::source::SourceFailure;
use hikkoshi_handover::Outcome;
use hikkoshi_qemu::qmp::{Monitor, MonitorAddress};
use hikkoshi_qemu::{GuestNow, QemuIdentity, QemuSource, QuitError};

use crate::args::MigrateOptions;
use crate::commands::guard::qemu_ended;
use crate::commands::monitor::resume_by_hand;
use crate::commands::print_result::{SourceExtras, print_result};
use crate::commands::resume_command::{GIVE_UP_HINT, resume_command};
use crate::journal::SourceEntry;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::output::streams;
use crate::status::RunPublisher;

const LOST: &str = "the guest is lost: it ran at the destination, and its QEMU there has ended. \
                    Unless the guest was shut down there, the changes to its memory since the \
                    handover are lost. This QEMU holds a stale snapshot, which must not be \
                    continued on its disks, which are newer: end this QEMU, and reboot the guest \
                    from its disks";

const MEMORY_LOST: &str = "the guest is lost: at the destination it waits for pages that no longer \
                           exist. End its QEMU there ('hikkoshi receive --resume --give-up' does), \
                           and reboot the guest from its disks";

/// The source's QEMU after a migration.
#[derive(Debug)]
pub(super) struct SourceQemu<'a> {
    /// Its monitor.
    pub(super) monitor: &'a MonitorAddress,
    /// Its process, if it still exists.
    pub(super) pid: Option<u32>,
    /// Its guest, if that was left or resumed here.
    pub(super) guest: Option<GuestNow>,
    /// Whether the guest ran when the migration began.
    pub(super) ran: bool,
}

/// What QEMU reports of its guest after a migration that has left it at the source. `None`: it is
/// not there. `guest`: none if its QEMU has ended.
pub(super) fn guest_now(
    result: &Result<Account, MigrateError>,
    guest: Option<&mut QemuSource>,
) -> Option<GuestNow> {
    match result {
        Err(MigrateError {
            outcome: Outcome::AtSource | Outcome::Stopped,
            ..
        }) => Some(guest.map_or(GuestNow::Ended(None), QemuSource::guest_now)),
        _ => None,
    }
}

/// Reports the outcome. `extras`: what else this side reports.
pub(super) fn report(
    publisher: &RunPublisher,
    result: Result<Account, MigrateError>,
    journal: &Path,
    qemu: &SourceQemu<'_>,
    extras: SourceExtras,
) -> Result<ExitStatus, Exit> {
    let (monitor, qemu_pid) = (qemu.monitor, qemu.pid);
    let error = match result {
        Ok(account) => {
            let what = match account.guest_state {
                GuestState::Running => "the guest runs at the destination",
                GuestState::Unknown => "the guest is at the destination",
                GuestState::Paused => "the guest is at the destination, paused as before",
                GuestState::ShutDown => {
                    "the guest has shut down at the destination: it needs nothing more from here, \
                     and must not be continued here"
                }
            };
            let next = match &extras.quit {
                Some(SourceQuit {
                    source_quit_error: Some(error),
                    ..
                }) => Some(not_ended(
                    error,
                    monitor,
                    qemu_pid,
                    &resume_command::<SourceEntry>(journal),
                )),
                _ => qemu_pid.map(how_to_end),
            };
            print_result(&account, publisher, what, next.as_deref(), extras)?;
            return Ok(ExitStatus::after_move(account.guest_state));
        }
        Err(error) => error,
    };
    let again = resume_command::<SourceEntry>(journal);
    let (holder, next) = match &qemu.guest {
        Some(GuestNow::Ended(why)) => (Holder::Nobody, qemu_ended(why.as_deref())),
        guest => {
            let here = at_source(guest.as_ref(), qemu.ran);
            let next = next_step(&error, monitor, &here, &again);
            (error.outcome.into(), next)
        }
    };
    let holder = match error.cause {
        SourceFailure::MemoryLost { .. } => Holder::Destination,
        _ => holder,
    };
    let reason = match (holder, error.outcome) {
        (Holder::Nobody, Outcome::AtSource | Outcome::Stopped) => Reason::QemuEnded,
        _ => Reason::from(&error.cause),
    };
    let exit = Exit::caused(error.outcome.into(), reason, &error)
        .with(next)
        .held_by(holder);
    // There is something to resume if a journal is left.
    Err(match error.outcome {
        Outcome::Lost if needs_notice(&error) => exit.resumed_by(again),
        Outcome::Lost => exit,
        Outcome::AtSource if error.aftermath.is_empty() => exit,
        _ => exit.resumed_by(again),
    })
}

/// Removes what the owner of a guest that has moved still keeps of it here (`--undefine-source`).
/// If the destination has not done everything, a domain may not be persistent there: it stays
/// defined here.
fn forget(
    monitor: &dyn Monitor,
    undefine: bool,
    left_to_do: Option<&str>,
) -> Result<(), QuitError> {
    if left_to_do.is_some() && undefine {
        streams::notice(
            "--undefine-source was not done, because not everything was done at the destination: \
             the domain's configuration stays here (next: 'virsh undefine', when the domain is \
             persistent there)",
        );
        return Ok(());
    }
    Ok(monitor.forget()?)
}

/// Ends the source's QEMU of a guest that has moved, if that is wanted (`--quit-source`, a domain);
/// otherwise QEMU notes that the guest has moved. `guest`: none if QEMU has ended.
pub(super) fn end_qemu(
    guest: Option<&mut QemuSource>,
    monitor: &dyn Monitor,
    options: &MigrateOptions,
    identity: &QemuIdentity,
    left_to_do: Option<&str>,
) -> Option<SourceQuit> {
    if !options.quit_source && !identity.monitor.is_owned() {
        if let Some(guest) = guest {
            guest.note_moved();
        }
        return None;
    }
    Some(quit_source(|| {
        guest.map_or(Ok(()), QemuSource::quit)?;
        forget(monitor, options.domain.undefine_source, left_to_do)
    }))
}

/// Of a guest that was lost at its destination nothing is needed here any more: its QEMU is ended
/// (`--quit-source`), or notes that. What it holds is a moment of the past, and is never run.
pub(super) fn end_qemu_of_lost(
    error: &MigrateError,
    guest: Option<&mut QemuSource>,
    options: &MigrateOptions,
) {
    let is_lost_there = matches!(error.cause, SourceFailure::GuestLost(_));
    let Some(guest) = guest.filter(|_| is_lost_there) else {
        return;
    };
    guest.note_moved();
    if options.quit_source {
        quit_source(|| guest.quit());
    }
}

/// Ends the source's QEMU. If that fails, the result says what to do, and the
/// journal stays.
fn quit_source(quit: impl FnOnce() -> Result<(), QuitError>) -> SourceQuit {
    let error = quit().err().map(|error| Report::new(&error).to_string());
    if let Some(error) = &error {
        streams::notice(&format!("the source's QEMU was not ended: {error}"));
    }
    SourceQuit {
        source_quit: error.is_none(),
        source_quit_error: error,
    }
}

/// What a guest does that the migration has left at the source. `ran`: it did before.
fn at_source(guest: Option<&GuestNow>, ran: bool) -> String {
    match guest {
        Some(GuestNow::Runs) => "the guest still runs at the source".to_owned(),
        Some(GuestNow::Stopped(state)) if state == "shutdown" => {
            "the guest is at the source, and has shut down".to_owned()
        }
        Some(GuestNow::Stopped(_)) if !ran => {
            "the guest is at the source, paused as before".to_owned()
        }
        Some(GuestNow::Stopped(state)) => {
            format!("the guest is at the source, and does not run: its state is {state}")
        }
        Some(GuestNow::Ended(why)) => qemu_ended(why.as_deref()),
        Some(GuestNow::Unknown) | None => {
            "the guest is at the source; its QEMU does not answer, so it is not known whether it \
             runs"
                .to_owned()
        }
    }
}

/// Where the guest is after an error, and what to do. `here`: what it does at the source, if it is
/// there.
fn next_step(error: &MigrateError, monitor: &MonitorAddress, here: &str, again: &str) -> String {
    match error.outcome {
        Outcome::AtSource if error.aftermath.is_empty() => here.to_owned(),
        Outcome::AtSource => format!("{here}. To restore the rest in QEMU: {again}"),
        // `Declined` is an outcome of destinations only.
        Outcome::Stopped | Outcome::Declined => format!(
            "the guest belongs to the source, and is paused. No data is lost. To resume it: \
             {again}; or {}",
            resume_by_hand(monitor)
        ),
        // The guest's memory here was changed, or may have been.
        Outcome::Paused | Outcome::AtDestination
            if matches!(error.cause, SourceFailure::Guest(_)) =>
        {
            format!(
                "the guest runs at the destination, or may run there: never continue it here. The pages \
                 that it lacks are still here, and may be wrong. To send them as they are now: {again}. \
                 Otherwise end the guest there ('hikkoshi receive --resume --give-up \
                 --other-side-is-lost'), and reboot it from its disks"
            )
        }
        Outcome::Paused => format!(
            "the guest is paused here, and may run at the destination already: never continue it \
             by hand. No data is lost. {GIVE_UP_HINT} To resume, start 'hikkoshi receive --resume' \
             at the destination unless it is running there, and here: {again}"
        ),
        Outcome::Lost if needs_notice(error) => format!(
            "{MEMORY_LOST}. The destination could not be notified. To notify it, start 'hikkoshi \
             receive --resume' there unless it is running, and here: {again}"
        ),
        Outcome::Lost if matches!(error.cause, SourceFailure::MemoryLost { .. }) => {
            MEMORY_LOST.to_owned()
        }
        Outcome::Lost => LOST.to_owned(),
        Outcome::AtDestination => format!(
            "the guest runs at the destination: never continue it here. Pages that are missing \
             there are still here, and no data is lost as long as the destination's QEMU runs. \
             {GIVE_UP_HINT} To resume, start at the destination, unless it is running there: \
             hikkoshi receive --resume (also if it ended there with all pages: it \
             reports that to this side); and here: {again}"
        ),
    }
}

/// Whether the destination does not know that pages were lost here.
fn needs_notice(error: &MigrateError) -> bool {
    matches!(
        error.cause,
        SourceFailure::MemoryLost {
            notified: false,
            ..
        }
    )
}

/// What to do with the source's QEMU, which should have been ended. libvirt ends that of a domain
/// by `SIGTERM`: it may write to its images then.
fn not_ended(error: &str, monitor: &MonitorAddress, pid: Option<u32>, again: &str) -> String {
    let by_hand = match (monitor, pid) {
        (MonitorAddress::Domain { .. }, Some(pid)) => format!(
            "; by hand: not 'virsh destroy', after which QEMU may write to the disks, but \
             'kill -KILL {pid}'"
        ),
        _ => String::new(),
    };
    format!(
        "next: the source's QEMU was not ended: {error}. Never continue it ('cont'). To try again: \
         {again}{by_hand}"
    )
}

/// What to do with the source's QEMU after the migration.
fn how_to_end(pid: u32) -> String {
    format!(
        "next: end the source's QEMU (process {pid}), for example with the QMP command 'quit'. It \
         is paused and is not needed any more; never continue it ('cont')"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_that_runs_is_said_to_run() {
        let stopped = |state: &str| GuestNow::Stopped(state.to_owned());
        for (guest, ran, expected) in [
            (GuestNow::Runs, true, "the guest still runs at the source"),
            (
                stopped("shutdown"),
                true,
                "the guest is at the source, and has shut down",
            ),
            (
                stopped("paused"),
                false,
                "the guest is at the source, paused as before",
            ),
            (
                stopped("io-error"),
                true,
                "the guest is at the source, and does not run: its state is io-error",
            ),
            (
                GuestNow::Unknown,
                true,
                "the guest is at the source; its QEMU does not answer, so it is not known whether \
                 it runs",
            ),
        ] {
            assert_eq!(at_source(Some(&guest), ran), expected);
        }
    }

    #[test]
    fn a_domain_that_was_not_ended_is_to_be_killed() {
        let again = "hikkoshi migrate --resume";
        let domain = MonitorAddress::Domain {
            uri: "qemu:///system".to_owned(),
            uuid: "1".to_owned(),
            name: "guest".to_owned(),
        };
        let next = not_ended("it hangs", &domain, Some(7), again);
        assert!(next.contains("not 'virsh destroy'"), "{next}");
        assert!(next.ends_with("'kill -KILL 7'"), "{next}");
        let socket = MonitorAddress::Socket("/run/qmp".into());
        let next = not_ended("it hangs", &socket, Some(7), again);
        assert!(next.ends_with(again), "{next}");
    }

    #[test]
    fn a_qemu_that_was_not_ended_is_reported_to_programs() {
        let state = "running".to_owned();
        let quit = quit_source(|| Err(QuitError::Runs { state }));
        let written = serde_json::to_value(&quit).unwrap();
        assert_eq!(written["source_quit"], false);
        let error = written["source_quit_error"].as_str().unwrap();
        assert!(error.contains("its guest runs"), "{error}");
        let quit = serde_json::to_value(quit_source(|| Ok(()))).unwrap();
        assert_eq!(quit, serde_json::json!({ "source_quit": true }));
    }
}
