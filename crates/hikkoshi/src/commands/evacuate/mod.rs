//! `hikkoshi evacuate`: moves the guests of this host to others, by a plan.
//!
//! | file | does |
//! |---|---|
//! | `guests.rs` | finds the guests that are meant |
//! | `inspect.rs` | examines and measures them |
//! | `hosts.rs` | asks the destinations, and measures the lines |
//! | `planning.rs` | plans by `hikkoshi-evacuation`, until each destination would take its guests |
//! | `moves.rs` | executes the plan, and plans again when something fails |
//! | `child.rs` | one move: a process of `hikkoshi migrate` |
//! | `journal.rs` | what was done so far |
//! | `settle.rs` | finishes what an earlier run has left |
//! | `interrupts.rs` | Ctrl-C, once and twice |

mod child;
mod guests;
mod hosts;
mod inspect;
mod interrupts;
mod journal;
mod moves;
mod planning;
mod settle;

use std::collections::BTreeMap;
use std::time::Instant;

use hikkoshi_engine::CancelFlag;
use hikkoshi_evacuation::within;
use hikkoshi_status::{EvacuatedGuest, Evacuation, EvacuationStage};

use self::guests::NamedGuest;
use self::hosts::{AskHost, ByCertificate, Host, RoomsFile};
use self::inspect::{Inspected, NotInspected, engine_options, inspect_all, migrate_options};
use self::interrupts::Interrupts;
use self::journal::EvacuationJournal;
use self::moves::Execution;
use self::planning::Planner;
use crate::args::{Evacuate, Security};
use crate::commands::print_result::write_result;
use crate::commands::signals;
use crate::journal::absolute;
use crate::output::evacuate::{
    EndedGuest, Outcome, ResultReport, is_whole, plan_report, plan_text, result_text, status_of,
};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security;

pub(crate) fn run(args: &Evacuate) -> Result<ExitStatus, Exit> {
    let cancel = signals::cancel_on_signals()?;
    let interrupts = Interrupts::new(&cancel);
    let begun = Instant::now();
    let mut journal = match args.plan {
        true => None,
        false => Some(EvacuationJournal::open(&absolute(&args.journals.path()))?),
    };
    if let Some(journal) = &mut journal {
        settle::settle(args, journal, &interrupts)?;
        // They are planned again, if they are meant; and so are those that have come back.
        let guests = &mut journal.evacuation.guests;
        guests.retain(|name, guest| match guest.stage {
            EvacuationStage::Stays { .. } => false,
            EvacuationStage::Moved | EvacuationStage::Lost { .. } => {
                !guests::runs_here(name, &guest.at)
            }
            EvacuationStage::Moving | EvacuationStage::Unfinished { .. } => true,
        });
    }
    // Moved, lost, or not finished: nothing is to be done for them any more.
    let has_left = |name: &str| {
        let journal = journal.as_ref();
        journal.is_some_and(|journal| journal.guest(name).is_some())
    };
    let guests = guests::find(args, has_left)?;
    if !guests.is_empty() {
        require_dirty_log()?;
    }
    let (inspected, not_movable) = inspected(args, guests, &cancel)?;
    let mut planner = planner(args, inspected, &cancel)?;
    if !planner.guests.is_empty() {
        planner.rehearse(&cancel);
    }
    if cancel.is_cancelled() {
        return Err(cancelled());
    }
    let all: Vec<usize> = (0..planner.guests.len()).collect();
    let planned = planner.plan(&all);
    let (evacuation, plan) = &planned;
    let deadline = args
        .within
        .map(|time| within(evacuation, plan, time.as_secs_f64()));
    let stay: Vec<_> = not_movable
        .iter()
        .map(|(guest, why)| (guest.name.clone(), why.clone()))
        .collect();
    let report = plan_report(evacuation, plan, &stay, deadline.as_ref());
    let prints = args.json.as_deref() != Some("-".as_ref());
    if prints {
        streams::to_stdout(&plan_text(&report));
    }
    let Some(mut journal) = journal else {
        if let Some(path) = &args.json {
            write_result(&report, path)?;
        }
        return Ok(match is_whole(&report) {
            true => ExitStatus::Done,
            false => ExitStatus::Failed,
        });
    };
    let is_asked_for = !(planner.guests.is_empty() && not_movable.is_empty());
    if plan.moves.is_empty() && is_asked_for && journal.evacuation.guests.is_empty() {
        return Err(nothing_to_move());
    }
    let noted = |it: std::io::Result<()>| it.map_err(|error| settle::cannot_note(&error));
    for (guest, why) in not_movable {
        let stays = EvacuationStage::Stays { message: why };
        noted(journal.set(&guest.name, EvacuatedGuest::new(guest.at, stays)))?;
    }
    if !planner.guests.is_empty() {
        planner.settle();
        noted(journal.begin(report.clone()))?;
        Execution::new(&mut planner, &mut journal, &planned)?.run(&interrupts)?;
    }
    let guests = ended(&journal.evacuation);
    let status = status_of(&guests);
    noted(journal.end(status == ExitStatus::Moved))?;
    let result = ResultReport::new(report, guests, &journal.evacuation, begun.elapsed());
    if prints {
        streams::to_stdout(&result_text(&result));
    }
    if let Some(path) = &args.json {
        write_result(&result, path)?;
    }
    Ok(status)
}

fn cancelled() -> Exit {
    let what = "the evacuation was cancelled before it began";
    Exit::new(ExitStatus::Usage, Reason::Cancelled, what).with("nothing was tried")
}

fn nothing_to_move() -> Exit {
    let what = "no guest can be moved: the plan says why";
    Exit::new(ExitStatus::Usage, Reason::Unsupported, what).with("nothing was tried")
}

/// A plan needs what the guests write.
fn require_dirty_log() -> Result<(), Exit> {
    hikkoshi_qemu::dirty_log_support().map_err(|error| {
        Exit::caused(ExitStatus::Usage, Reason::Unsupported, &error).with(
            "nothing was tried: without a dirty log it is not known what the guests write, and so \
             nothing can be planned; `hikkoshi migrate --mode postcopy` moves one guest without it",
        )
    })
}

/// The guests that can be moved, and the others with their reasons.
type Sorted = (Vec<Inspected>, Vec<(NamedGuest, String)>);

fn inspected(
    args: &Evacuate,
    guests: Vec<NamedGuest>,
    cancel: &CancelFlag,
) -> Result<Sorted, Exit> {
    if let Some(first) = guests.first() {
        // The same for all.
        migrate_options(args, first)?;
    }
    streams::notice(&format!(
        "measuring {} guests for {} s each",
        guests.len(),
        args.seconds.as_secs_f64()
    ));
    let results = inspect_all(args, &guests, cancel);
    if cancel.is_cancelled() {
        return Err(cancelled());
    }
    let (mut movable, mut refused) = (Vec::new(), Vec::new());
    for (guest, result) in guests.into_iter().zip(results) {
        match result {
            Ok(inspected) => movable.push(inspected),
            Err(NotInspected::Moved) => {
                streams::notice(&format!("{}: has moved before", guest.name));
            }
            Err(NotInspected::Refused(why)) => refused.push((guest, why)),
        }
    }
    Ok((movable, refused))
}

fn planner<'a>(
    args: &'a Evacuate,
    guests: Vec<Inspected>,
    cancel: &CancelFlag,
) -> Result<Planner<'a>, Exit> {
    let asks: Box<dyn AskHost> = match &args.host_facts {
        Some(file) => Box::new(RoomsFile::read(file).map_err(|error| {
            let what = format!("reading {}: {error}", file.display());
            Exit::new(ExitStatus::Usage, Reason::Usage, what)
        })?),
        None => Box::new(ByCertificate),
    };
    let security = Security {
        plaintext: false,
        certificates: args.certificates.files(),
    };
    let mut hosts = Vec::new();
    for address in &args.to {
        let mut host = Host {
            client: security::certified(address, &security)?,
            address: address.clone(),
            room: None,
            line: None,
            failed: None,
            refuses: BTreeMap::new(),
            takes: std::collections::BTreeSet::new(),
        };
        match asks.ask(address, &host.client, cancel) {
            Ok(room) => host.room = room,
            Err(why) => {
                streams::notice(&format!("{address}: gets no guests: {why}"));
                host.failed = Some(why);
            }
        }
        hosts.push(host);
    }
    let options = guests
        .first()
        .map(|it| migrate_options(args, &it.guest))
        .transpose()?;
    Ok(Planner {
        args,
        guests,
        hosts,
        says_when_stalled: options
            .as_ref()
            .is_some_and(|it| it.convergence.when_stalled.is_some()),
        allow_cpu_mismatch: options.as_ref().is_some_and(|it| it.allow_cpu_mismatch),
        options: options.as_ref().map(engine_options).unwrap_or_default(),
        asked: None,
        taken: BTreeMap::new(),
    })
}

/// What has become of each guest, by the journal.
fn ended(evacuation: &Evacuation) -> Vec<EndedGuest> {
    let since_start = |at: Option<u64>| {
        #[allow(clippy::cast_precision_loss)] // Far below 2^53.
        Some(at?.checked_sub(evacuation.started_unix_ms?)? as f64)
    };
    let of = |(name, record): (&String, &EvacuatedGuest)| {
        let (outcome, message, resume) = match &record.stage {
            EvacuationStage::Moved => (Outcome::Moved, None, None),
            EvacuationStage::Stays { message } => (Outcome::Stays, Some(message.clone()), None),
            EvacuationStage::Moving => {
                let pid = record.pid.unwrap_or_default();
                let message = format!("its move goes on: process {pid}");
                (Outcome::Unfinished, Some(message), None)
            }
            EvacuationStage::Unfinished { message, resume } => {
                (Outcome::Unfinished, Some(message.clone()), resume.clone())
            }
            EvacuationStage::Lost { message } => (Outcome::Lost, Some(message.clone()), None),
        };
        EndedGuest {
            guest: name.clone(),
            outcome,
            to: record.to.clone().filter(|_| outcome != Outcome::Stays),
            attempts: record.attempts,
            begins_ms: since_start(record.began_unix_ms),
            ends_ms: since_start(record.ended_unix_ms),
            total_ms: record.total_ms,
            downtime_ms: record.downtime_ms,
            felt_ms: record.felt_ms,
            message,
            resume,
        }
    };
    evacuation.guests.iter().map(of).collect()
}
