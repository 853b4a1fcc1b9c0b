//! `hikkoshi receive`: the destination of a migration.

mod attach;
mod domain;
mod journal;
mod outcome;
mod resume;
mod run;
pub(crate) mod shown_name;
mod template;
mod unfinished;

use std::path::Path;
use std::sync::Arc;

use hikkoshi_account::{Limits, Side};
use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_engine::{CancelFlag, receive};
use hikkoshi_handover::Outcome;

use self::attach::HeldQemu;
use self::outcome::DestinationLeft;
use self::run::Announcement;
use self::template::TemplateQemu;
use crate::args::Receive;
use crate::commands::resume_command::before_search;
use crate::commands::{give_up, signals};
use crate::machines::WaitingMark;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::security::Acceptor;
use crate::status::{RunInfo, RunPublisher};

pub(crate) fn run(args: &Receive) -> Result<ExitStatus, Exit> {
    let cancel = signals::cancel_on_signals().map_err(before_search(&args.recovery))?;
    receive_guest(args, cancel)
}

/// Receives one guest, whatever has started this process.
pub(super) fn receive_guest(args: &Receive, cancel: CancelFlag) -> Result<ExitStatus, Exit> {
    let publisher = RunPublisher::new(
        &args.output,
        &args.recovery.journals.path(),
        RunInfo {
            side: Side::Destination,
            guest: shown_name::by_options(args),
            qmp: None,
            limits: Limits::default(),
            working_set: None,
        },
    );
    let result = match &args.recovery.resume {
        None => match (&args.guest.domain.connect, &args.guest.template) {
            (Some(uri), _) => domain::start(args, uri, cancel, &publisher),
            (None, Some(file)) => start_from_template(args, file, cancel, &publisher),
            (None, None) => start(args, None, cancel, &publisher),
        },
        Some(file) if args.give_up.give_up => give_up::destination(args, file.as_deref(), cancel),
        Some(file) => resume::resume(args, file.as_deref(), cancel, &publisher),
    };
    publisher.end(&result);
    result
}

/// Starts a QEMU, waits for a source and receives its guest.
fn start_from_template(
    args: &Receive,
    file: &Path,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let qemu = TemplateQemu::start(args, file, &cancel)?;
    let mut args = args.clone();
    args.guest.qmp = Some(qemu.qmp().to_owned());
    let result = start(&args, Some(qemu.mark()), cancel, publisher);
    qemu.finish(result.as_ref().map_or_else(Exit::status, |status| *status));
    result
}

/// Waits for a source and receives its guest. `mark` is that of a machine that was started for it.
fn start(
    args: &Receive,
    mark: Option<&Arc<WaitingMark>>,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let acceptor = Acceptor::new(args, run::address(args)?)?;
    let attached = HeldQemu::hold(args, mark)?.attach(&cancel, publisher)?;
    let ready = attached.listen(publisher, acceptor)?;
    let announced = ready.announce(Announcement::New)?;
    let ended = announced.receive(cancel, |guest, listener, options, control| {
        receive(guest, listener, options, control)
    });
    if let Some(exit) = ended.no_source() {
        return Err(exit.with(match mark {
            Some(_) => "nothing was changed, and the QEMU that was started for the guest ends",
            None => "nothing was changed, and this QEMU can still receive a guest",
        }));
    }
    if let Err(error) = &ended.result
        && matches!(error.cause, DestinationFailure::Cancelled)
        && error.outcome == Outcome::AtSource
        && ended.guest().has_ended()
    {
        // The end of QEMU has cancelled the wait, not a signal.
        let what = "waiting for a guest: this QEMU has ended";
        return Err(
            Exit::new(ExitStatus::AtSource, Reason::QemuEnded, what).with(outcome::AT_SOURCE)
        );
    }
    let left = match (mark, ended.guest().is_unused()) {
        (Some(_), _) => DestinationLeft::Ends,
        (None, true) => DestinationLeft::Unused,
        (None, false) => DestinationLeft::Used,
    };
    let journal = ended.journal().path().to_owned();
    let has_ended = ended.guest().has_ended();
    ended.report(&journal, has_ended, left)
}
