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

use self::guests::NamedGuest;
use self::hosts::{AskHost, ByCertificate, Host, RoomsFile};
use self::inspect::{Inspected, NotInspected, engine_options, inspect_all, migrate_options};
use self::interrupts::Interrupts;
use self::journal::{EvacuationJournal, GuestRecord, GuestStage};
use self::moves::Execution;
use self::planning::Planner;
use crate::args::{Evacuate, Security};
use crate::commands::print_result::write_result;
use crate::commands::signals;
use crate::journal::absolute;
use crate::output::evacuate::{
    EndedGuest, Outcome, PlanReport, ResultReport, plan_text, result_text,
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
        // They are planned again, if they are meant.
        let stays = |record: &GuestRecord| matches!(record.stage, GuestStage::Stays { .. });
        journal.guests.retain(|_, record| !stays(record));
    }
    // Moved, lost, or not finished: nothing is to be done for them any more.
    let has_left = |name: &str| {
        let journal = journal.as_ref();
        journal.is_some_and(|journal| journal.guests.contains_key(name))
    };
    let guests = guests::find(args, has_left)?;
    let (inspected, not_movable) = inspected(args, guests, &cancel)?;
    let mut planner = planner(args, inspected, &cancel)?;
    if !planner.guests.is_empty() {
        planner.rehearse(&cancel);
    }
    if cancel.is_cancelled() {
        return Err(cancelled());
    }
    let all: Vec<usize> = (0..planner.guests.len()).collect();
    let (evacuation, plan) = planner.plan(&all);
    let deadline = args
        .within
        .map(|time| within(&evacuation, &plan, time.as_secs_f64()));
    let stay: Vec<_> = not_movable
        .iter()
        .map(|(guest, why)| (guest.name.clone(), why.clone()))
        .collect();
    let report = PlanReport::new(&evacuation, &plan, &stay, deadline.as_ref());
    let prints = args.json.as_deref() != Some("-".as_ref());
    if prints {
        streams::to_stdout(&plan_text(&report));
    }
    let Some(mut journal) = journal else {
        if let Some(path) = &args.json {
            write_result(&report, path)?;
        }
        return Ok(match report.is_whole() {
            true => ExitStatus::Done,
            false => ExitStatus::Failed,
        });
    };
    let is_asked_for = !(planner.guests.is_empty() && not_movable.is_empty());
    if plan.moves.is_empty() && is_asked_for && journal.guests.is_empty() {
        return Err(nothing_to_move());
    }
    for (guest, why) in &not_movable {
        note_refused(&mut journal, guest, why)?;
    }
    Execution::new(&mut planner, &mut journal).run(&interrupts)?;
    let result = ResultReport::new(report, ended(&journal), begun.elapsed());
    let status = result.status();
    if status == ExitStatus::Moved {
        journal.remove();
    }
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
        taken: BTreeMap::new(),
    })
}

fn note_refused(
    journal: &mut EvacuationJournal,
    guest: &NamedGuest,
    why: &str,
) -> Result<(), Exit> {
    let record = GuestRecord {
        at: guest.at.clone(),
        to: None,
        attempts: 0,
        stage: GuestStage::Stays {
            message: why.to_owned(),
        },
        total_ms: None,
        downtime_ms: None,
    };
    journal
        .set(&guest.name, record)
        .map_err(|error| settle::cannot_note(&error))
}

/// What has become of each guest, by the journal.
fn ended(journal: &EvacuationJournal) -> Vec<EndedGuest> {
    let of = |(name, record): (&String, &GuestRecord)| {
        let (outcome, message, resume) = match &record.stage {
            GuestStage::Moved => (Outcome::Moved, None, None),
            GuestStage::Stays { message } => (Outcome::Stays, Some(message.clone()), None),
            GuestStage::Moving { pid } => {
                let message = format!("its move goes on: process {pid}");
                (Outcome::Unfinished, Some(message), None)
            }
            GuestStage::Unfinished { message, resume } => {
                (Outcome::Unfinished, Some(message.clone()), resume.clone())
            }
            GuestStage::Lost { message } => (Outcome::Lost, Some(message.clone()), None),
        };
        EndedGuest {
            guest: name.clone(),
            outcome,
            to: record.to.clone().filter(|_| outcome != Outcome::Stays),
            attempts: record.attempts,
            total_ms: record.total_ms,
            downtime_ms: record.downtime_ms,
            message,
            resume,
        }
    };
    journal.guests.iter().map(of).collect()
}
