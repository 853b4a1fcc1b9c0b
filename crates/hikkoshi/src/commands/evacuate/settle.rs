//! What an earlier run has left: moves that still run are waited for, and those that were
//! interrupted are resumed.

use std::ffi::OsString;
use std::thread::sleep;

use hikkoshi_status::{EvacuatedGuest, EvacuationStage};

use super::child::{Failure, MoveEnd, MoveProcess, written};
use super::guests::NamedGuest;
use super::interrupts::Interrupts;
use super::journal::{EvacuationJournal, MoveFiles, now_unix_ms};
use super::moves::TICK;
use crate::args::Evacuate;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;

/// What becomes of the moves when an evacuation ends in their middle.
const GO_ON: &str = "moves that run go on; the same command again continues the evacuation";

/// The words that resume the migration of this guest.
pub(super) fn resume_words(args: &Evacuate, guest: &NamedGuest) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["migrate".into(), "--resume".into()];
    words.extend(guest.words());
    let run = crate::journal::absolute(&args.journals.path());
    words.extend(["--journal".into(), run.into()]);
    words
}

/// The stage of a guest whose move has failed in this way, if it is not to be tried again.
pub(super) fn stage_after(failure: &Failure) -> EvacuationStage {
    let message = failure.text();
    match failure.exit_status {
        4 => EvacuationStage::Lost { message },
        3 => EvacuationStage::Unfinished {
            message,
            resume: failure.resume.clone(),
        },
        _ => EvacuationStage::Stays { message },
    }
}

struct Left {
    name: String,
    record: EvacuatedGuest,
    process: MoveProcess,
    files: MoveFiles,
}

/// Finishes what an earlier run has left. A first interrupt cancels what can be, a second one ends
/// the waiting.
pub(super) fn settle(
    args: &Evacuate,
    journal: &mut EvacuationJournal,
    interrupts: &Interrupts,
) -> Result<(), Exit> {
    let mut left = Vec::new();
    for (name, record) in journal.evacuation.guests.clone() {
        let pid = match record.stage {
            EvacuationStage::Moving => record.pid,
            EvacuationStage::Unfinished { .. } => None,
            _ => continue,
        };
        let files = journal.files(&name);
        let process = match pid.and_then(|pid| MoveProcess::left(pid, &files)) {
            Some(process) => process,
            None => {
                let written = pid.and_then(|_| written(&files.result));
                // Nothing is left to resume.
                let is_over = |end: &MoveEnd| match end {
                    MoveEnd::Moved(_) => true,
                    MoveEnd::Failed(failure) => failure.exit_status == 4,
                };
                if let Some(end) = written.filter(is_over) {
                    note(journal, &name, record, &end)?;
                    continue;
                }
                let guest = NamedGuest {
                    name: name.clone(),
                    at: record.at.clone(),
                };
                let process = MoveProcess::start(&resume_words(args, &guest), &files);
                process.map_err(|error| not_started(&name, &error))?
            }
        };
        streams::notice(&format!(
            "{name}: its move of an earlier run is finished first"
        ));
        let record = EvacuatedGuest {
            pid: Some(process.pid()),
            stage: EvacuationStage::Moving,
            ..record
        };
        journal
            .set(&name, record.clone())
            .map_err(|error| cannot_note(&error))?;
        left.push(Left {
            name,
            record,
            process,
            files,
        });
    }
    let mut interrupted = false;
    while !left.is_empty() {
        if interrupts.take() {
            if interrupted {
                let what = "moves of an earlier run were left as they are";
                return Err(Exit::new(ExitStatus::Unfinished, Reason::Cancelled, what)
                    .with("the same command again continues them"));
            }
            interrupted = true;
            left.iter().for_each(|it| it.process.cancel());
        }
        let mut running = Vec::new();
        for mut it in left {
            match it.process.ended(&it.files) {
                None => running.push(it),
                Some(end) => note(journal, &it.name, it.record, &end)?,
            }
        }
        left = running;
        if !left.is_empty() {
            sleep(TICK);
        }
    }
    if interrupted {
        let what = "the evacuation was cancelled before it began";
        return Err(Exit::new(ExitStatus::AtSource, Reason::Cancelled, what));
    }
    Ok(())
}

pub(super) fn not_started(name: &str, error: &std::io::Error) -> Exit {
    let what = format!("{name}: starting a process that moves it: {error}");
    Exit::new(ExitStatus::Unfinished, Reason::System, what).with(GO_ON)
}

fn note(
    journal: &mut EvacuationJournal,
    name: &str,
    mut record: EvacuatedGuest,
    end: &MoveEnd,
) -> Result<(), Exit> {
    record.ended_unix_ms = Some(now_unix_ms());
    record.stage = match end {
        MoveEnd::Moved(moved) => {
            record.total_ms = moved.total_ms;
            record.downtime_ms = moved.downtime_ms;
            EvacuationStage::Moved
        }
        MoveEnd::Failed(failure) => stage_after(failure),
    };
    journal
        .set(name, record)
        .map_err(|error| cannot_note(&error))
}

/// The journal cannot be written.
pub(super) fn cannot_note(error: &std::io::Error) -> Exit {
    let what = format!("writing the journal of the evacuation: {error}");
    Exit::new(ExitStatus::Unfinished, Reason::Journal, what).with(GO_ON)
}
