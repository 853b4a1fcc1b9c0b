//! The command line: one file a command, and one for each group of options that several
//! commands have.
//!
//! To add an option: put a field with a `help_heading` into the struct of its command or group, and
//! into its `engine_options`. One that `--resume` has to remember also goes into `resolved.rs`,
//! which is what the journal stores. Options that only benchmarks and tests need are hidden.

mod advertised_address;
mod allow_device;
mod bandwidth;
mod bench_options;
mod bytes;
mod check;
mod compress;
mod control;
mod convergence;
mod daemon;
mod dashboard;
mod destination_address;
mod dirty_rate;
mod disks;
mod domain;
mod durations;
mod estimate;
mod evacuate;
mod generate;
mod guard;
mod guest_name;
mod habits;
mod headings;
#[cfg(test)]
mod help_tests;
mod history;
mod host_status;
mod hosts;
mod incoming_domain;
mod incoming_guest;
mod invite;
mod journal_folder;
mod latency_options;
mod links;
mod migrate;
mod mistakes;
mod mode;
mod named_guest;
mod ocf_agent;
mod output_options;
mod read_ahead;
mod receive;
mod receiver;
mod recovery;
#[cfg(test)]
mod released_tests;
mod report;
pub(crate) mod requested_output;
mod resolved;
mod running;
mod security;
mod ssh;
mod ssh_session;
mod status;
mod stored_value;

use std::path::Path;

use clap::{Parser, Subcommand};

pub(crate) use allow_device::AllowSource;
pub(crate) use bandwidth::Bandwidth;
pub(crate) use check::Check;
pub(crate) use control::{Cancel, SetLimits, Switch};
pub(crate) use convergence::WhenStalled;
pub(crate) use daemon::Daemon;
pub(crate) use dashboard::Dashboard;
pub(crate) use dirty_rate::DirtyRate;
pub(crate) use domain::{DomainArgs, DomainOptions};
pub(crate) use durations::MAX_DOWNTIME_MS;
pub(crate) use estimate::Estimate;
pub(crate) use evacuate::{Evacuate, EvacuatedGuest};
pub(crate) use generate::Generate;
pub(crate) use guard::Guard;
pub(crate) use guest_name::{DEFAULT as DEFAULT_GUEST_NAME, parse as parse_guest_name};
pub(crate) use history::HistoryArgs;
pub(crate) use host_status::{HostQuestion, HostStatusArgs};
pub(crate) use hosts::{HostArgs, daemon_address};
pub(crate) use invite::{DEFAULT_WAIT, Invite};
pub(crate) use journal_folder::run_folder;
#[cfg(test)]
pub(crate) use links::LinkOptions;
pub(crate) use migrate::Migrate;
pub(crate) use mistakes::parse;
pub(crate) use mode::RequestedMode;
pub(crate) use named_guest::NamedGuest;
pub(crate) use ocf_agent::OcfAgent;
pub(crate) use output_options::{OutputOptions, ProgressFormat};
pub(crate) use receive::{Receive, StartedBy};
pub(crate) use receiver::Receiver;
pub(crate) use recovery::{GiveUpOptions, RecoveryOptions};
pub(crate) use report::Report;
pub(crate) use resolved::{MigrateOptions, ReceiveOptions};
pub(crate) use running::RunningMigration;
pub(crate) use security::{CertificateFiles, InvitationArg, Security};
pub(crate) use ssh::Words;
pub(crate) use ssh_session::SshSession;
pub(crate) use status::MigrationStatus;

/// What the exit status says, and what is set in the environment.
pub(crate) const AFTER_HELP: &str = "\
Exit status:
  0  The guest runs at the destination, and all of its pages are there
  1  The guest is still at the source
  2  Nothing was tried: the command line or the environment is invalid, or something that is
     needed to begin is not there (an address to listen on, a QEMU that waits for a guest,
     for --resume a journal)
  3  The guest was handed over, or may have been, and the migration is not finished.
     No data is lost: --resume continues it. Also if it cannot now, or if --give-up was not
     confirmed
  4  The guest is lost: during post-copy, the destination's QEMU ended, or the source's QEMU
     ended while it held pages in private memory

Exit status of daemon and of invite:
  0  The daemon was ended by Ctrl-C or SIGTERM; the invitation was printed, or withdrawn
  1  (invite) The daemon refuses. The message says why
  2  Otherwise

Exit status of check:
  0  The guest can be moved
  1  It cannot, or QEMU cannot be examined
  2  The command line or the environment is invalid, or the file of --json cannot be written

Exit status of status, set, switch and cancel:
  0  It was shown, or done
  1  The migration refuses to be changed: it has ended, it is too late, or it would have no
     effect. The message says why. status --host: a host has not answered; its row says why
  2  The command line or the environment is invalid, or there is no such migration, or
     several

Exit status of dirty-rate:
  0  The guest was measured
  1  It cannot be measured, or not any more
  2  The command line or the environment is invalid, or the file of --json cannot be written

Exit status of history:
  0  What was recorded was listed
  2  The command line is invalid, or the status folder cannot be used

Exit status of report:
  0  The page was written
  2  The command line is invalid, or a file cannot be read or written

Exit status of dashboard:
  0  It was ended by Ctrl-C or SIGTERM
  2  The command line or the environment is invalid, the address cannot be listened on, the
     status folder cannot be used, or the process cannot give up its rights

Exit status of estimate:
  0  There is an estimate
  1  The guest cannot be measured, or the destination does not answer
  2  The command line or the environment is invalid, or the file of --json cannot be written

Exit status of evacuate:
  0  All guests have moved; with --plan: each one has a destination
  1  Some stay at this host and run here; with --plan: they have no destination
  2  Nothing was tried: the command line or the environment is invalid, no guest can be moved, or
     no destination answers
  3  Some were handed over, and their migrations are not finished. The same command again
     continues them
  4  A guest is lost

Environment:
  HIKKOSHI_LOG  What to log: off, error, warn (the default), info, debug or trace, for
                all crates or for one (hikkoshi_qemu=debug)
  NO_COLOR      If it is set, no colours are used";

/// Move a running virtual machine to another host
#[derive(Debug, Parser)]
#[command(version = env!("HIKKOSHI_VERSION"), max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Wait at the destination for a guest
    Receive(Box<Receive>),
    /// Receive any number of guests on one port, by invitations or certificates
    Daemon(Daemon),
    /// Ask the `hikkoshi daemon` of this host for an invitation
    Invite(Invite),
    /// Move a running guest to a destination
    Migrate(Box<Migrate>),
    /// Show the migrations of this host, or of others: how far and how fast they are
    Status(MigrationStatus),
    /// Change the limits of a migration that runs
    Set(SetLimits),
    /// End the pre-copy of a migration that runs now, and continue with post-copy
    Switch(Switch),
    /// Cancel a migration that runs; the guest continues at the source
    Cancel(Cancel),
    /// Check whether a guest can be moved, and how; changes nothing
    Check(Check),
    /// Measure how fast a guest writes to its memory, and to how much of it
    DirtyRate(DirtyRate),
    /// Make a page about one migration, or one that compares several
    Report(Report),
    /// List what was moved: when, from where to where, how long that took, and how it ended
    History(HistoryArgs),
    /// Show this host's migrations on a web page, and as metrics for Prometheus
    Dashboard(Dashboard),
    /// Predict for each mode what a migration would be like; nothing moves
    Estimate(Box<Estimate>),
    /// Move all guests of this host, or some, to other hosts by a plan
    Evacuate(Box<Evacuate>),
    /// Restore the guest if `migrate` is killed (started by `migrate`)
    #[command(hide = true)]
    Guard(Guard),
    /// Receive a guest (started by `daemon`)
    #[command(hide = true)]
    Receiver(Box<Receiver>),
    /// Receive a guest (started by `migrate --ssh` at the destination)
    #[command(hide = true)]
    SshSession(Box<SshSession>),
    /// Start, stop, monitor or move a guest of a cluster (called by Pacemaker)
    #[command(hide = true)]
    OcfAgent(OcfAgent),
    /// Print the status of this host as JSON (started by `daemon` and by `status --host`)
    #[command(hide = true)]
    HostStatus(HostStatusArgs),
    /// Write the manual pages and the completions of shells (for packages)
    #[command(hide = true)]
    Generate(Generate),
}

impl Command {
    /// The options of recovery, if this is one side of a migration.
    pub(crate) fn recovery(&self) -> Option<&RecoveryOptions> {
        match self {
            Self::Receive(receive) => Some(&receive.recovery),
            Self::Receiver(receiver) => Some(&receiver.recovery),
            Self::SshSession(session) => Some(&session.recovery),
            Self::Migrate(migrate) => Some(&migrate.recovery),
            _ => None,
        }
    }

    /// Whether standard error is for a program to read.
    pub(crate) fn writes_json(&self) -> bool {
        match self {
            Self::Receive(receive) => receive.output.progress == ProgressFormat::Json,
            Self::Migrate(migrate) => migrate.output.progress == ProgressFormat::Json,
            Self::Guard(guard) => guard.json,
            _ => false,
        }
    }

    /// The file given with `--json`.
    pub(crate) fn json_file(&self) -> Option<&Path> {
        match self {
            Self::Check(check) => check.json.as_deref(),
            Self::Invite(invite) => invite.json.as_deref(),
            Self::DirtyRate(rate) => rate.json.as_deref(),
            Self::Estimate(estimate) => estimate.json.as_deref(),
            Self::Evacuate(evacuate) => evacuate.json.as_deref(),
            Self::Receive(receive) => receive.output.json.as_deref(),
            Self::Receiver(receiver) => Some(&receiver.json),
            Self::Migrate(migrate) => migrate.output.json.as_deref(),
            _ => None,
        }
    }
}
