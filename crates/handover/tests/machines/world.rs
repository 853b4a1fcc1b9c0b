//! The state of the model: two hosts, the links between them, and the invariants.

use std::collections::VecDeque;

use hikkoshi_handover::{
    Destination, DestinationAction, DestinationEvent, DestinationStage, Source, SourceAction,
    SourceEvent, SourceStage,
};

use super::{possible_steps, steps};

/// Pages of the guest.
pub(crate) const PAGES: usize = 2;

/// The most connections at a time: one that the destination still treats as alive, and
/// newer ones.
pub(crate) const LINKS: usize = 2;

/// A deliberate error, which the check must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// The source resumes its guest when the link breaks after *Commit*.
    ResumeWhenLost,
    /// The source does not record that it commits.
    CommitUnrecorded,
    /// The destination does not record that it runs the guest.
    RunUnrecorded,
    /// The destination does not record that it has declined.
    DeclineUnrecorded,
    /// The destination drops the guest when the link breaks after *ready*.
    ForgetWhenReady,
    /// The destination does not drop what the source has overwritten.
    KeepStalePages,
    /// After a new connection the source sends its own set of unsent pages, not the
    /// pages that the destination lists as missing.
    TrustOldOwed,
    /// The destination removes its record after it has sent *Declined*.
    ForgetDeclined,
    /// The source removes its record although it could not resume the guest.
    ForgetPaused,
    /// The destination declines whenever resuming the guest fails.
    DeclineWhenUnsure,
    /// The source commits although it could not record that.
    CommitAnyway,
    /// The source gives up although the destination may run the guest.
    GiveUpRashly,
    /// The destination keeps the old connection when the source has a new one.
    KeepOldLink,
    /// A source in `HandedOver` ignores *Declined*.
    DeafWhenGone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Guest {
    /// There is no guest that could run.
    Absent,
    Paused,
    Running,
}

/// What goes from the source to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ToDestination {
    /// The stale pages, the device state, and everything else that is needed.
    Switch {
        owed: [bool; PAGES],
    },
    Commit,
    Cancel,
    Goodbye,
    /// The first message on a new connection of a migration.
    ResumeRequest(SourceStage),
}

/// What goes from the destination to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ToSource {
    Ready,
    GuestResumed,
    Complete,
    ShutDown,
    Declined,
    Failed,
    Cancel,
    ResumeReply(DestinationStage, [bool; PAGES]),
}

/// A connection. Each side notices its end separately; until then it receives the
/// messages sent before.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub source_holds: bool,
    pub destination_holds: bool,
    /// The destination has accepted it and closed the others.
    pub accepted: bool,
    pub to_destination: VecDeque<ToDestination>,
    pub to_source: VecDeque<ToSource>,
    /// The background link: pages with their content.
    pub pages: VecDeque<(usize, u8)>,
}

impl Link {
    /// A new one.
    pub(crate) fn new(accepted: bool) -> Self {
        Self {
            source_holds: true,
            destination_holds: true,
            accepted,
            to_destination: VecDeque::new(),
            to_source: VecDeque::new(),
            pages: VecDeque::new(),
        }
    }
}

/// The state of the source's engine, which is lost when the engine ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SourceEngine {
    pub machine: Source,
    pub pending: VecDeque<SourceAction>,
    /// Written since it was sent, or never sent.
    pub dirty: [bool; PAGES],
    /// The guest was paused, and everything but *Commit* was sent.
    pub switched: bool,
    /// To be sent to the running guest.
    pub owed: [bool; PAGES],
    pub serving: bool,
    /// It has no connection and is connecting.
    pub waiting: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SourceHost {
    /// As recorded.
    pub stage: SourceStage,
    /// The record was removed: no other engine can resume.
    pub closed: bool,
    pub guest: Guest,
    pub ram: [u8; PAGES],
    pub engine: Option<SourceEngine>,
    /// The first engine's guard lives.
    pub guard: bool,
}

/// The state of the destination's engine, which is lost when the engine ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DestinationEngine {
    pub machine: Destination,
    pub pending: VecDeque<DestinationAction>,
    /// *Commit* came on the connection that is there now.
    pub committed_here: bool,
    /// The call that resumes the guest has returned.
    pub settled: bool,
    /// This engine has loaded the guest itself, so it knows whether the guest ran.
    pub loaded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DestinationHost {
    /// As recorded.
    pub stage: DestinationStage,
    /// The record was removed: no other engine can resume.
    pub closed: bool,
    pub guest: Guest,
    /// The guest's process has ended, and its memory with it.
    pub ended: bool,
    /// The process has ended because the guest shut itself down.
    pub shut_down: bool,
    pub ram: [Option<u8>; PAGES],
    pub engine: Option<DestinationEngine>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub flaw: Option<Flaw>,
    /// The remaining faults.
    pub faults: u8,
    pub source: SourceHost,
    pub destination: DestinationHost,
    /// The oldest first. The source only has the newest one.
    pub links: VecDeque<Link>,
    /// What the guest wrote last, on either host.
    pub truth: [u8; PAGES],
    /// The destination has declined after the source had committed.
    pub taken_back: bool,
    /// Whether an operator has cancelled or given up.
    pub cancelled: bool,
    /// The operator at the destination has given up.
    pub given_up_at_destination: bool,
}

impl World {
    /// A guest that runs at the source, and an empty destination, connected.
    pub(crate) fn new(faults: u8, flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            faults,
            source: SourceHost {
                stage: SourceStage::Owned,
                closed: false,
                guest: Guest::Running,
                ram: [0; PAGES],
                engine: Some(SourceEngine {
                    dirty: [true; PAGES],
                    switched: false,
                    ..SourceEngine::new(SourceStage::Owned)
                }),
                guard: true,
            },
            destination: DestinationHost {
                stage: DestinationStage::Receiving,
                closed: false,
                guest: Guest::Absent,
                ended: false,
                shut_down: false,
                ram: [None; PAGES],
                engine: Some(DestinationEngine::new(DestinationStage::Receiving)),
            },
            links: [Link::new(true)].into(),
            truth: [0; PAGES],
            taken_back: false,
            cancelled: false,
            given_up_at_destination: false,
        }
    }

    /// The connection that the source has.
    pub(crate) fn source_link(&mut self) -> Option<&mut Link> {
        self.links.back_mut().filter(|link| link.source_holds)
    }

    /// The connection that the destination has accepted.
    pub(crate) fn destination_link(&mut self) -> Option<&mut Link> {
        let held = |link: &&mut Link| link.accepted && link.destination_holds;
        self.links.iter_mut().find(held)
    }

    /// Whether the guest cannot run at the destination, and no engine there will report
    /// that it never did.
    pub(crate) fn is_lost_at_destination(&self) -> bool {
        let destination = &self.destination;
        match destination.stage {
            DestinationStage::Declined => destination.closed && self.given_up_at_destination,
            // An engine there will report a guest that shut itself down.
            DestinationStage::Running => destination.ended && !destination.shut_down,
            _ => false,
        }
    }

    /// Whether every page is what the guest wrote last, where the guest runs
    /// or may be let run, or can still be had from the source.
    pub(crate) fn is_sound(&self) -> bool {
        let at_source = self.source.ram == self.truth;
        match (self.source.stage, self.destination.stage) {
            (SourceStage::Owned, _)
            | (_, DestinationStage::Receiving | DestinationStage::Declined) => at_source,
            (_, DestinationStage::Ready) => at_source && self.is_complete_with_the_source(),
            (_, DestinationStage::Running | DestinationStage::Complete) => {
                // The guest's memory ended with its process: not an error of the handover.
                self.destination.ended || self.is_complete_with_the_source()
            }
        }
    }

    fn is_complete_with_the_source(&self) -> bool {
        (0..PAGES).all(|page| match self.destination.ram[page] {
            Some(content) => content == self.truth[page],
            None => {
                self.destination.stage != DestinationStage::Complete
                    && self.source.ram[page] == self.truth[page]
            }
        })
    }

    /// Whether one guest runs with all of its pages after both engines are started again
    /// and connected, without further faults; if the destination has lost it, after the
    /// source has given up.
    pub(crate) fn is_recoverable(&self) -> bool {
        let mut world = self.clone();
        world.faults = 0;
        for _ in 0..200 {
            let Some(step) = possible_steps::peaceful(&world) else {
                break;
            };
            steps::take(&mut world, step);
        }
        if world.destination.shut_down && world.destination.stage == DestinationStage::Complete {
            // The guest shut itself down, and the source knows that, unless an operator
            // gave up.
            let told = world.source.stage == SourceStage::Done || world.given_up_at_destination;
            return told && world.source.guest != Guest::Running;
        }
        match (world.source.guest, world.destination.guest) {
            (Guest::Running, Guest::Absent | Guest::Paused) => world.source.ram == world.truth,
            (Guest::Absent | Guest::Paused, Guest::Running) => {
                world.destination.ram.map(Option::unwrap_or_default) == world.truth
                    && world.destination.ram.iter().all(Option::is_some)
            }
            _ => false,
        }
    }

    /// Feeds `event` to the source's machine.
    pub(crate) fn source_event(&mut self, event: SourceEvent) {
        let flaw = self.flaw;
        let Some(engine) = &mut self.source.engine else {
            return;
        };
        let stage = engine.machine.stage();
        if flaw == Some(Flaw::ResumeWhenLost)
            && event == SourceEvent::LinkLost
            && stage == SourceStage::Committed
        {
            engine.pending.push_back(SourceAction::ResumeGuest);
            return;
        }
        let declined = matches!(
            event,
            SourceEvent::Declined | SourceEvent::Connected(DestinationStage::Declined)
        );
        if flaw == Some(Flaw::DeafWhenGone) && declined && stage == SourceStage::HandedOver {
            engine.pending.push_back(SourceAction::Wait);
            return;
        }
        engine.pending.extend(engine.machine.on(event));
    }

    /// Feeds `event` to the destination's machine.
    pub(crate) fn destination_event(&mut self, event: DestinationEvent) {
        let flaw = self.flaw;
        let Some(engine) = &mut self.destination.engine else {
            return;
        };
        let lost_when_ready = event == DestinationEvent::LinkLost
            && engine.machine.stage() == DestinationStage::Ready;
        if flaw == Some(Flaw::ForgetWhenReady) && lost_when_ready {
            engine.pending.push_back(DestinationAction::DiscardGuest);
            engine.pending.push_back(DestinationAction::Close);
            engine.pending.push_back(DestinationAction::End);
            return;
        }
        let actions = engine.machine.on(event);
        // A source that connects while the guest is being resumed is answered first.
        if engine.pending.front() == Some(&DestinationAction::ResumeGuest) {
            for &action in actions.iter().rev() {
                engine.pending.push_front(action);
            }
        } else {
            engine.pending.extend(actions);
        }
        if flaw == Some(Flaw::ForgetDeclined)
            && engine.pending.contains(&DestinationAction::SendDeclined)
        {
            engine
                .pending
                .extend([DestinationAction::Close, DestinationAction::End]);
        }
    }
}

impl SourceEngine {
    /// An engine that starts in `stage`, with no other state.
    pub(crate) fn new(stage: SourceStage) -> Self {
        Self {
            machine: Source::new(stage),
            pending: VecDeque::new(),
            dirty: [false; PAGES],
            switched: true,
            owed: [false; PAGES],
            serving: false,
            waiting: false,
        }
    }
}

impl DestinationEngine {
    /// An engine that starts in `stage`, with no other state.
    pub(crate) fn new(stage: DestinationStage) -> Self {
        Self {
            machine: Destination::new(stage),
            pending: VecDeque::new(),
            committed_here: false,
            settled: false,
            loaded: stage == DestinationStage::Receiving,
        }
    }
}
