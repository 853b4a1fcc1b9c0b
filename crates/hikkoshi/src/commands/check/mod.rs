//! `hikkoshi check`: whether a guest can be moved, and how. Changes nothing.

mod unfinished;

use std::path::Path;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Comparison};
use hikkoshi_link::Remote;
use hikkoshi_qemu::{AttachError, DestinationLine, OfferedMachine};

use crate::args::Check;
use crate::output::check::{CheckReport, readable};
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;
use crate::output::{report, streams};
use crate::security;

const UNCHANGED: &str = "nothing was changed";

pub(crate) fn run(args: &Check) -> Result<Status, Exit> {
    if args.print_destination {
        let line = DestinationLine::of(&args.qmp).map_err(|error| not_found(&error))?;
        streams::to_stdout(&line.for_shell());
        return Ok(Status::Moved);
    }
    let remote = args.to.as_ref().map(security::invited).transpose()?;
    let checked =
        hikkoshi_qemu::check(&args.qmp, &args.devices.allowed()).map_err(|e| not_found(&e))?;
    let destination = match (&remote, &checked.offer) {
        (None, _) => None,
        (Some(remote), Some(offer)) => Some(ask(remote, offer, args.allow_cpu_mismatch)),
        (Some(_), None) => Some(Err(
            "the destination was not asked: the guest's memory cannot be described".to_owned(),
        )),
    };
    let unfinished = unfinished::obstacles(args, checked.guest.pid);
    let written = CheckReport::new(&checked, unfinished, destination.as_ref());
    if args.json.as_deref() != Some("-".as_ref()) {
        streams::to_stdout(&readable(&written));
    }
    if let Some(path) = &args.json {
        write(&written, path)?;
    }
    Ok(if written.can_be_moved() {
        Status::Moved
    } else {
        Status::AtSource
    })
}

fn ask(
    remote: &Remote,
    offer: &OfferedMachine,
    allow_cpu_mismatch: bool,
) -> Result<Comparison, String> {
    hikkoshi_engine::compare(
        remote,
        &offer.description,
        offer.processors.clone(),
        allow_cpu_mismatch,
        offer.machine.clone(),
        &CancelFlag::new(),
    )
    .map_err(|error| Report::new(&error).to_string())
}

fn write(written: &CheckReport<'_>, path: &Path) -> Result<(), Exit> {
    report::write_object(written, path).map_err(|error| {
        let path = path.display();
        let what = format!("writing the result to {path}: {}", Report::new(&error));
        Exit::new(Status::Usage, Reason::AccountNotWritten, what)
    })
}

fn not_found(error: &AttachError) -> Exit {
    Exit::caused(Status::AtSource, Reason::NotAttached, error).with(UNCHANGED)
}
