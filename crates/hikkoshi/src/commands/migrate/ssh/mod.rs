//! `hikkoshi migrate --ssh`: starts `hikkoshi receive` at the destination, as rsync does.
//!
//! `receive` prints an invitation on the session's standard output, and the migration is one by
//! invitation like any other: its links do not pass through the session. The invitation is neither
//! shown nor part of a command line.

mod remote_command;
mod session;

use std::path::Path;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;

use self::session::{NotStarted, SshSession};
use super::Destination;
use crate::args::Migrate;
use crate::commands::receive_answer::Answer;
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;
use crate::security;
use crate::status::Session;

const UNCHANGED: &str = super::UNCHANGED;

/// Starts `receive` on `host`, and a migration to it.
pub(super) fn start(
    args: &Migrate,
    host: &str,
    cancel: CancelFlag,
    session: &Session,
) -> Result<Status, Exit> {
    let command = remote_command::command(args, host)?;
    let (remote, answer) = SshSession::start(command, host, &cancel, session.observer())
        .map_err(|error| not_started(&error, host))?;
    let result = match answer {
        Answer::Invitation(text) => {
            let Ok(invitation) = text.parse();
            security::invited(&invitation)
                .map(Destination::Receiver)
                .and_then(|to| super::start(args, &to, cancel, session))
        }
        Answer::Listening => {
            let what = format!("'hikkoshi receive' on {host} sent no invitation");
            Err(Exit::new(Status::AtSource, Reason::Remote, what).with(UNCHANGED))
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
    session: &Session,
) -> Result<Status, Exit> {
    let command = remote_command::command(args, host)?;
    let remote = match SshSession::start(command, host, &cancel, session.observer()) {
        Ok((remote, _)) => Some(remote),
        // It has ended by itself: it reports why. The engine there may have survived.
        Err(NotStarted::Ended(status)) if status.code().is_some_and(is_of_hikkoshi) => {
            session.observer().notice(&format!(
                "'hikkoshi receive --resume' on {host} has ended ({status}): another one may be \
                 running there already"
            ));
            None
        }
        Err(error) => {
            let why = Report::new(&error);
            let what = format!("starting 'hikkoshi receive --resume' on {host}: {why}");
            let next = "nothing was changed, and the migration can still be resumed";
            return Err(Exit::new(Status::Unfinished, Reason::Remote, what).with(next));
        }
    };
    let result = super::resume::resume(args, file, cancel, session);
    if let Some(remote) = remote {
        remote.finish(result.as_ref().map_or_else(Exit::status, |status| *status));
    }
    result.map_err(|exit| resumable(args, host, exit))
}

/// Whether hikkoshi ends with this status. Others are of the shell (126 and 127: it cannot start
/// hikkoshi) and of ssh (255).
fn is_of_hikkoshi(code: i32) -> bool {
    code <= i32::from(Status::Lost.code())
}

fn not_started(error: &NotStarted, host: &str) -> Exit {
    if matches!(error, NotStarted::Cancelled) {
        return Exit::caused(Status::AtSource, Reason::Cancelled, error).with(UNCHANGED);
    }
    let what = format!(
        "starting 'hikkoshi receive' on {host}: {}",
        Report::new(error)
    );
    Exit::new(Status::AtSource, Reason::Remote, what).with(UNCHANGED)
}

/// Adds how to resume both sides by one command, if there is something to resume.
fn resumable(args: &Migrate, host: &str, exit: Exit) -> Exit {
    let Some(again) = exit
        .resume()
        .filter(|_| exit.status() == Status::Unfinished)
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

    #[test]
    fn statuses_of_ssh_and_the_shell_are_not_hikkoshis() {
        for code in [126, 127, 255] {
            assert!(!is_of_hikkoshi(code), "{code}");
        }
        for code in 0..=4 {
            assert!(is_of_hikkoshi(code), "{code}");
        }
    }
}
