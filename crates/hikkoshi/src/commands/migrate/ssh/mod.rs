//! `hikkoshi migrate --ssh`: starts `hikkoshi receive` at the destination, as rsync does.
//!
//! `receive` prints an invitation on the session's standard output, and the migration is one by
//! invitation like any other: its links do not pass through the session. The invitation is neither
//! shown nor part of a command line.

mod line_limit;
mod remote_command;
mod session;

use std::path::Path;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;

use self::session::{NotStarted, SshSession};
use super::start::{self, Destination, UNCHANGED};
use crate::args::Migrate;
use crate::commands::receive_answer::Answer;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};
use crate::security;
use crate::status::RunPublisher;

/// Starts `receive` on `host`, and a migration to it.
pub(super) fn start(
    args: &Migrate,
    host: &str,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let command = remote_command::command(args, host)?;
    let (remote, answer) = SshSession::start(command, host, &cancel, publisher.observer())
        .map_err(|error| not_started(&error, host))?;
    let result = match answer {
        Answer::Invitation(text) => {
            let Ok(invitation) = text.parse();
            security::invited(&invitation)
                .map(Destination::Receiver)
                .and_then(|to| start::start(args, &to, cancel, publisher))
        }
        Answer::Listening | Answer::Busy => {
            let what = format!("'hikkoshi receive' on {host} sent no invitation");
            let exit = Exit::new(ExitStatus::AtSource, Reason::Remote, what).with(UNCHANGED);
            Err(exit.held_by(Holder::Unknown))
        }
    };
    remote.finish(result.as_ref().map_or_else(Exit::status, |status| *status));
    result.map_err(|exit| resumable(args, host, exit))
}

/// Starts `receive --resume` on `host`, and resumes the migration.
pub(super) fn resume(
    args: &Migrate,
    file: Option<&Path>,
    host: &str,
    cancel: CancelFlag,
    publisher: &RunPublisher,
) -> Result<ExitStatus, Exit> {
    let command = remote_command::command(args, host)?;
    let failed = |what: String| {
        let next = "nothing was changed, and the migration can still be resumed";
        Exit::new(ExitStatus::Unfinished, Reason::Remote, what).with(next)
    };
    let started = SshSession::start(command, host, &cancel, publisher.observer());
    let (remote, answer) = started.map_err(|error| {
        let why = Report::new(&error);
        failed(format!(
            "starting 'hikkoshi receive --resume' on {host}: {why}"
        ))
    })?;
    match answer {
        Answer::Listening => {}
        // The engine there has survived.
        Answer::Busy => publisher.observer().notice(&format!(
            "another 'hikkoshi receive' works on this migration on {host} already: only this side \
             is resumed"
        )),
        Answer::Invitation(_) => {
            return Err(failed(format!(
                "'hikkoshi receive' on {host} has begun another migration instead of resuming \
                 this one"
            )));
        }
    }
    let result = super::resume::resume(args, file, cancel, publisher);
    remote.finish(result.as_ref().map_or_else(Exit::status, |status| *status));
    result.map_err(|exit| resumable(args, host, exit))
}

/// The guest's QEMU has not been looked at.
fn not_started(error: &NotStarted, host: &str) -> Exit {
    let exit = match error {
        NotStarted::Cancelled => Exit::caused(ExitStatus::AtSource, Reason::Cancelled, error),
        error => {
            let what = format!(
                "starting 'hikkoshi receive' on {host}: {}",
                Report::new(error)
            );
            Exit::new(ExitStatus::AtSource, Reason::Remote, what)
        }
    };
    exit.with(UNCHANGED).held_by(Holder::Unknown)
}

/// Adds how to resume both sides by one command, if there is something to resume.
fn resumable(args: &Migrate, host: &str, exit: Exit) -> Exit {
    let Some(again) = exit
        .resume()
        .filter(|_| exit.status() == ExitStatus::Unfinished)
    else {
        return exit;
    };
    let both = format!(
        "This command does both: {again} {}",
        remote_command::options(args, host)
    );
    exit.also(&both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::exit::End;

    #[test]
    fn a_session_that_did_not_start_says_nothing_of_the_guest() {
        for error in [NotStarted::Closed, NotStarted::Cancelled] {
            let exit = not_started(&error, "h");
            let end = serde_json::to_value(End::from(&exit)).unwrap();
            assert_eq!(end["guest"], "unknown", "{end}");
        }
        let closed = not_started(&NotStarted::Closed, "h").text();
        assert_eq!(
            closed,
            "starting 'hikkoshi receive' on h: it has closed its standard output without an \
             invitation; nothing was changed"
        );
        let cancelled = not_started(&NotStarted::Cancelled, "h").text();
        assert_eq!(
            cancelled,
            "cancelled while 'hikkoshi receive' was started at the destination; nothing was changed"
        );
    }
}
