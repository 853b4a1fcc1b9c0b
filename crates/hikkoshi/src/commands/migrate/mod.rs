//! `hikkoshi migrate`: the source of a migration.

mod auto;
mod journal;
mod outcome;
mod resume;
mod run;
mod ssh;
mod start;
mod unfinished;

use hikkoshi_account::{Limits, Side};

use self::start::{destination, start};
use crate::args::{Migrate, NamedGuest};
use crate::commands::resume_command::before_search;
use crate::commands::{give_up, signals};
use crate::output::exit::{Exit, ExitStatus};
use crate::status::{RunInfo, RunPublisher};

pub(crate) fn run(args: &Migrate) -> Result<ExitStatus, Exit> {
    let cancel = signals::cancel_on_signals().map_err(before_search(&args.recovery))?;
    let publisher = RunPublisher::new(
        &args.output,
        &args.recovery.journals.path(),
        RunInfo {
            side: Side::Source,
            guest: NamedGuest::source(args).map_or_else(String::new, |guest| guest.to_string()),
            qmp: None,
            limits: Limits {
                max_downtime_ms: args.convergence.max_downtime,
                bandwidth: args.bandwidth.and_then(|given| given.limit),
            },
            working_set: None,
        },
    );
    let result = match (&args.recovery.resume, &args.ssh.ssh) {
        (None, Some(host)) => ssh::start(args, host, cancel, &publisher),
        (None, None) => destination(args).and_then(|to| start(args, &to, cancel, &publisher)),
        (Some(file), _) if args.give_up.give_up => give_up::source(args, file.as_deref(), cancel),
        (Some(file), Some(host)) => ssh::resume(args, file.as_deref(), host, cancel, &publisher),
        (Some(file), None) => resume::resume(args, file.as_deref(), cancel, &publisher),
    };
    publisher.end(&result);
    result
}
