//! The source's state machine.

use crate::stage::{DestinationStage, SourceStage};

/// An event at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// An engine starts from a record.
    Restarted,
    /// The destination is ready to run the guest, which is paused here.
    Ready,
    /// The destination reports that it runs the guest.
    GuestResumed,
    /// The destination has every page.
    Complete,
    /// The guest shut itself down at the destination: no more pages are needed.
    ShutDown,
    /// The destination reports a failure, but not that it declined.
    Failed,
    /// The destination has declined.
    Declined,
    /// A link was lost, or the destination broke the protocol.
    LinkLost,
    /// The operator cancels the migration here.
    Cancelled,
    /// The operator gives the migration up here, and guarantees that the
    /// destination does not run the guest and never will.
    GivenUp,
    /// A new connection. The destination reported this stage.
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

/// What the source does, in the given order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceAction {
    /// Record the new stage. Continue only after it is recorded.
    Record(SourceStage),
    /// Send *commit*.
    SendCommit,
    /// Resume the guest here, if it is paused (unless its owner had paused it).
    ResumeGuest,
    /// Send *Cancel*, if a link is up.
    SendCancel,
    /// Send the pages that are missing at the destination.
    SendPages,
    /// Remove the record: neither side needs it any more.
    Close,
    /// Keep the guest and all state, and wait for a new connection.
    Wait,
    /// The source's part is finished.
    End,
}

/// The source's state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    stage: SourceStage,
    /// [`SourceEvent::GuestResumed`] was received in this handover: the guest has
    /// run there. ([`SourceEvent::Connected`] reports only that it will.)
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

    /// The stage that the machine is in.
    pub fn stage(&self) -> SourceStage {
        self.stage
    }

    /// Handles `event` and returns what to do.
    ///
    /// If a [`Record`](SourceAction::Record) fails, the actions after it must not
    /// be performed, and the machine must be created again from the last recorded
    /// stage. If a [`ResumeGuest`](SourceAction::ResumeGuest) fails, a
    /// [`Close`](SourceAction::Close) after it must not be performed.
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
            // Whatever the destination reports: it was never allowed to run the
            // guest.
            (Owned, Restarted | GivenUp) => (Owned, &[ResumeGuest, Close, End]),
            (Owned, _) => (Owned, &[ResumeGuest, SendCancel, Close, End]),

            (Committed, GuestResumed | Connected(There::Running)) => {
                (HandedOver, &[Record(HandedOver), SendPages])
            }
            (Committed | HandedOver, Complete | ShutDown | Connected(There::Complete)) => {
                (Done, &[Record(Done), Close, End])
            }
            (Committed, Connected(There::Ready)) => (Committed, &[SendCommit]),
            // A destination that has run the guest cannot have declined: the guest
            // would run twice.
            (HandedOver, Declined | Connected(There::Declined)) if self.resumed => {
                (HandedOver, &[Wait])
            }
            // This includes a destination that reported that it would run the guest,
            // and then could not.
            (Committed | HandedOver, Declined | Connected(There::Declined)) => {
                (Owned, &[Record(Owned), ResumeGuest, SendCancel, Close, End])
            }
            (Committed | HandedOver, GivenUp) => (Owned, &[Record(Owned), ResumeGuest, Close, End]),
            (HandedOver, Connected(There::Running)) => (HandedOver, &[SendPages]),
            // Too late: the destination needs the pages that are here.
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
