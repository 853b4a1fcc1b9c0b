//! A move that is held in one of its stages.

use crate::laboratory::{Laboratory, Resource};
use hikkoshi_tests::{eventually, log};
use rustix::process::{Pid, Signal, kill_process};

/// Where a move is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// Memory is sent, and the guest runs at the source.
    Precopy,
    /// The guest is paused, and its device state is not loaded: the destination's QEMU does not
    /// answer. It was not handed over.
    Switchover,
    /// The guest runs at the destination, and most of its pages are at the source.
    Postcopy,
}

impl Stage {
    /// A guest whose move can be held there.
    pub(crate) fn resource(self) -> Resource {
        let mut resource = Resource::new("web", 48);
        // Otherwise its own accesses fetch all of its memory at once.
        resource.config = resource.config.workload(Resource::workload(48).rate(100));
        resource.params(match self {
            Self::Precopy | Self::Switchover => {
                "mode=hybrid bandwidth=8M options=\"--compress off --rounds 3\" refresh=2"
            }
            Self::Postcopy => {
                "mode=postcopy options=\"--compress off --background-delay 3600000\" refresh=2"
            }
        })
    }
}

/// A move of the guest `web` from the first node to the second one, held in a stage.
pub(crate) struct Held {
    pub(crate) laboratory: Laboratory,
    stage: Stage,
    /// A process that is stopped.
    stopped: Option<Pid>,
}

impl Held {
    pub(crate) fn in_stage(stage: Stage) -> Self {
        Self::in_stage_with(stage, |_| {})
    }

    /// The same; does `begun` when the destination's machine is there, before that stage.
    pub(crate) fn in_stage_with(stage: Stage, begun: impl FnOnce(&Laboratory)) -> Self {
        let laboratory = Laboratory::start(vec![stage.resource()]);
        laboratory.wait_on("web", "n1");
        let mut held = Self {
            laboratory,
            stage,
            stopped: None,
        };
        held.begin(begun);
        held
    }

    /// Orders the move, and waits until it is there.
    fn begin(&mut self, begun: impl FnOnce(&Laboratory)) {
        let laboratory = &self.laboratory;
        laboratory.move_to("web", "n2");
        let guest = laboratory.guest("web");
        eventually("the destination's machine", || {
            guest.on("n2").map(drop).ok_or_else(String::new)
        });
        begun(laboratory);
        if self.stage == Stage::Postcopy {
            eventually("the guest to be handed over", || match guest.running() {
                Some(machine) if machine.node() == "n2" => Ok(()),
                other => Err(format!(
                    "{:?}",
                    other.map(|machine| machine.name().to_owned())
                )),
            });
            assert!(guest.on("n1").is_some(), "its pages have arrived already");
        } else {
            eventually("pre-copy", || {
                let said = laboratory.hikkoshi("n1", &["status", "web"]).stdout;
                match said.contains("pre-copy, round") && guest.on("n2").is_some() {
                    true => Ok(()),
                    false => Err(said),
                }
            });
        }
        if self.stage == Stage::Switchover {
            let there = guest.on("n2").unwrap();
            let qemu = Pid::from_raw(there.pid().cast_signed()).unwrap();
            kill_process(qemu, Signal::STOP).unwrap();
            self.stopped = Some(qemu);
            let switched = laboratory.hikkoshi("n1", &["switch", "web"]);
            assert_eq!(switched.code, Some(0), "{}", switched.stderr);
            eventually("the guest to be paused", || match guest.running() {
                None => Ok(()),
                Some(machine) => Err(machine.name().to_owned()),
            });
        }
        log(format!("web is held in {:?}", self.stage));
    }

    /// Holds nothing any more.
    pub(crate) fn release(&mut self) {
        if let Some(process) = self.stopped.take() {
            let _ = kill_process(process, Signal::CONT);
        }
    }

    /// Holds nothing any more, and has the pages pushed: by another engine, for the one that pushes
    /// none is killed.
    pub(crate) fn finish(&mut self) {
        self.release();
        if self.stage == Stage::Postcopy {
            self.push_from("n1");
        }
    }

    /// Has the pages that are owed on this node pushed.
    pub(crate) fn push_from(&self, node: &str) {
        for engine in self.laboratory.node(node).processes_with(&["migrate"]) {
            let engine = Pid::from_raw(engine.cast_signed()).unwrap();
            let _ = kill_process(engine, Signal::KILL);
        }
    }
}
