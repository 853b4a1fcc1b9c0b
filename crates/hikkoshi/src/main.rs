//! `hikkoshi`: moves a running virtual machine to another host.
//!
//! `receive` waits at the destination, `migrate` moves a guest to it, `demo`
//! shows both with a test guest. What they print is for a person; `--json` and
//! `--progress json` are for programs.

mod args;
mod commands;
mod journal;
mod output;
mod security;

use args::requested_output::RequestedOutput;
use args::{Args, Command};
use clap::Parser;
use commands::{demo, guard, migrate, receive};
use output::exit::{End, Exit, Status};
use output::reason::Reason;
use output::{log, report, streams};

fn main() -> std::process::ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return misused(&error).into(),
    };
    if args.command.writes_json() {
        streams::in_json();
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
                && args.command.is_migration()
                && streams::is_json()
            {
                streams::end(&end);
            }
            status.into()
        }
        Err(exit) => {
            if let Some(file) = args.command.json_file() {
                report::write_failure(&exit, file);
            }
            streams::failure(&exit);
            exit.status().into()
        }
    }
}

/// The command line cannot be used, or asks for help only.
fn misused(error: &clap::Error) -> Status {
    let requested = RequestedOutput::find(std::env::args_os());
    if requested.json_progress {
        streams::in_json();
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
    if let Some(file) = &requested.json_file {
        report::write_failure(&exit, file);
    }
    if !requested.json_progress {
        // Clap itself ends with status 2, and knows what a terminal shows.
        error.exit();
    }
    streams::failure(&exit);
    Status::Usage
}
