//! `hikkoshi invite`: asks the `hikkoshi daemon` of this host for an invitation.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::connect_unix;
use serde_json::{Value, json};

use crate::args::{DEFAULT_WAIT, Invite};
use crate::commands::daemon::request::{self, Question, RefusalKind, Reply, Request};
use crate::journal::absolute;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::{result_file, streams};

/// How long the daemon may take: it starts a QEMU, which may take a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &Invite) -> Result<ExitStatus, Exit> {
    let question = match &args.withdraw {
        Some(name) => Question::Withdraw(name.clone()),
        // The command line requires one.
        None => Question::Invite(
            Request::from_options(args, DEFAULT_WAIT)
                .ok_or_else(|| failed("--template, --connect or --qmp is missing"))?,
        ),
    };
    // Before a guest is awaited.
    create_result(args)?;
    let socket = request::socket(&absolute(&args.journals.path()));
    let answer = connect_unix(&socket).and_then(|stream| {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        request::ask(&stream, &question)?;
        request::read(&stream)
    });
    match answer {
        Ok(Reply::Invited { name, invitation }) => {
            streams::notice(&format!(
                "guest {name}: the invitation is a secret, and valid for one migration: 'hikkoshi \
                 migrate --to -' reads it from standard input"
            ));
            if !args.has_json_on_stdout() {
                streams::to_stdout(&format!("{invitation}\n"));
            }
            let invited = json!({ "name": name, "invitation": invitation });
            write(args, &invited).map_err(|exit| {
                exit.with(format!(
                    "the guest is awaited: 'hikkoshi invite --withdraw {name}' ends that"
                ))
            })
        }
        Ok(Reply::Withdrawn) => {
            streams::notice("the invitation was withdrawn");
            write(args, &json!({ "withdrawn": args.withdraw }))
        }
        // The command line is good. It may be tried again.
        Ok(Reply::Refused(refusal)) => {
            let reason = match refusal.kind {
                RefusalKind::NameTaken => Reason::NameTaken,
                RefusalKind::Full => Reason::Full,
                RefusalKind::Other => Reason::Daemon,
            };
            Err(Exit::new(ExitStatus::Failed, reason, refusal.why))
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    " (does 'hikkoshi daemon' run, with the same --journal?)"
                }
                io::ErrorKind::PermissionDenied => " (run as the user who runs the daemon)",
                io::ErrorKind::WouldBlock => " (it has not answered in time: is it stopped?)",
                _ => "",
            };
            Err(failed(&format!(
                "asking the daemon at {}{hint}: {}",
                socket.display(),
                Report::new(&error)
            )))
        }
    }
}

/// Makes the file for the result, if one is named and not there. An invitation is a secret: a new
/// file can be read by its owner only.
fn create_result(args: &Invite) -> Result<(), Exit> {
    let Some(path) = args.json.as_deref().filter(|_| !args.has_json_on_stdout()) else {
        return Ok(());
    };
    let opened = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path);
    opened
        .map(drop)
        .map_err(|error| not_written(path, &error).with("nothing was asked for"))
}

/// Writes the result, if there is a file for it.
fn write(args: &Invite, result: &Value) -> Result<ExitStatus, Exit> {
    if let Some(path) = &args.json {
        result_file::write_object(result, path).map_err(|error| not_written(path, &error))?;
    }
    Ok(ExitStatus::Done)
}

fn not_written(path: &Path, error: &io::Error) -> Exit {
    let error = Report::new(error);
    let what = format!("writing the result to {}: {error}", path.display());
    Exit::new(ExitStatus::Usage, Reason::System, what)
}

fn failed(why: &str) -> Exit {
    Exit::new(ExitStatus::Usage, Reason::Daemon, why)
}
