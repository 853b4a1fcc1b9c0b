//! The source's machine.

use serde::{Deserialize, Serialize};

use super::DestinationStage;

/// How far the source is in giving its guest away. Recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceStage {
    /// The guest is the source's.
    // The serde names are those in journals of released versions.
    #[serde(rename = "keeps")]
    Owned,
    /// *Commit* may have been sent: whose guest it is, the destination knows.
    Committed,
    /// The destination runs the guest and may still lack pages.
    #[serde(rename = "gone")]
    HandedOver,
    /// The destination has everything.
    Done,
}

impl SourceStage {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Owned, Self::Committed, Self::HandedOver, Self::Done];
}

/// What happens to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// The engine begins anew with what was recorded.
    Restarted,
    /// The destination could run the guest, which stands still here.
    Ready,
    /// The destination says that it runs the guest.
    GuestResumed,
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
    LinkLost,
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
        Self::GuestResumed,
        Self::Complete,
        Self::ShutDown,
        Self::Failed,
        Self::Declined,
        Self::LinkLost,
        Self::Cancelled,
        Self::GivenUp,
        Self::Connected(DestinationStage::Receiving),
        Self::Connected(DestinationStage::Ready),
        Self::Connected(DestinationStage::Running),
        Self::Connected(DestinationStage::Complete),
        Self::Connected(DestinationStage::Declined),
    ];
}

/// What the source is to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceAction {
    /// Record the new stage; go on only when it is recorded.
    Record(SourceStage),
    /// Send *commit*.
    SendCommit,
    /// Let the guest run here, if it does not (and its owner had not paused
    /// it).
    ResumeGuest,
    /// Tell the destination that nothing comes of it, as well as that can be.
    SendCancel,
    /// Send the pages that the destination lacks.
    SendPages,
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
    /// A source in `stage`: [`SourceStage::Owned`], or as recorded.
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
    /// When a [`ResumeGuest`](SourceAction::ResumeGuest) fails, a
    /// [`Close`](SourceAction::Close) behind it may not be done.
    pub fn on(&mut self, event: SourceEvent) -> &'static [SourceAction] {
        use DestinationStage as There;
        use SourceAction::{
            Close, End, Record, ResumeGuest, SendCancel, SendCommit, SendPages, Wait,
        };
        use SourceEvent::{
            Cancelled, Complete, Connected, Declined, Failed, GivenUp, GuestResumed, LinkLost,
            Ready, Restarted, ShutDown,
        };
        use SourceStage::{Committed, Done, HandedOver, Owned};
        let (stage, actions): (_, &'static [SourceAction]) = match (self.stage, event) {
            (Owned, Ready) => (Committed, &[Record(Committed), SendCommit]),
            // Whatever else happens, whatever the destination claims: nobody
            // was allowed to run it there.
            (Owned, Restarted | GivenUp) => (Owned, &[ResumeGuest, Close, End]),
            (Owned, _) => (Owned, &[ResumeGuest, SendCancel, Close, End]),

            (Committed, GuestResumed | Connected(There::Running)) => {
                (HandedOver, &[Record(HandedOver), SendPages])
            }
            (Committed | HandedOver, Complete | ShutDown | Connected(There::Complete)) => {
                (Done, &[Record(Done), Close, End])
            }
            (Committed, Connected(There::Ready)) => (Committed, &[SendCommit]),
            // Whoever has run it cannot have declined: it would run twice.
            (HandedOver, Declined | Connected(There::Declined)) if self.resumed => {
                (HandedOver, &[Wait])
            }
            // Also one that has said that it would run it, and could not.
            (Committed | HandedOver, Declined | Connected(There::Declined)) => {
                (Owned, &[Record(Owned), ResumeGuest, SendCancel, Close, End])
            }
            (Committed | HandedOver, GivenUp) => (Owned, &[Record(Owned), ResumeGuest, Close, End]),
            (HandedOver, Connected(There::Running)) => (HandedOver, &[SendPages]),
            // Too late: the destination needs what is here.
            (Committed | HandedOver, Cancelled) => (self.stage, &[]),
            (
                Committed | HandedOver,
                Restarted | LinkLost | Failed | Ready | GuestResumed | Connected(_),
            ) => (self.stage, &[Wait]),

            (Done, _) => (Done, &[Close, End]),
        };
        let resumed = self.resumed || (self.stage == Committed && event == GuestResumed);
        self.resumed = stage == HandedOver && resumed;
        self.stage = stage;
        actions
    }
}
