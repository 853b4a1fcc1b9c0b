//! Ends a QEMU in which the guest does not run, or whose guest is lost, and what is left of it.

use std::time::Duration;
use std::{fs, io};

use error_reporter::Report;
use hikkoshi_account::Side;
use hikkoshi_linux::Process;
use rustix::process::Signal;

use super::cluster;
use super::deadline::Deadline;
use super::guest::{Found, Guest, Journal};
use super::state::State;
use crate::journal::JournalFile;
use crate::machines::WaitingMark;
use crate::output::streams;

/// How long an engine may take to notice that its QEMU has ended.
const NOTICE: Duration = Duration::from_secs(3);

/// Ends its QEMU, as part of `found`. Repeated until nothing is left.
pub(super) fn end_qemu(guest: &Guest, found: &Found, deadline: Deadline) -> Result<(), String> {
    match found.state {
        State::Moved => {
            kill(guest, found.source.as_ref())?;
            // Its engine may be ending it, too.
            if let Some(journal) = found.source.as_ref().filter(|journal| !journal.held) {
                guest.restore(journal).map_err(text)?;
            }
        }
        State::Ready | State::Incoming => end_waiting(guest, found, deadline)?,
        _ => {
            kill(guest, found.destination.as_ref())?;
            end_marked(guest);
        }
    }
    Ok(())
}

/// Ends a QEMU to which the guest was not handed over, as part of `found`. Its engine is paused
/// meanwhile: the source may decide at any moment that the guest runs here.
fn end_waiting(guest: &Guest, found: &Found, deadline: Deadline) -> Result<(), String> {
    let paused = PausedEngines::new(engines(guest, Side::Destination), deadline)?;
    if guest.look().state != found.state {
        return Ok(());
    }
    kill(guest, found.destination.as_ref())?;
    drop(paused);
    // Its engine notes that the guest never ran, for the source.
    match found.destination.as_ref() {
        Some(journal) if found.state == State::Ready && !journal.held => {
            guest.give_up_received(journal, false).map_err(text)?;
        }
        Some(_) if found.state == State::Ready => {}
        _ => end_marked(guest),
    }
    Ok(())
}

/// Ends what is left of a guest that was lost, or that a node has handed over, or would have, which
/// is gone.
pub(super) fn give_up(guest: &Guest, found: &Found, deadline: Deadline) -> Result<(), String> {
    if let Some(journal) = &found.source {
        return give_up_source(guest, journal);
    }
    kill(guest, found.destination.as_ref())?;
    let Some(journal) = &found.destination else {
        end_marked(guest);
        return Ok(());
    };
    let limit = deadline.within(NOTICE);
    limit.wait(|| !journal.path.exists() || !is_held(journal));
    if is_held(journal) {
        // It still tries to reach the source.
        kill_engines(guest, Side::Destination);
    }
    guest.give_up_received(journal, true).map_err(text)?;
    if !journal.path.exists() {
        // Its source, if that is there, need not wait for it any more.
        let name = &guest.parameters.name;
        guest.cluster.forget_move(name, cluster::Side::Destination);
    }
    Ok(())
}

/// The guest was handed over to a node that is gone. What is here is a moment of the past, and is
/// never run.
fn give_up_source(guest: &Guest, journal: &Journal) -> Result<(), String> {
    kill(guest, Some(journal))?;
    kill_engines(guest, Side::Source);
    match JournalFile::try_lock(&journal.path).map_err(text)? {
        Some(file) => {
            streams::notice(
                "the move is given up: the guest was handed over to a node that has left the \
                 cluster",
            );
            file.remove();
            Ok(())
        }
        None => Err("an engine still works on the move that is given up".to_owned()),
    }
}

fn is_held(journal: &Journal) -> bool {
    crate::journal::is_held(&journal.path).unwrap_or(true)
}

/// Kills the QEMU of a journal, or without a journal the guest's. It must write nothing to the
/// guest's disks, so it is not asked to end.
fn kill(guest: &Guest, journal: Option<&Journal>) -> Result<(), String> {
    let killed = |process: &Process| {
        process
            .kill()
            .map_err(|error| format!("killing QEMU: {}", Report::new(&error)))
    };
    match journal {
        Some(journal) => journal.process.as_deref().map_or(Ok(()), killed),
        None => match guest.process()? {
            Some(process) => killed(&process),
            None => Ok(()),
        },
    }
}

/// Removes the mark of a machine whose receiver has ended, with its QEMU.
fn end_marked(guest: &Guest) {
    // A receiver that lives holds it, and ends the machine itself.
    if let Ok(mark) = WaitingMark::lock(guest.run(), &guest.parameters.name) {
        mark.end_or_log();
    }
}

/// Kills the engines of the guest on one side.
fn kill_engines(guest: &Guest, side: Side) {
    for engine in engines(guest, side) {
        report("killing", &engine, engine.kill());
    }
}

/// The engines of the guest on one side.
fn engines(guest: &Guest, side: Side) -> Vec<Process> {
    let seen = guest.migrations();
    let seen = seen.iter().filter(|seen| seen.is_running());
    seen.filter(|seen| seen.migration.side == side)
        .filter_map(|seen| Process::open(seen.migration.pid).ok())
        .collect()
}

fn report(doing: &str, engine: &Process, result: io::Result<()>) {
    if let Err(error) = result {
        let (pid, error) = (engine.pid(), Report::new(&error));
        streams::notice(&format!("{doing} the engine (process {pid}): {error}"));
    }
}

/// Whether none of its threads runs.
fn has_paused(engine: &Process) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", engine.pid())) else {
        return true;
    };
    // proc(5): the state follows the name, which is in parentheses. One that has ended and was not
    // waited for yet (Z) does nothing either.
    let has_paused = |stat: &str| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['T', 'Z']))
    };
    threads.flatten().all(|thread| {
        fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| has_paused(&stat))
    })
}

/// Engines that do nothing until this is dropped.
#[derive(Debug)]
struct PausedEngines(Vec<Process>);

impl PausedEngines {
    /// # Errors
    /// One still runs.
    fn new(engines: Vec<Process>, deadline: Deadline) -> Result<Self, String> {
        let engines = Self(engines);
        for engine in &engines.0 {
            report("pausing", engine, engine.signal(Signal::STOP));
        }
        let are_paused = || engines.0.iter().all(has_paused);
        match deadline.within(NOTICE).wait(are_paused) {
            true => Ok(engines),
            false => Err("an engine of the guest cannot be paused".to_owned()),
        }
    }
}

impl Drop for PausedEngines {
    fn drop(&mut self) {
        for engine in &self.0 {
            report("resuming", engine, engine.signal(Signal::CONT));
        }
    }
}

fn text(error: io::Error) -> String {
    Report::new(&error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeping() -> (Child, Process) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        (child, process)
    }

    #[test]
    fn engines_do_nothing_while_they_are_paused() {
        let (mut one, first) = sleeping();
        let (mut other, second) = sleeping();
        let (mut gone, third) = sleeping();
        gone.kill().unwrap();
        let deadline = Deadline::new(None);
        let paused = PausedEngines::new(vec![first, second, third], deadline).unwrap();
        assert!(paused.0.iter().all(has_paused));
        drop(paused);
        for child in [&mut one, &mut other] {
            let process = Process::open(child.id()).unwrap();
            assert!(deadline.wait(|| !has_paused(&process)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        gone.wait().unwrap();
    }
}
