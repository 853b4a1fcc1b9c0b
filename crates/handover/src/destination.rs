//! The destination's machine.

use serde::{Deserialize, Serialize};

use super::SourceStage;

/// How far the destination is in taking the guest in. Recorded from
/// [`Ready`](Self::Ready) on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestinationStage {
    /// Memory and device state arrive; nothing was promised.
    Arriving,
    /// The guest could run here, and the source was told so: it may have
    /// handed it over.
    Ready,
    /// The guest is the destination's; pages may be missing.
    Runs,
    /// The guest is the destination's, and nothing of it is needed from the
    /// source: all of it is here, or it has ended itself here.
    Whole,
    /// The guest was never run here and never will be.
    Declined,
}

impl DestinationStage {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [
        Self::Arriving,
        Self::Ready,
        Self::Runs,
        Self::Whole,
        Self::Declined,
    ];
}

/// What happens to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DestinationEvent {
    /// The engine begins anew with what was recorded.
    Restarted,
    /// Device state is loaded, and page requests would be answered.
    Loaded,
    /// The source says *commit*.
    Commit,
    /// The source says that nothing comes of it.
    CalledOff,
    /// No page is missing any more.
    AllHere,
    /// The guest has run here and has ended itself (it powered off).
    ShutDown,
    /// The source has heard that everything is here.
    Goodbye,
    /// A link was lost, or the source says what it should not.
    Lost,
    /// The guest cannot run here: its process died, or did not take the
    /// device state.
    Broken,
    /// Somebody here wants it stopped.
    Cancelled,
    /// The guest was to be run, and it is known for sure that it never did.
    NeverRan,
    /// Somebody here gives the migration up, knowing what that means.
    GivenUp,
    /// A new connection; this is where the source says it is.
    Connected(SourceStage),
}

impl DestinationEvent {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Restarted,
        Self::Loaded,
        Self::Commit,
        Self::CalledOff,
        Self::AllHere,
        Self::ShutDown,
        Self::Goodbye,
        Self::Lost,
        Self::Broken,
        Self::Cancelled,
        Self::NeverRan,
        Self::GivenUp,
        Self::Connected(SourceStage::Keeps),
        Self::Connected(SourceStage::Committed),
        Self::Connected(SourceStage::Gone),
        Self::Connected(SourceStage::Done),
    ];
}

/// What the destination is to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DestinationAction {
    /// Record the new stage; go on only when it is recorded.
    Record(DestinationStage),
    /// Say *ready*.
    SayReady,
    /// Let the guest run here, if it does not.
    Run,
    /// Say *resumed*.
    SayResumed,
    /// Say *complete*.
    SayComplete,
    /// Say *shut down*.
    SayShutDown,
    /// Say *declined*, as well as that can be.
    SayDeclined,
    /// Ask the source to call it off.
    AskToCancel,
    /// Say that this is the stage, and in [`DestinationStage::Ready`] and
    /// [`DestinationStage::Runs`] which pages are missing.
    SayWhere(DestinationStage),
    /// Drop the guest, which was never run here and never will be.
    Drop,
    /// End the guest, which has run here, for good.
    Kill,
    /// What is recorded is of no use to anybody any more: remove it.
    Close,
    /// Keep the guest as it is, and everything for a new connection.
    Wait,
    /// Nothing more is to be done here.
    End,
}

/// The destination's side of the hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    stage: DestinationStage,
}

impl Destination {
    /// A destination in `stage`: [`DestinationStage::Arriving`], or as
    /// recorded.
    pub fn new(stage: DestinationStage) -> Self {
        Self { stage }
    }

    /// How far it is.
    pub fn stage(&self) -> DestinationStage {
        self.stage
    }

    /// Takes note of `event` and says what to do.
    ///
    /// When a [`Record`](DestinationAction::Record) fails, nothing behind it
    /// may be done, and the machine is to be made anew from the stage recorded
    /// last.
    pub fn on(&mut self, event: DestinationEvent) -> &'static [DestinationAction] {
        use DestinationAction::{
            AskToCancel, Close, Drop, End, Kill, Record, Run, SayComplete, SayDeclined, SayReady,
            SayResumed, SayShutDown, SayWhere, Wait,
        };
        use DestinationEvent::{
            AllHere, Broken, CalledOff, Cancelled, Commit, Connected, GivenUp, Goodbye, Loaded,
            Lost, NeverRan, Restarted, ShutDown,
        };
        use DestinationStage::{Arriving, Declined, Ready, Runs, Whole};
        use SourceStage as There;
        let (stage, actions): (_, &'static [DestinationAction]) = match (self.stage, event) {
            (Arriving, Loaded) => (Ready, &[Record(Ready), SayReady]),
            // Nothing was promised: the source needs no word to go on.
            (Arriving, _) => (Declined, &[SayDeclined, Drop, Close, End]),

            (Ready, Commit) => (Runs, &[Record(Runs), Run, SayResumed]),
            (Ready, CalledOff | Connected(There::Keeps)) => {
                (Declined, &[Record(Declined), Drop, Close, End])
            }
            // The source may wait for that word, and for ever.
            (Ready, Broken | GivenUp) | (Runs, NeverRan) => {
                (Declined, &[Record(Declined), SayDeclined])
            }
            // Only the source can still call it off.
            (Ready, Cancelled) => (Ready, &[AskToCancel]),
            (Ready, Connected(There::Committed)) => (Ready, &[SayWhere(Ready)]),

            (Runs, AllHere) => (Whole, &[Record(Whole), SayComplete]),
            // A guest that has ended itself needs no more pages: its source may
            // let go of them.
            (Runs, ShutDown) => (Whole, &[Record(Whole), SayShutDown]),
            (Runs, Connected(There::Committed | There::Gone)) => (Runs, &[SayWhere(Runs)]),
            (Runs, Restarted) => (Runs, &[Run, Wait]),
            // It was told so before, and the answer was lost.
            (Runs | Whole, Commit) => (self.stage, &[SayResumed]),
            // A guest that cannot run here any longer has run here, and cannot
            // be had back.
            (Runs, Broken) => (Runs, &[End]),
            (Runs, GivenUp) => (Runs, &[Kill, Close, End]),
            (Whole, Connected(There::Committed | There::Gone | There::Done)) => {
                (Whole, &[SayWhere(Whole)])
            }
            (Whole, Restarted) => (Whole, &[Run, Wait]),
            (Whole, Goodbye | GivenUp) => (Whole, &[Close, End]),
            // What becomes of it now is its own matter.
            (Whole, Broken | NeverRan | ShutDown) => (Whole, &[]),
            // Too late: it is nobody else's any more.
            (Runs | Whole, Cancelled) => (self.stage, &[]),
            (Ready | Runs | Whole, _) => (self.stage, &[Wait]),

            // It has the guest, and needs no word from here any more.
            (Declined, CalledOff | Connected(There::Keeps) | GivenUp) => {
                (Declined, &[Drop, Close, End])
            }
            (Declined, Connected(_)) => (Declined, &[SayWhere(Declined)]),
            (Declined, Restarted | Lost | Cancelled) => (Declined, &[Drop, Wait]),
            (Declined, _) => (Declined, &[]),
        };
        self.stage = stage;
        actions
    }
}
