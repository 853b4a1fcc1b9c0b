//! `hikkoshi`: moves a running virtual machine to another host.
//!
//! `receive` waits at the destination, and `migrate` moves a guest to it; `daemon` is a destination
//! for many guests, each by an invitation (`invite`) or a certificate. `check`, `dirty-rate` and
//! `estimate` examine a guest that stays where it is. `evacuate` plans the moves of many guests and
//! executes them. `status` shows the migrations of this host, and `set`, `switch` and `cancel`
//! control those that run. `dashboard` shows them on a page, `report` makes a page of those that
//! have ended, and `history` lists these. Their output is for people; `--json` and
//! `--progress json` are for programs.
//!
//! Commands that other programs start are hidden: `guard` (by `migrate`), `receiver` (by `daemon`),
//! `host-status` (by `daemon`, and by `status --host` on another host), `ssh-session` (by
//! `migrate --ssh`, at the destination) and `ocf-agent` (by Pacemaker).
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | `commands` | the commands |
//! | `security` | how the links are protected: invitations, certificates |
//! | `status` | a migration while it runs: shown, recorded, served on a socket |
//! | `machines` | the QEMUs that are started for guests from a template |
//! | `journal` | what is stored for `--resume` |
//! | `output` | standard output and standard error, exit status, log |
//! | `args` | the command line, and the options that it resolves to |
//!
//! # Layers
//!
//! A module uses only those in lines below its own:
//!
//! ```text
//! commands
//! security  status  machines
//! journal  output
//! args
//! ```
//!
//! # An option's way
//!
//! It is declared in `args`, by the struct of its command or group. Options that `--resume` needs
//! are resolved there, too: given, or else from the journal, or else the default
//! (`args/resolved.rs`). The journal stores the resolved ones as they are.
//!
//! # A migration's way
//!
//! A side attaches to its QEMU in a way of its own: a new migration checks the guest, and a resumed
//! one finds it by its journal. From there both are the same type, whose steps have an order:
//! `commands/migrate/run.rs` and `commands/receive/run.rs`.

mod args;
mod commands;
mod journal;
mod machines;
mod output;
mod security;
mod status;

use args::Command;
use args::requested_output::RequestedOutput;
use commands::resume_command::before_search;
use commands::{
    check, control, daemon, dashboard, dirty_rate, estimate, evacuate, generate, guard, history,
    host_status, invite, migrate, ocf_agent, receive, receiver, report as report_command,
    ssh_session, status as status_command,
};
use output::exit::{End, Exit, ExitStatus};
use output::reason::Reason;
use output::{line_format, log, result_file, stderr, streams};

fn main() -> std::process::ExitCode {
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return invalid_command_line(&error).into(),
    };
    if args.command.writes_json() {
        line_format::use_json();
    }
    // The dashboard, which has no part in a migration, gives up its rights while it has one thread.
    let is_dashboard = matches!(args.command, Command::Dashboard(_));
    let _writer = (!is_dashboard).then(stderr::start);
    let started = log::start().map_err(|exit| match args.command.recovery() {
        Some(recovery) => before_search(recovery)(exit),
        None => exit,
    });
    let ended = started.and_then(|()| match &args.command {
        Command::Receive(args) => receive::run(args),
        Command::Migrate(args) => migrate::run(args),
        Command::Invite(args) => invite::run(args),
        Command::Status(args) => status_command::run(args),
        Command::Set(args) => control::set(args),
        Command::Switch(args) => control::switch(args),
        Command::Cancel(args) => control::cancel(args),
        Command::Check(args) => check::run(args),
        Command::DirtyRate(args) => dirty_rate::run(args),
        Command::Report(args) => report_command::run(args),
        Command::History(args) => history::run(args),
        Command::Dashboard(args) => dashboard::run(args),
        Command::Estimate(args) => estimate::run(args),
        Command::Evacuate(args) => evacuate::run(args),
        Command::Daemon(args) => daemon::run(args),
        Command::Receiver(args) => receiver::run(args),
        Command::SshSession(args) => ssh_session::run(args),
        Command::Guard(args) => guard::run(args),
        Command::HostStatus(args) => host_status::run(args),
        Command::Generate(args) => generate::run(args),
        Command::OcfAgent(args) => Ok(ocf_agent::run(args)),
    });
    match ended {
        Ok(status) => {
            let end = match status {
                ExitStatus::Moved => Some(End::MOVED),
                ExitStatus::ShutDown => Some(End::SHUT_DOWN),
                _ => None,
            };
            if let Some(end) = end
                && args.command.recovery().is_some()
                && line_format::is_json()
            {
                streams::end(&end);
            }
            status.into()
        }
        Err(exit) => {
            if let Some(file) = args.command.json_file() {
                result_file::write_failure(&exit, file);
            }
            streams::failure(&exit);
            exit.status().into()
        }
    }
}

/// Reports that the command line is invalid, or prints the help.
fn invalid_command_line(error: &clap::Error) -> ExitStatus {
    let requested = RequestedOutput::find(std::env::args_os());
    if requested.json_progress {
        line_format::use_json();
    }
    let exit = Exit::new(
        ExitStatus::Usage,
        Reason::Usage,
        error.render().to_string().trim(),
    );
    if !error.use_stderr() {
        // Help or the version was requested.
        error.exit();
    }
    if let Some(file) = &requested.json_file {
        result_file::write_failure(&exit, file);
    }
    if !requested.json_progress {
        // Clap exits with status 2, and knows what the terminal supports.
        error.exit();
    }
    streams::failure(&exit);
    ExitStatus::Usage
}
