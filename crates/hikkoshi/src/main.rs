//! `hikkoshi`: moves a running virtual machine to another host.
//!
//! `receive` waits at the destination, `migrate` moves a guest to it, `demo`
//! shows both with a test guest. What they print is for a person; `--json` and
//! `--progress json` are for programs.

mod args;
mod asked;
mod bytes;
mod demo;
mod durations;
mod exit;
mod give_up;
mod guard;
mod inviting;
mod journal;
mod log;
mod migrate;
mod progress;
mod reason;
mod receive;
mod report;
mod resume;
mod say;
mod security;
mod signals;
mod this_program;
mod trust;
mod waiting;

use args::{Args, Command};
use asked::Asked;
use exit::{End, Exit, Status};
use reason::Reason;

fn main() -> std::process::ExitCode {
    let args = match Args::of_this_run() {
        Ok(args) => args,
        Err(error) => return misused(&error).into(),
    };
    if args.command.in_json() {
        say::in_json();
    }
    let ended = log::start().and_then(|()| match &args.command {
        Command::Receive(args) => receive::run(args),
        Command::Migrate(args) => migrate::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Guard(args) => guard::run(args),
    });
    match ended {
        Ok(status) => {
            let end = match status {
                Status::Moved => Some(End::MOVED),
                Status::ShutDown => Some(End::SHUT_DOWN),
                _ => None,
            };
            if let Some(end) = end
                && args.command.moves()
                && say::is_json()
            {
                say::end(&end);
            }
            status.into()
        }
        Err(exit) => {
            if let Some(file) = args.command.account() {
                report::write_failure(&exit, file);
            }
            say::failure(&exit);
            exit.status().into()
        }
    }
}

/// The command line cannot be used, or asks for help only.
fn misused(error: &clap::Error) -> Status {
    let asked = Asked::by(std::env::args_os());
    if asked.progress {
        say::in_json();
    }
    let exit = Exit::new(
        Status::Usage,
        Reason::Usage,
        error.render().to_string().trim(),
    );
    if !error.use_stderr() {
        // Help is what was asked for.
        error.exit();
    }
    if let Some(file) = &asked.file {
        report::write_failure(&exit, file);
    }
    if !asked.progress {
        // Clap itself ends with status 2, and knows what a terminal shows.
        error.exit();
    }
    say::failure(&exit);
    Status::Usage
}
