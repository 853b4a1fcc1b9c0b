//! `hikkoshi invite`: asks the `receive --daemon` of this host for an invitation.

use std::io;
use std::os::unix::net::UnixStream;

use error_reporter::Report;

use crate::args::{DEFAULT_WAIT, Invite};
use crate::commands::receive::daemon::request::{self, Machine, Reply, Request};
use crate::journal::absolute;
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;
use crate::output::streams;

pub(crate) fn run(args: &Invite) -> Result<Status, Exit> {
    let machine = match (&args.template, &args.connect, &args.qmp) {
        (Some(template), ..) => Machine::Template(absolute(template)),
        (None, Some(uri), _) => Machine::Connect(uri.clone()),
        (None, None, Some(qmp)) => Machine::Qmp(absolute(qmp)),
        // The command line requires one.
        (None, None, None) => return Err(failed("--template, --connect or --qmp is missing")),
    };
    let request = Request {
        name: args.name.clone(),
        machine,
        wait_seconds: args.wait_for.unwrap_or(DEFAULT_WAIT).as_secs(),
        options: args.options.clone(),
    };
    let socket = request::socket(&absolute(&args.journals.path()));
    let answer = UnixStream::connect(&socket).and_then(|stream| {
        request::write(&stream, &request)?;
        request::read(&stream)
    });
    match answer {
        Ok(Reply::Invited { name, invitation }) => {
            streams::notice(&format!(
                "guest {name}: the invitation is a secret, and valid for one migration: 'hikkoshi \
                 migrate --to -' reads it from standard input"
            ));
            streams::to_stdout(&format!("{invitation}\n"));
            Ok(Status::Moved)
        }
        Ok(Reply::Refused(why)) => Err(failed(&why)),
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    " (does 'hikkoshi receive --daemon' run, with the same --journal?)"
                }
                io::ErrorKind::PermissionDenied => " (run as the user who runs the daemon)",
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

fn failed(why: &str) -> Exit {
    Exit::new(Status::Usage, Reason::Daemon, why)
}
