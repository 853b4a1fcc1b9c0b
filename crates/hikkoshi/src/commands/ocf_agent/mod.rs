//! `hikkoshi ocf-agent`: the resource agent `ocf:hikkoshi:guest`, which Pacemaker calls.
//!
//! Pacemaker decides where a guest runs, and an agent on each node starts, stops and moves it. What
//! an agent may do and answer depends on the handover of the guest's move: a guest that was handed
//! over is not active at its source, and one whose memory is arriving must not be started from its
//! disk. So an action looks at the guest's *state* on this node ([`state`]), by its QEMU and by
//! the journals of its moves. One table ([`table`]) says what each action does in each state. An
//! action repeats both until the table has an answer, or its time is over ([`drive`]).
//!
//! | module | holds |
//! | --- | --- |
//! | `drive` | looks, does what the table says, and looks again |
//! | `table` | states and actions: what is done and answered |
//! | `state`, `guest` | the states; what is found of a guest |
//! | `start`, `stop`, `end`, `migrate_to`, `monitor`, `validate` | what the actions do |
//! | `order` | whether Pacemaker still wants the move |
//! | `watch` | a process that watches a move at its source, and outlives the agent |
//! | `engines` | processes of this program that move the guest |
//! | `cluster` | what Pacemaker knows of the other node |
//! | `parameters`, `metadata`, `answer`, `deadline` | OCF |
//!
//! Nothing here is the child of a move: an agent that Pacemaker kills leaves the engines alone.

mod answer;
mod cluster;
mod deadline;
mod drive;
mod end;
mod engines;
mod guest;
mod metadata;
mod migrate_to;
mod monitor;
mod order;
mod parameters;
mod start;
mod state;
mod stop;
mod table;
mod validate;
mod watch;

use crate::args::OcfAgent;
use crate::output::exit::ExitStatus;
use crate::output::streams;
use answer::Answer;
use cluster::{Cluster, Side};
use deadline::Deadline;
use guest::Guest;
use parameters::{Invalid, Parameters};
use table::Action;
use watch::Watch;

/// What is said about the actions, if one that does not exist is asked for.
const USAGE: &str = "an action of OCF: start, stop, monitor, migrate_to, migrate_from, \
                     validate-all or meta-data. Pacemaker calls this with the parameters in the \
                     environment (OCF_RESKEY_…)";

/// Does what is asked for. Returns OCF's exit code.
pub(crate) fn run(args: &OcfAgent) -> ExitStatus {
    ExitStatus::Ocf(act(&args.action).code())
}

fn act(action: &str) -> Answer {
    if action == "meta-data" {
        streams::to_stdout(&metadata::document());
        return Answer::Success;
    }
    let call = Call::read(action);
    let parameters = match Parameters::read(variable) {
        Ok(parameters) => parameters,
        Err(invalid) => return refuse(invalid),
    };
    if action == "validate-all" {
        return match validate::check(&parameters) {
            Ok(()) => Answer::Success,
            Err(invalid) => refuse(invalid),
        };
    }
    let node = meta("on_node").or_else(cluster::own_name);
    let guest = Guest::new(parameters, Cluster::new(node));
    let answer = answer(&call, &guest);
    note_active(&call, &guest, answer);
    answer
}

/// What Pacemaker calls for, beside the guest's parameters.
#[derive(Debug)]
struct Call {
    action: String,
    deadline: Deadline,
    /// A `monitor` that is not repeated.
    is_probe: bool,
    /// A `monitor` that checks more (`OCF_CHECK_LEVEL`).
    is_deep: bool,
    /// The node that the guest moves to.
    target: Option<String>,
}

impl Call {
    fn read(action: &str) -> Self {
        let level = variable("OCF_CHECK_LEVEL").and_then(|level| level.parse::<u32>().ok());
        Self {
            action: action.to_owned(),
            deadline: Deadline::new(meta("timeout").as_deref()),
            is_probe: meta("interval").is_none_or(|interval| interval.trim() == "0"),
            is_deep: level.is_some_and(|level| level >= 10),
            target: meta("migrate_target"),
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn meta(name: &str) -> Option<String> {
    variable(&format!("OCF_RESKEY_CRM_meta_{name}"))
}

/// Notes whether the guest is active here, by what an action has answered.
fn note_active(call: &Call, guest: &Guest, answer: Answer) {
    match (&*call.action, answer) {
        ("start" | "migrate_from", Answer::Success) => guest.note_active(true),
        ("monitor" | "status", Answer::Success) if !call.is_probe => guest.note_active(true),
        ("stop" | "migrate_to", Answer::Success) | ("monitor" | "status", Answer::NotRunning) => {
            guest.note_active(false);
        }
        _ => {}
    }
}

/// Does an action that depends on the guest's state.
fn answer(call: &Call, guest: &Guest) -> Answer {
    let deadline = call.deadline;
    match &*call.action {
        "start" => match validate::check(&guest.parameters) {
            Ok(()) => drive::drive(guest, Action::Start, deadline),
            Err(invalid) => refuse(invalid),
        },
        "stop" => {
            let answer = drive::drive(guest, Action::Stop, deadline);
            // The engine of a move that is not finished may still send pages.
            if answer == Answer::Success && guest.handover().is_none() {
                guest
                    .cluster
                    .forget_move(&guest.parameters.name, Side::Source);
            }
            answer
        }
        "monitor" | "status" if call.is_probe => drive::drive(guest, Action::Probe, deadline),
        "monitor" | "status" => {
            let answer = drive::drive(guest, Action::Monitor, deadline);
            match call.is_deep && answer == Answer::Success {
                true => monitor::deep(guest),
                false => answer,
            }
        }
        "migrate_to" => match &call.target {
            Some(node) => {
                let watch = Watch::begin(guest);
                let answer = migrate_to::migrate_to(guest, node, deadline);
                watch.end(answer);
                answer
            }
            None => refuse(Invalid::new(
                Answer::Arguments,
                "OCF_RESKEY_CRM_meta_migrate_target is missing: which node the guest moves to",
            )),
        },
        watch::ACTION => watch::watch(guest, deadline),
        "migrate_from" => drive::drive(guest, Action::MigrateFrom, deadline),
        other => refuse(Invalid::new(
            Answer::Unimplemented,
            format!("'{other}' is not {USAGE}"),
        )),
    }
}

fn refuse(invalid: Invalid) -> Answer {
    streams::ocf_exit_reason(&invalid.why);
    invalid.answer
}
