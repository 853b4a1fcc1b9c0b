//! The source's machine.

use serde::{Deserialize, Serialize};

use super::DestinationStage;

/// How far the source is in giving its guest away. Recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceStage {
    /// The guest is the source's.
    Keeps,
    /// *Commit* may have been sent: whose guest it is, the destination knows.
    Committed,
    /// The destination runs the guest and may still lack pages.
    Gone,
    /// The destination has everything.
    Done,
}

impl SourceStage {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Keeps, Self::Committed, Self::Gone, Self::Done];
}

/// What happens to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// The engine begins anew with what was recorded.
    Restarted,
    /// The destination could run the guest, which stands still here.
    Ready,
    /// The destination says that it runs the guest.
    Resumed,
    /// The destination has every page.
    Complete,
    /// The destination has run the guest, which has ended itself there: no page
    /// is needed any more.
    ShutDown,
    /// The destination says that something went wrong there, but not that it
    /// has declined.
    Failed,
    /// The destination has declined.
    Declined,
    /// A link was lost, or the destination says what it should not.
    Lost,
    /// Somebody here wants it stopped.
    Cancelled,
    /// Somebody here gives the migration up, and answers for it that the
    /// destination never runs the guest, or not any more.
    GivenUp,
    /// A new connection; this is where the destination says it is.
    Connected(DestinationStage),
}

impl SourceEvent {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Restarted,
        Self::Ready,
        Self::Resumed,
        Self::Complete,
        Self::ShutDown,
        Self::Failed,
        Self::Declined,
        Self::Lost,
        Self::Cancelled,
        Self::GivenUp,
        Self::Connected(DestinationStage::Arriving),
        Self::Connected(DestinationStage::Ready),
        Self::Connected(DestinationStage::Runs),
        Self::Connected(DestinationStage::Whole),
        Self::Connected(DestinationStage::Declined),
    ];
}

/// What the source is to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceAction {
    /// Record the new stage; go on only when it is recorded.
    Record(SourceStage),
    /// Send *commit*.
    Commit,
    /// Let the guest run here, if it does not (and its owner had not paused
    /// it).
    Resume,
    /// Tell the destination that nothing comes of it, as well as that can be.
    CallOff,
    /// Send the pages that the destination lacks.
    Serve,
    /// What is recorded is of no use to anybody any more: remove it.
    Close,
    /// Keep the guest as it is, and everything for a new connection.
    Wait,
    /// Nothing more is to be done here.
    End,
}

/// The source's side of the hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    stage: SourceStage,
    /// It was heard that the guest runs there. (Not that it will: that is what
    /// [`SourceEvent::Connected`] tells.)
    resumed: bool,
}

impl Source {
    /// A source in `stage`: [`SourceStage::Keeps`], or as recorded.
    pub fn new(stage: SourceStage) -> Self {
        Self {
            stage,
            resumed: false,
        }
    }

    /// How far it is.
    pub fn stage(&self) -> SourceStage {
        self.stage
    }

    /// Takes note of `event` and says what to do.
    ///
    /// When a [`Record`](SourceAction::Record) fails, nothing behind it may be
    /// done, and the machine is to be made anew from the stage recorded last.
    /// When a [`Resume`](SourceAction::Resume) fails, a
    /// [`Close`](SourceAction::Close) behind it may not be done.
    pub fn on(&mut self, event: SourceEvent) -> &'static [SourceAction] {
        use DestinationStage as There;
        use SourceAction::{CallOff, Close, Commit, End, Record, Resume, Serve, Wait};
        use SourceEvent::{
            Cancelled, Complete, Connected, Declined, Failed, GivenUp, Lost, Ready, Restarted,
            Resumed, ShutDown,
        };
        use SourceStage::{Committed, Done, Gone, Keeps};
        let (stage, actions): (_, &'static [SourceAction]) = match (self.stage, event) {
            (Keeps, Ready) => (Committed, &[Record(Committed), Commit]),
            // Whatever else happens, whatever the destination claims: nobody
            // was allowed to run it there.
            (Keeps, Restarted | GivenUp) => (Keeps, &[Resume, Close, End]),
            (Keeps, _) => (Keeps, &[Resume, CallOff, Close, End]),

            (Committed, Resumed | Connected(There::Runs)) => (Gone, &[Record(Gone), Serve]),
            (Committed | Gone, Complete | ShutDown | Connected(There::Whole)) => {
                (Done, &[Record(Done), Close, End])
            }
            (Committed, Connected(There::Ready)) => (Committed, &[Commit]),
            // Whoever has run it cannot have declined: it would run twice.
            (Gone, Declined | Connected(There::Declined)) if self.resumed => (Gone, &[Wait]),
            // Also one that has said that it would run it, and could not.
            (Committed | Gone, Declined | Connected(There::Declined)) => {
                (Keeps, &[Record(Keeps), Resume, CallOff, Close, End])
            }
            (Committed | Gone, GivenUp) => (Keeps, &[Record(Keeps), Resume, Close, End]),
            (Gone, Connected(There::Runs)) => (Gone, &[Serve]),
            // Too late: the destination needs what is here.
            (Committed | Gone, Cancelled) => (self.stage, &[]),
            (Committed | Gone, Restarted | Lost | Failed | Ready | Resumed | Connected(_)) => {
                (self.stage, &[Wait])
            }

            (Done, _) => (Done, &[Close, End]),
        };
        let resumed = self.resumed || (self.stage == Committed && event == Resumed);
        self.resumed = stage == Gone && resumed;
        self.stage = stage;
        actions
    }
}
