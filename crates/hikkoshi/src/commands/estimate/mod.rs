//! `hikkoshi estimate`: what a migration would be like in each mode. Nothing moves.

mod compressed_sample;
mod measure;

use measure::NO_RATE;
pub(crate) use measure::{NotEstimated, Request, estimate};

use hikkoshi_qemu::DiskSelection;

use crate::args::Estimate;
use crate::commands::check::CheckedGuestOf;
use crate::commands::print_result::write_result;
use crate::commands::signals;
use crate::output::estimate::{EstimateReport, readable};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security;

pub(crate) fn run(args: &Estimate) -> Result<ExitStatus, Exit> {
    // Before the dirty log is started, so that it is always closed.
    let cancel = signals::cancel_on_signals()?;
    if args.to.is_none() && args.address.is_none() && args.engine_options().bandwidth.is_none() {
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, NO_RATE));
    }
    let remote = match (&args.to, &args.address) {
        (None, None) => None,
        (to, address) => Some(security::remote(
            to.as_ref(),
            address.as_ref(),
            &args.security,
        )?),
    };
    streams::notice(&format!(
        "measuring the guest for {} s{}",
        args.seconds.as_secs_f64(),
        if remote.is_some() {
            ", then the line to the destination for about 1 s"
        } else {
            ""
        }
    ));
    let request = Request {
        guest: CheckedGuestOf {
            domain: &args.domain,
            qmp: args.qmp.as_deref(),
            allow: &args.allow,
            // Which of them are copied is not part of the question.
            disks: DiskSelection {
                shared: Some(Vec::new()),
                ..DiskSelection::default()
            },
        },
        domain: &args.domain,
        qmp: args.qmp.as_deref(),
        remote: remote.as_ref(),
        allow_cpu_mismatch: args.allow_cpu_mismatch,
        round_trip: args.round_trip,
        options: args.engine_options(),
        seconds: args.seconds,
        max_cost: args.max_cost,
        probe_limit: args.probe_limit,
    };
    let estimated = estimate(&request, &cancel)?;
    let written = EstimateReport::new(&estimated);
    if args.json.as_deref() != Some("-".as_ref()) {
        streams::to_stdout(&readable(&written));
    }
    if let Some(path) = &args.json {
        write_result(&written, path)?;
    }
    Ok(ExitStatus::Done)
}
