//! The table of states and actions: what is done, and what is answered. docs/pacemaker.md has it
//! for people; a test compares the two.

use super::answer::Answer;
use super::state::State;

/// What Pacemaker asks for that depends on the guest's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A `monitor` that is not repeated: is the guest here, whatever was ordered before?
    Probe,
    /// A `monitor` that is repeated.
    Monitor,
    /// Start the guest from its disks.
    Start,
    /// The guest must not be active here afterwards.
    Stop,
    /// Hand the guest over to another node.
    MigrateTo,
    /// The guest was handed over to this node.
    MigrateFrom,
}

/// What is to be done next. Then the state is looked at again, except after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: this is the answer.
    Answer(Answer),
    /// Wait for what others do. When the time is over, this is the answer.
    Wait(Answer),
    /// Start a QEMU for the guest, with its disks.
    Boot,
    /// Let the guest run in the QEMU that was started for it.
    Run,
    /// Ask the guest to shut down, and then end its QEMU.
    ShutDown,
    /// End its QEMU at once: the guest does not run in it, and is not needed there.
    EndQemu,
    /// End what is left of the guest here, with its journal.
    GiveUp,
    /// Cancel the move; the guest stays here.
    Cancel,
    /// Undo what a move has changed whose engine was killed.
    Restore,
    /// Move the guest.
    Move,
    /// Wait for the move that is under way.
    Follow,
    /// Let the engines finish the move, and resume it if none does. When the time is over, this is
    /// the answer.
    Finish(Answer),
    /// The same; when the time is over, the guest is ended as it is.
    FinishOrEnd,
    /// Resume the move, which no engine does, and answer this.
    Resume(Answer),
}

/// What `action` does in `state`.
pub(super) fn step(state: State, action: Action) -> Step {
    match action {
        Action::Probe => probe(state),
        Action::Monitor => monitor(state),
        Action::Start => start(state),
        Action::Stop => stop(state),
        Action::MigrateTo => migrate_to(state),
        Action::MigrateFrom => migrate_from(state),
    }
}

use Answer::{Failed, NotRunning, Success};
use Step::{
    Boot, Cancel, EndQemu, Finish, FinishOrEnd, Follow, GiveUp, Move, Restore, Resume, Run,
    ShutDown, Wait,
};

/// A probe changes nothing. A guest that may yet run here is neither active nor inactive: the
/// failure makes Pacemaker stop it here before it is started anywhere.
fn probe(state: State) -> Step {
    match state {
        State::Running
        | State::Paused
        | State::Unreached
        | State::Leaving
        | State::Interrupted
        | State::Arriving
        | State::Stranded => Step::Answer(Success),
        State::Absent
        | State::Owing
        | State::Moved
        | State::Forsaken
        | State::Incoming
        | State::Orphaned
        | State::Declined => Step::Answer(NotRunning),
        State::Silent | State::Committed | State::Ready => Wait(Failed),
        State::Prepared | State::Halted | State::Lost | State::Unknown => Step::Answer(Failed),
    }
}

/// As a probe, but what no engine works on is resumed.
fn monitor(state: State) -> Step {
    match state {
        State::Interrupted => Restore,
        State::Stranded => Resume(Success),
        State::Owing => Resume(NotRunning),
        State::Committed => Finish(Failed),
        other => probe(other),
    }
}

fn start(state: State) -> Step {
    match state {
        State::Absent => Boot,
        State::Prepared => Run,
        State::Running | State::Paused | State::Unreached | State::Leaving | State::Arriving => {
            Step::Answer(Success)
        }
        State::Stranded => Resume(Success),
        State::Interrupted => Restore,
        State::Moved | State::Declined => EndQemu,
        State::Forsaken | State::Orphaned | State::Lost => GiveUp,
        State::Silent | State::Incoming | State::Ready => Wait(Failed),
        State::Committed | State::Owing => Finish(Failed),
        State::Halted | State::Unknown => Step::Answer(Failed),
    }
}

fn stop(state: State) -> Step {
    match state {
        State::Absent => Step::Answer(Success),
        State::Running | State::Paused | State::Prepared | State::Halted => ShutDown,
        State::Silent
        | State::Unreached
        | State::Moved
        | State::Incoming
        | State::Ready
        | State::Declined => EndQemu,
        State::Leaving => Cancel,
        State::Interrupted => Restore,
        State::Committed => Finish(Failed),
        State::Owing => Finish(Success),
        State::Forsaken | State::Orphaned | State::Lost => GiveUp,
        State::Arriving | State::Stranded => FinishOrEnd,
        State::Unknown => Step::Answer(Failed),
    }
}

fn migrate_to(state: State) -> Step {
    match state {
        State::Running | State::Paused => Move,
        State::Leaving => Follow,
        State::Interrupted => Restore,
        State::Committed | State::Arriving | State::Stranded => Finish(Failed),
        State::Owing => Resume(Success),
        State::Moved => Step::Answer(Success),
        State::Silent | State::Unreached => Wait(Failed),
        State::Absent | State::Declined => Step::Answer(NotRunning),
        State::Prepared
        | State::Halted
        | State::Forsaken
        | State::Incoming
        | State::Ready
        | State::Orphaned
        | State::Lost
        | State::Unknown => Step::Answer(Failed),
    }
}

/// The guest is here when it runs here. Until this has answered, Pacemaker takes any other order
/// for a reason to stop the guest and to start it again, so it does not wait for the pages. `stop`
/// at the source does.
fn migrate_from(state: State) -> Step {
    match state {
        State::Running | State::Paused | State::Arriving => Step::Answer(Success),
        State::Stranded => Resume(Success),
        State::Silent | State::Unreached | State::Incoming | State::Ready => Wait(Failed),
        _ => Step::Answer(Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// What is said about each state.
    const PAGE: &str = include_str!("../../../../../docs/pacemaker.md");

    fn text(step: Step) -> String {
        let code = |answer: Answer| answer.code().to_string();
        match step {
            Step::Answer(answer) => code(answer),
            Wait(answer) => format!("wait, else {}", code(answer)),
            Boot => "boot".to_owned(),
            Run => "run".to_owned(),
            ShutDown => "shut down".to_owned(),
            EndQemu => "end QEMU".to_owned(),
            GiveUp => "give up".to_owned(),
            Cancel => "cancel".to_owned(),
            Restore => "restore".to_owned(),
            Move => "move".to_owned(),
            Follow => "follow".to_owned(),
            Finish(answer) => format!("finish, else {}", code(answer)),
            FinishOrEnd => "finish, else give up".to_owned(),
            Resume(answer) => format!("resume, {}", code(answer)),
        }
    }

    #[test]
    fn the_document_has_this_table() {
        let actions = [
            Action::Probe,
            Action::Monitor,
            Action::Start,
            Action::Stop,
            Action::MigrateTo,
            Action::MigrateFrom,
        ];
        let mut table = String::from(
            "| state | probe | monitor | start | stop | migrate_to | migrate_from |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for state in State::ALL {
            let cells = actions.map(|action| text(step(*state, action)));
            writeln!(table, "| {} | {} |", state.words(), cells.join(" | ")).unwrap();
        }
        assert!(PAGE.contains(&table), "{table}");
    }

    #[test]
    fn the_document_explains_each_state() {
        for state in State::ALL {
            let line = format!("| {} | {} |\n", state.words(), state.meaning());
            assert!(PAGE.contains(&line), "{line}");
        }
    }

    /// What may run here, or may yet, is never reported as not running: it would be started
    /// elsewhere.
    #[test]
    fn a_guest_that_may_run_here_is_active() {
        for state in [
            State::Running,
            State::Paused,
            State::Unreached,
            State::Leaving,
            State::Interrupted,
            State::Committed,
            State::Ready,
            State::Arriving,
            State::Stranded,
        ] {
            for action in [Action::Probe, Action::Monitor] {
                let step = step(state, action);
                let answers_inactive = matches!(
                    step,
                    Step::Answer(NotRunning) | Wait(NotRunning) | Resume(NotRunning)
                );
                assert!(!answers_inactive, "{state:?} {action:?}: {step:?}");
            }
        }
    }

    /// As long as a move is not finished or decided, the guest is not started from its disks.
    #[test]
    fn only_what_is_over_is_booted() {
        for state in State::ALL {
            let is_over = matches!(
                state,
                State::Absent
                    | State::Moved
                    | State::Declined
                    | State::Forsaken
                    | State::Orphaned
                    | State::Lost
            );
            let boots = matches!(step(*state, Action::Start), Boot | EndQemu | GiveUp);
            assert_eq!(boots, is_over, "{state:?}");
        }
    }

    /// While pages are owed, no QEMU is ended at once.
    #[test]
    fn pages_that_are_owed_are_sent_first() {
        for state in [
            State::Committed,
            State::Owing,
            State::Arriving,
            State::Stranded,
        ] {
            let stop = step(state, Action::Stop);
            assert!(matches!(stop, Finish(_) | FinishOrEnd), "{state:?}");
        }
    }
}
