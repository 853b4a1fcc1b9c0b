//! The status of a host: this one's, as `hikkoshi host-status` prints it for a daemon or by ssh,
//! and another one's.
//!
//! ```text
//! status --host ──▶ daemon (a certificate) ──▶ host-status   a process of its own: it looks at
//!               ──▶ ssh ─────────────────────▶ host-status   engines, which may be silent
//! ```

mod ask;
mod guests;

use std::path::Path;

use error_reporter::Report;
use hikkoshi_status::{
    HOST_VERSION, HostFacts, HostGuest, HostStatus, MAX_HOST_ENTRIES, StatusFolder,
};
use serde_json::Value;

use crate::args::{HostQuestion, HostStatusArgs};
use crate::commands::status::{SeenMigrations, unfinished};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::status::json_line;
use crate::output::streams;

pub(crate) use ask::{by_certificate, by_command};

/// The command line of another process that prints the status of its host, without the program.
pub(crate) fn words(question: HostQuestion) -> [&'static str; 3] {
    ["host-status", "--migrations", question.name()]
}

pub(crate) fn run(args: &HostStatusArgs) -> Result<ExitStatus, Exit> {
    let status = read(&args.journals.path(), args.migrations)?;
    // All keys are strings, so that this cannot fail.
    let mut text = serde_json::to_string(&status).unwrap_or_default();
    text.push('\n');
    streams::to_stdout(&text);
    Ok(ExitStatus::Done)
}

/// The status of this host.
fn read(run: &Path, question: HostQuestion) -> Result<HostStatus, Exit> {
    let mut host = HostFacts::read(env!("HIKKOSHI_VERSION")).map_err(|error| {
        let what = format!("reading what this host has: {}", Report::new(&error));
        Exit::new(ExitStatus::Failed, Reason::System, what)
    })?;
    let mut problems = Vec::new();
    let mut guests = guests::guests(run, &mut problems);
    let promised = guests.iter().map(HostGuest::promised_bytes);
    host.memory.promised_bytes = promised.fold(0, u64::saturating_add);
    let other_guests = guests.len().saturating_sub(MAX_HOST_ENTRIES);
    guests.truncate(MAX_HOST_ENTRIES);
    let migrations = match question {
        HostQuestion::Host => Vec::new(),
        HostQuestion::Running | HostQuestion::All => {
            migrations(run, question == HostQuestion::All, &mut problems)?
        }
    };
    Ok(HostStatus {
        version: HOST_VERSION,
        host,
        guests,
        other_guests,
        limits: None,
        migrations,
        problems,
    })
}

/// The migrations of this host, the newest first, each as a line of `hikkoshi status --json`.
fn migrations(run: &Path, all: bool, problems: &mut Vec<String>) -> Result<Vec<Value>, Exit> {
    let unfinished = unfinished::find(run);
    problems.extend(unfinished.unreadable.into_values());
    let mut seen = SeenMigrations::new(StatusFolder::in_run_folder(run));
    let list = seen.look_with(all, unfinished.migrations)?;
    let lines = list.iter().map(json_line);
    let values = lines.filter_map(|line| serde_json::from_str(&line).ok());
    Ok(values.take(MAX_HOST_ENTRIES).collect())
}
