//! `hikkoshi dirty-rate`: how fast a guest writes to its memory. The guest stays where it is.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_dirty_rate::{KVM_FAULT_COST, Options, measure};
use hikkoshi_libvirt::Domain;
use hikkoshi_qemu::{MeasureError, QemuMeasurement};

use crate::args::{DirtyRate, DomainArgs};
use crate::commands::print_result::write_result;
use crate::commands::signals;
use crate::output::dirty_rate::{DirtyRateReport, readable};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;

const UNCHANGED: &str = "the guest is as before";

pub(crate) fn run(args: &DirtyRate) -> Result<ExitStatus, Exit> {
    let interval = Duration::from_millis(args.interval.into());
    let options = Options::new(args.seconds, interval)
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::Usage, &error))?
        .max_cost(args.max_cost)
        // Another sample in each run.
        .seed(RandomState::new().build_hasher().finish());
    // Before the log is started, so that it is always closed.
    let cancel = signals::cancel_on_signals()?;
    let guest = attach(args.qmp.as_deref(), &args.domain, &args.block)?;
    let options = match guest.uses_kvm() {
        true => options.fault_cost(KVM_FAULT_COST),
        false => options,
    };
    streams::notice(&format!(
        "measuring for {} s; Ctrl-C ends it earlier",
        args.seconds.as_secs_f64()
    ));
    let result = measure(guest.log(), guest.layout(), &options, &cancel);
    let (pid, layout) = (guest.pid(), guest.layout().clone());
    let notes = guest.notes().to_vec();
    let stopped = guest.stop();
    let measurement = result.map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::DirtyLog, &error)
            .with("measuring has ended, and the dirty log was closed")
    })?;
    if let Err(error) = stopped {
        streams::notice(&Report::new(&error).to_string());
    }
    if measurement.intervals == 0 {
        let what = "measuring was cancelled before the first interval had ended";
        return Err(Exit::new(ExitStatus::AtSource, Reason::Cancelled, what).with(UNCHANGED));
    }
    let written = DirtyRateReport::new(pid, &layout, &measurement, args.map, &notes);
    print(args, &written)?;
    Ok(ExitStatus::Done)
}

/// Attaches to the guest that `domain` or `qmp` names, to measure these blocks, or all.
pub(crate) fn attach(
    qmp: Option<&Path>,
    domain: &DomainArgs,
    blocks: &[String],
) -> Result<QemuMeasurement, Exit> {
    let attached = match (&domain.domain, qmp) {
        (Some(name), _) => {
            let domain = Domain::open(&domain.connect, name).map_err(|e| not_found(&e))?;
            let monitor = domain.monitor().map_err(|error| not_found(&error))?;
            QemuMeasurement::attach_by(monitor, blocks)
        }
        (None, Some(qmp)) => QemuMeasurement::attach(qmp, blocks),
        (None, None) => {
            let missing = "--qmp PATH or --domain NAME is missing";
            return Err(Exit::new(ExitStatus::Usage, Reason::Usage, missing));
        }
    };
    attached.map_err(|error| match &error {
        MeasureError::NoBlock { .. } => {
            Exit::caused(ExitStatus::Usage, Reason::Usage, &error).with(UNCHANGED)
        }
        MeasureError::Kernel(_) => {
            Exit::caused(ExitStatus::AtSource, Reason::Unsupported, &error).with(UNCHANGED)
        }
        _ => not_found(&error),
    })
}

fn print(args: &DirtyRate, written: &DirtyRateReport<'_>) -> Result<(), Exit> {
    if args.json.as_deref() != Some("-".as_ref()) {
        streams::to_stdout(&readable(written));
    }
    args.json
        .as_ref()
        .map_or(Ok(()), |path| write_result(written, path))
}

fn not_found(error: &dyn Error) -> Exit {
    Exit::caused(ExitStatus::AtSource, Reason::NotAttached, error).with(UNCHANGED)
}
