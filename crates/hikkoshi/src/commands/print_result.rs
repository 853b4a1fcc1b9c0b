//! The result of a successful migration: printed, and written to the file of `--json`.

use std::io;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_account::{Account, Auto, SourceQuit, Statistics};
use hikkoshi_status::Migration;
use serde::Serialize;

use crate::args::OutputOptions;
use crate::output::colours::Colour;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams::{self, Lines};
use crate::output::{report, result_file};
use crate::status::RunPublisher;

/// Prints the result for a guest that an earlier run has moved: there are no statistics.
pub(super) fn print_moved(
    output: &OutputOptions,
    what: &str,
    quit: Option<&SourceQuit>,
) -> Result<ExitStatus, Exit> {
    if !output.has_json_on_stdout() {
        streams::to_stdout(&format!("{what}\n"));
    }
    if let Some(path) = &output.json {
        written(result_file::write_moved(what, quit, path), what, path)?;
    }
    Ok(ExitStatus::Moved)
}

/// What only the source's command reports.
#[derive(Debug, Default)]
pub(super) struct SourceExtras {
    /// Whether the source's QEMU was ended, if it was to be.
    pub(super) quit: Option<SourceQuit>,
    /// What `--mode auto` has chosen.
    pub(super) auto: Option<Auto>,
}

/// Prints and writes the statistics; `what` says where the guest is, and `next` what is to be done.
pub(super) fn print_result(
    account: &Account,
    publisher: &RunPublisher,
    what: &str,
    next: Option<&str>,
    extras: SourceExtras,
) -> Result<(), Exit> {
    let output = publisher.options();
    publisher.end_display();
    let migration = publisher.migration();
    let result = Statistics {
        account: account.clone(),
        engine: migration.as_ref().map(Migration::engine_info),
        quit: extras.quit,
        auto: extras.auto,
    };
    publisher.set_account(result.clone());
    if !output.has_json_on_stdout() {
        let guest = migration.as_ref().map_or("", |migration| &migration.guest);
        let mut lines = vec![
            Lines::new(Colour::Good, named(guest, what)),
            Lines::new(Colour::Plain, report::summary(account)),
        ];
        lines.extend(next.map(|next| Lines::new(Colour::Next, next)));
        if output.result.verbose {
            lines.push(Lines::new(Colour::Plain, report::details(account)));
        }
        streams::lines_to_stdout(&lines);
    }
    if let Some(path) = &output.json {
        written(result_file::write_object(&result, path), what, path)?;
    }
    Ok(())
}

/// What happened to a guest, with its name.
fn named(guest: &str, what: &str) -> String {
    match guest {
        "" => what.to_owned(),
        guest => format!("{guest}: {what}"),
    }
}

/// The migration has succeeded, and the exit status says so.
fn written(result: io::Result<()>, what: &str, path: &Path) -> Result<(), Exit> {
    result.map_err(|error| {
        let path = path.display();
        let error = Report::new(&error);
        let what = format!("{what}, but writing the result to {path}: {error}");
        Exit::new(ExitStatus::Moved, Reason::AccountNotWritten, what)
    })
}

/// Writes the result of a command that moves nothing, for programs.
pub(crate) fn write_result(written: &impl Serialize, path: &Path) -> Result<(), Exit> {
    result_file::write_object(written, path).map_err(|error| {
        let path = path.display();
        let what = format!("writing the result to {path}: {}", Report::new(&error));
        Exit::new(ExitStatus::Usage, Reason::AccountNotWritten, what)
    })
}
