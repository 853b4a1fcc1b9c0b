//! `hikkoshi`: moves a running virtual machine to another host.
//!
//! `receive` waits at the destination, `migrate` moves a guest to it, `demo`
//! shows both with a test guest. What they print is for a person; `--json`
//! writes the account for a program.

mod args;
mod demo;
mod exit;
mod give_up;
mod guard;
mod journal;
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

use args::{Args, Command};
use exit::{End, Status};

fn main() -> std::process::ExitCode {
    // Clap itself ends with status 2 on bad usage.
    let args = Args::of_this_run();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("HIKKOSHI_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .with_target(false)
        // Its complaint about a closed standard error would be a panic.
        .log_internal_errors(false)
        .init();
    let json = args.command.tells_programs();
    let ended = match args.command {
        Command::Receive(args) => receive::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Guard(args) => guard::run(&args),
    };
    let end = match &ended {
        Ok(Status::ShutDown) => End::SHUT_DOWN,
        Ok(_) => End::MOVED,
        Err(exit) => End::from(exit),
    };
    match &ended {
        Ok(Status::Moved | Status::ShutDown) | Err(_) if json => progress::end(&end),
        Ok(_) => {}
        Err(exit) => exit.say(),
    }
    ended.unwrap_or_else(|exit| exit.status()).into()
}
