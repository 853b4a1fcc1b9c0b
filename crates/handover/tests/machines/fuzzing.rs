//! The functions of the fuzz targets `handover_*` (`fuzz/fuzz_targets`): both state machines, with
//! any messages that a peer can send, at any time: messages that were never due, duplicates, any
//! order, replays of old ones. Engines are killed and records cannot be written in between.
//!
//! The model check (`main.rs`) is exhaustive for two honest sides and a network that loses
//! messages. This covers the rest. The property tests (`arbitrary_messages.rs`) run these functions
//! on random input, and on the kept fuzz inputs.

use hikkoshi_handover::{
    Destination, DestinationAction, DestinationEvent, DestinationStage, Source, SourceAction,
    SourceEvent, SourceStage,
};

/// A source's host: the recorded stage, and what its engine does.
#[derive(Debug)]
struct SourceHost {
    recorded: SourceStage,
    machine: Source,
    runs: bool,
    /// *Commit* was sent, and not declined since.
    given_away: bool,
    /// After *commit*, the destination has reported to this engine that the guest runs there.
    resumed: bool,
}

/// A message from one side to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    ToDestination(DestinationEvent),
    ToSource(SourceEvent),
}

impl SourceHost {
    fn new() -> Self {
        Self {
            recorded: SourceStage::Owned,
            machine: Source::new(SourceStage::Owned),
            runs: true,
            given_away: false,
            resumed: false,
        }
    }

    fn restart(&mut self, says: &mut Vec<Word>) {
        self.machine = Source::new(self.recorded);
        self.resumed = false;
        self.handle(SourceEvent::Restarted, true, says);
    }

    /// Passes `event` to the machine and performs its actions. With `records` false, records
    /// cannot be written.
    fn handle(&mut self, event: SourceEvent, records: bool, says: &mut Vec<Word>) {
        // *Ready* while the guest runs is an error of the peer; the engine closes the link.
        let event = match event {
            SourceEvent::Ready if self.runs => SourceEvent::LinkLost,
            other => other,
        };
        if matches!(
            event,
            SourceEvent::Declined | SourceEvent::Connected(DestinationStage::Declined)
        ) && matches!(
            self.recorded,
            SourceStage::Committed | SourceStage::HandedOver
        ) && !self.resumed
        {
            self.given_away = false;
        }
        let committed = self.recorded == SourceStage::Committed;
        self.resumed |= committed && event == SourceEvent::GuestResumed;
        // The operator who gives up is responsible for the guest not running there.
        if event == SourceEvent::GivenUp {
            self.given_away = false;
        }
        for &action in self.machine.on(event) {
            match action {
                SourceAction::Record(stage) => {
                    if !records {
                        self.machine = Source::new(self.recorded);
                        self.resumed = false;
                        return;
                    }
                    let place = |stage| SourceStage::ALL.iter().position(|&one| one == stage);
                    let back = place(stage) < place(self.recorded);
                    assert!(
                        !back || (stage == SourceStage::Owned && !self.given_away),
                        "{event:?}: from {:?} back to {stage:?}",
                        self.recorded
                    );
                    self.recorded = stage;
                    // Valid for this handover only.
                    self.resumed &= stage == SourceStage::HandedOver;
                }
                SourceAction::SendCommit => {
                    assert_eq!(self.recorded, SourceStage::Committed, "{event:?}");
                    assert!(!self.runs, "{event:?}: committed while it runs here");
                    self.given_away = true;
                    says.push(Word::ToDestination(DestinationEvent::Commit));
                }
                SourceAction::ResumeGuest => {
                    assert_eq!(self.recorded, SourceStage::Owned, "{event:?}");
                    assert!(!self.given_away, "{event:?}: it runs there");
                    self.runs = true;
                }
                SourceAction::SendCancel => {
                    assert_eq!(self.recorded, SourceStage::Owned, "{event:?}");
                    says.push(Word::ToDestination(DestinationEvent::CancelledBySource));
                }
                SourceAction::SendPages => {
                    assert_eq!(self.recorded, SourceStage::HandedOver, "{event:?}")
                }
                SourceAction::Wait => assert!(
                    matches!(
                        self.recorded,
                        SourceStage::Committed | SourceStage::HandedOver
                    ),
                    "{event:?}"
                ),
                // The engine neither deletes its record nor exits while it may still be needed.
                SourceAction::Close => assert!(
                    (self.recorded == SourceStage::Owned && self.runs)
                        || self.recorded == SourceStage::Done,
                    "{event:?}: it is forgotten as {:?}",
                    self.recorded
                ),
                SourceAction::End => assert!(
                    matches!(self.recorded, SourceStage::Owned | SourceStage::Done),
                    "{event:?}: it ends as {:?}",
                    self.recorded
                ),
            }
        }
        assert!(!(self.runs && self.given_away), "{event:?}");
    }
}

/// A destination's host.
#[derive(Debug)]
struct DestinationHost {
    recorded: DestinationStage,
    machine: Destination,
    runs: bool,
    ran: bool,
    promised: bool,
    dropped: bool,
    closed: bool,
}

impl DestinationHost {
    fn new() -> Self {
        Self {
            recorded: DestinationStage::Receiving,
            machine: Destination::new(DestinationStage::Receiving),
            runs: false,
            ran: false,
            promised: false,
            dropped: false,
            closed: false,
        }
    }

    fn restart(&mut self, says: &mut Vec<Word>) {
        self.machine = Destination::new(self.recorded);
        self.handle(DestinationEvent::Restarted, true, says);
    }

    fn handle(&mut self, event: DestinationEvent, records: bool, says: &mut Vec<Word>) {
        use DestinationStage::{Complete, Declined, Ready, Receiving, Running};
        // These events are impossible: loading a discarded guest, any event after the record was
        // deleted, "never ran" for a guest that ran, "shut down" for a guest that never ran.
        let never = match event {
            DestinationEvent::GuestNeverRan => self.ran,
            DestinationEvent::ShutDown => !self.ran,
            _ => false,
        };
        if (event == DestinationEvent::DeviceStateLoaded && self.dropped) || self.closed || never {
            return;
        }
        let mine = |stage| matches!(stage, Running | Complete);
        for &action in self.machine.on(event) {
            match action {
                DestinationAction::Record(stage) => {
                    if !records {
                        self.machine = Destination::new(self.recorded);
                        return;
                    }
                    let place = |stage| DestinationStage::ALL.iter().position(|&one| one == stage);
                    assert!(
                        place(stage) > place(self.recorded)
                            && (!mine(self.recorded)
                                || stage != Declined
                                || event == DestinationEvent::GuestNeverRan),
                        "{event:?}: from {:?} to {stage:?}",
                        self.recorded
                    );
                    self.recorded = stage;
                }
                DestinationAction::SendReady => {
                    assert_eq!(self.recorded, Ready, "{event:?}");
                    self.promised = true;
                    says.push(Word::ToSource(SourceEvent::Ready));
                }
                DestinationAction::ResumeGuest => {
                    assert!(mine(self.recorded) && !self.dropped, "{event:?}");
                    self.runs = true;
                    self.ran = true;
                }
                DestinationAction::SendGuestResumed => {
                    assert!(mine(self.recorded) && self.ran, "{event:?}");
                    says.push(Word::ToSource(SourceEvent::GuestResumed));
                }
                DestinationAction::SendComplete => {
                    assert_eq!(self.recorded, Complete, "{event:?}");
                    says.push(Word::ToSource(SourceEvent::Complete));
                }
                DestinationAction::SendShutDown => {
                    assert!(self.recorded == Complete && self.ran, "{event:?}");
                    says.push(Word::ToSource(SourceEvent::ShutDown));
                }
                DestinationAction::SendDeclined => {
                    assert!(
                        matches!(self.recorded, Receiving | Declined) && !self.ran,
                        "{event:?}"
                    );
                    says.push(Word::ToSource(SourceEvent::Declined));
                }
                DestinationAction::SendCancel => {
                    assert_eq!(self.recorded, Ready, "{event:?}");
                    says.push(Word::ToSource(SourceEvent::Cancelled));
                }
                DestinationAction::SendResumeReply(stage) => {
                    assert_eq!(stage, self.machine.stage(), "{event:?}");
                    let recorded = stage == self.recorded;
                    assert!(
                        recorded || (stage == Declined && !self.promised),
                        "{event:?}"
                    );
                    says.push(Word::ToSource(SourceEvent::Connected(stage)));
                }
                DestinationAction::DiscardGuest => {
                    assert!(!self.ran, "{event:?}: it has run here");
                    // After *ready*, the source may have handed the guest over: the guest is
                    // discarded only if *declined* is recorded, so that the source can ask.
                    assert!(!self.promised || self.recorded == Declined, "{event:?}");
                    self.dropped = true;
                }
                DestinationAction::KillGuest => {
                    assert_eq!(event, DestinationEvent::GivenUp);
                    self.runs = false;
                    self.dropped = true;
                }
                DestinationAction::Wait => assert_ne!(self.recorded, Receiving, "{event:?}"),
                // While the source may still wait for an answer, the record is deleted only after
                // the final message, or when the operator gives up.
                DestinationAction::Close => {
                    let word = match event {
                        DestinationEvent::CancelledBySource
                        | DestinationEvent::Connected(SourceStage::Owned) => {
                            self.recorded == Declined
                        }
                        DestinationEvent::Goodbye => self.recorded == Complete,
                        DestinationEvent::GivenUp => true,
                        _ => false,
                    };
                    assert!(word || !self.promised, "{event:?} in {:?}", self.recorded);
                    self.closed = true;
                }
                DestinationAction::End => assert!(
                    self.closed || (self.recorded == Running && event == BROKEN),
                    "{event:?}: it ends as {:?}",
                    self.recorded
                ),
            }
        }
    }
}

/// The guest's process has exited, so waiting makes no sense.
const BROKEN: DestinationEvent = DestinationEvent::GuestFailed;

fn pick<T: Copy>(all: &[T], byte: u8) -> T {
    all[usize::from(byte) % all.len()]
}

/// A source whose destination sends any message at any time. The source keeps its own rules.
pub(crate) fn source(bytes: &[u8]) {
    let mut host = SourceHost::new();
    let mut says = Vec::new();
    for pair in bytes.chunks_exact(2) {
        match pair[0] % 8 {
            0 => host.restart(&mut says),
            // The engine stops the guest for the switchover.
            1 if host.recorded == SourceStage::Owned => host.runs = false,
            _ => host.handle(pick(&SourceEvent::ALL, pair[1]), pair[0] >= 32, &mut says),
        }
        says.clear();
    }
}

/// A destination whose source sends any message at any time.
pub(crate) fn destination(bytes: &[u8]) {
    let mut host = DestinationHost::new();
    let mut says = Vec::new();
    for pair in bytes.chunks_exact(2) {
        if pair[0] % 8 == 0 {
            host.restart(&mut says);
        } else {
            let event = pick(&DestinationEvent::ALL, pair[1]);
            host.handle(event, pair[0] >= 32, &mut says);
        }
        says.clear();
    }
}

/// Two honest sides, and an attacker between them who replays any old message, at any time and any
/// number of times. The guest never runs on both sides.
pub(crate) fn replayed(bytes: &[u8]) {
    let (mut source, mut destination) = (SourceHost::new(), DestinationHost::new());
    let mut said: Vec<Word> = Vec::new();
    for pair in bytes.chunks_exact(2) {
        let records = pair[0] >= 32;
        let mut new = Vec::new();
        match pair[0] % 8 {
            0 => source.restart(&mut new),
            1 => destination.restart(&mut new),
            2 if source.recorded == SourceStage::Owned => source.runs = false,
            3 => {
                let own = [SourceEvent::LinkLost, SourceEvent::Cancelled];
                source.handle(pick(&own, pair[1]), records, &mut new);
            }
            4 => {
                let own = [
                    DestinationEvent::DeviceStateLoaded,
                    DestinationEvent::LinkLost,
                    DestinationEvent::AllPagesReceived,
                    DestinationEvent::Cancelled,
                    DestinationEvent::GivenUp,
                    DestinationEvent::Connected(source.recorded),
                ];
                destination.handle(pick(&own, pair[1]), records, &mut new);
            }
            _ if said.is_empty() => {}
            _ => match pick(&said, pair[1]) {
                Word::ToDestination(event) => destination.handle(event, records, &mut new),
                Word::ToSource(event) => source.handle(event, records, &mut new),
            },
        }
        said.extend(new);
        // Enough to choose from. The oldest are kept.
        said.truncate(256);
        assert!(
            !(source.runs && destination.runs),
            "two guests: {source:?} {destination:?}"
        );
    }
}
