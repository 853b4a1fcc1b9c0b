//! `hikkoshi report`: a page about one migration, or one that compares several.

mod input;
mod statistics;

use std::collections::BTreeSet;

use error_reporter::Report as ErrorReport;
use hikkoshi_account::Side;
use hikkoshi_status::{Migration, Recording, StatusEntry, StatusEntryKind, StatusFolder};

use crate::args::Report;
use crate::commands::status::is_named;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::status::write_page;

pub(crate) fn run(args: &Report) -> Result<ExitStatus, Exit> {
    let folder = StatusFolder::in_run_folder(&args.journals.path());
    if args.evacuation {
        return of_evacuation(args, &folder);
    }
    let recordings = if args.files.is_empty() {
        last_migration(&folder, None)?
    } else {
        let mut recordings: Vec<Recording> = Vec::new();
        for file in &args.files {
            let read = match file.to_str() {
                Some(guest) if !file.exists() && !guest.contains('/') => {
                    last_migration(&folder, Some(guest))?
                }
                _ => input::read(file).map_err(|error| {
                    Exit::caused(ExitStatus::Usage, Reason::Usage, &error).with(
                        "a report is made of results of --json, of other reports (.html), of files \
                         of the status folder, and of migrations by the names of their guests",
                    )
                })?,
            };
            for recording in read {
                // A file may be named twice, or be in a report, too.
                if !recordings.contains(&recording) {
                    recordings.push(recording);
                }
            }
        }
        recordings
    };
    write(args, &hikkoshi_dashboard::report(&recordings))
}

fn write(args: &Report, page: &str) -> Result<ExitStatus, Exit> {
    write_page(&args.output, page).map_err(|error| {
        let path = args.output.display();
        let what = format!("writing the report to {path}: {}", ErrorReport::new(&error));
        Exit::new(ExitStatus::Usage, Reason::AccountNotWritten, what)
    })?;
    if args.output.as_os_str() != "-" {
        streams::to_stdout(&format!("the report is in {}\n", args.output.display()));
    }
    Ok(ExitStatus::Done)
}

/// A report of the evacuation of this host, with the recordings of its moves.
fn of_evacuation(args: &Report, folder: &StatusFolder) -> Result<ExitStatus, Exit> {
    let evacuation = folder
        .read_evacuation()
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::Usage, &error))?;
    let Some(evacuation) = evacuation else {
        let what = format!(
            "there was no evacuation of this host, as far as {} says",
            folder.evacuation().display()
        );
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what)
            .with("--journal names another run folder"));
    };
    let mut recordings = ended_recordings(folder)?;
    let is_move = |it: &Migration| {
        let mut guests = evacuation.guests.values();
        it.side == Side::Source
            && guests.any(|guest| {
                guest.pid == Some(it.pid) && guest.began_unix_ms <= Some(it.started_unix_ms)
            })
    };
    let moves = recordings.iter().map(|it| &it.migration);
    let ids: BTreeSet<String> = moves
        .filter(|it| is_move(it))
        .map(|it| it.id.clone())
        .collect();
    recordings.retain(|it| ids.contains(&it.migration.id));
    write(
        args,
        &hikkoshi_dashboard::evacuation_report(&evacuation, &recordings),
    )
}

/// All sides of the migration that ended last: of all, or of this guest.
fn last_migration(folder: &StatusFolder, guest: Option<&str>) -> Result<Vec<Recording>, Exit> {
    let mut recordings = ended_recordings(folder)?;
    let meant = |recording: &&Recording| {
        let migration = &recording.migration;
        guest.is_none_or(|guest| is_named(migration, &migration.entry_name(), guest))
    };
    let last = recordings.iter().find(meant);
    let Some(id) = last.map(|last| last.migration.id.clone()) else {
        let of = guest.map_or_else(String::new, |guest| format!(" of {guest:?}"));
        let what = format!(
            "no migration{of} has ended on this host, as far as {} says",
            folder.path().display()
        );
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what)
            .with("name files: results of --json, or reports"));
    };
    recordings.retain(|recording| recording.migration.id == id);
    Ok(recordings)
}

/// The recordings of migrations that have ended, the newest first.
fn ended_recordings(folder: &StatusFolder) -> Result<Vec<Recording>, Exit> {
    let entries = folder
        .entries()
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::Usage, &error))?;
    let mut recordings: Vec<Recording> = Vec::new();
    // Migrations that run have files, too.
    let sockets = entries
        .iter()
        .filter(|entry| entry.kind == StatusEntryKind::Socket);
    let running: BTreeSet<&str> = sockets.map(|entry| &*entry.name).collect();
    let has_ended = |entry: &&StatusEntry| {
        entry.kind == StatusEntryKind::File && !running.contains(&*entry.name)
    };
    for entry in entries.iter().filter(has_ended) {
        match Recording::read(&entry.path) {
            Ok(recording) => recordings.push(recording),
            Err(error) => tracing::warn!(
                error = %ErrorReport::new(&error),
                "ignoring a recording that cannot be read"
            ),
        }
    }
    Ok(recordings)
}
