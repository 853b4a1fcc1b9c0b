//! The destination's state machine.

use crate::stage::{DestinationStage, SourceStage};

/// An event at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DestinationEvent {
    /// An engine starts from a record.
    Restarted,
    /// The device state is loaded, and page requests would be answered.
    DeviceStateLoaded,
    /// The source sent *Commit*.
    Commit,
    /// The source cancelled the migration.
    CancelledBySource,
    /// No page is missing any more.
    AllPagesReceived,
    /// The guest ran here and shut itself down.
    ShutDown,
    /// The source has received *Complete* or *ShutDown*.
    Goodbye,
    /// A link was lost, or the source broke the protocol.
    LinkLost,
    /// The guest cannot run here: its process ended, or refused the device
    /// state.
    GuestFailed,
    /// The operator cancels the migration here.
    Cancelled,
    /// Resuming the guest failed, and it is certain that it never ran.
    GuestNeverRan,
    /// The operator gives the migration up here.
    GivenUp,
    /// A new connection. The source reported this stage.
    Connected(SourceStage),
}

impl DestinationEvent {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Restarted,
        Self::DeviceStateLoaded,
        Self::Commit,
        Self::CancelledBySource,
        Self::AllPagesReceived,
        Self::ShutDown,
        Self::Goodbye,
        Self::LinkLost,
        Self::GuestFailed,
        Self::Cancelled,
        Self::GuestNeverRan,
        Self::GivenUp,
        Self::Connected(SourceStage::Owned),
        Self::Connected(SourceStage::Committed),
        Self::Connected(SourceStage::HandedOver),
        Self::Connected(SourceStage::Done),
    ];
}

/// What the destination does, in the given order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DestinationAction {
    /// Record the new stage. Continue only after it is recorded.
    Record(DestinationStage),
    /// Send *Ready*.
    SendReady,
    /// Resume the guest here, if it does not run.
    ResumeGuest,
    /// Send *GuestResumed*.
    SendGuestResumed,
    /// Send *Complete*.
    SendComplete,
    /// Send *ShutDown*.
    SendShutDown,
    /// Send *Declined*, if a link is up.
    SendDeclined,
    /// Send *Cancel*, which asks the source to cancel.
    SendCancel,
    /// Send *ResumeReply* with this stage, and in [`DestinationStage::Ready`] and
    /// [`DestinationStage::Running`] the list of missing pages.
    SendResumeReply(DestinationStage),
    /// Drop the guest, which never ran here and never will.
    DiscardGuest,
    /// End the guest's process. The guest has run here and is lost.
    KillGuest,
    /// Remove the record: neither side needs it any more.
    Close,
    /// Keep the guest and all state, and wait for a new connection.
    Wait,
    /// The destination's part is finished.
    End,
}

/// The destination's state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    stage: DestinationStage,
}

impl Destination {
    /// A destination in `stage`: [`DestinationStage::Receiving`], or as
    /// recorded.
    pub fn new(stage: DestinationStage) -> Self {
        Self { stage }
    }

    /// The stage that the machine is in.
    pub fn stage(&self) -> DestinationStage {
        self.stage
    }

    /// Handles `event` and returns what to do.
    ///
    /// If a [`Record`](DestinationAction::Record) fails, the actions after it must
    /// not be performed, and the machine must be created again from the last
    /// recorded stage.
    pub fn on(&mut self, event: DestinationEvent) -> &'static [DestinationAction] {
        use DestinationAction::{
            Close, DiscardGuest, End, KillGuest, Record, ResumeGuest, SendCancel, SendComplete,
            SendDeclined, SendGuestResumed, SendReady, SendResumeReply, SendShutDown, Wait,
        };
        use DestinationEvent::{
            AllPagesReceived, Cancelled, CancelledBySource, Commit, Connected, DeviceStateLoaded,
            GivenUp, Goodbye, GuestFailed, GuestNeverRan, LinkLost, Restarted, ShutDown,
        };
        use DestinationStage::{Complete, Declined, Ready, Receiving, Running};
        use SourceStage as There;
        let (stage, actions): (_, &'static [DestinationAction]) = match (self.stage, event) {
            (Receiving, DeviceStateLoaded) => (Ready, &[Record(Ready), SendReady]),
            // *Ready* was not sent: the source resumes the guest without an answer.
            (Receiving, _) => (Declined, &[SendDeclined, DiscardGuest, Close, End]),

            (Ready, Commit) => (Running, &[Record(Running), ResumeGuest, SendGuestResumed]),
            (Ready, CancelledBySource | Connected(There::Owned)) => {
                (Declined, &[Record(Declined), DiscardGuest, Close, End])
            }
            // The source may wait for this answer, without a limit.
            (Ready, GuestFailed | GivenUp) | (Running, GuestNeverRan) => {
                (Declined, &[Record(Declined), SendDeclined])
            }
            // Only the source can still cancel.
            (Ready, Cancelled) => (Ready, &[SendCancel]),
            (Ready, Connected(There::Committed)) => (Ready, &[SendResumeReply(Ready)]),

            (Running, AllPagesReceived) => (Complete, &[Record(Complete), SendComplete]),
            // A guest that shut itself down needs no more pages: the source may drop
            // them.
            (Running, ShutDown) => (Complete, &[Record(Complete), SendShutDown]),
            (Running, Connected(There::Committed | There::HandedOver)) => {
                (Running, &[SendResumeReply(Running)])
            }
            (Running, Restarted) => (Running, &[ResumeGuest, Wait]),
            // A repeated *Commit*: the answer to the first one was lost.
            (Running | Complete, Commit) => (self.stage, &[SendGuestResumed]),
            // The guest has run here and cannot run any more: it is lost. The source
            // must not resume its older copy.
            (Running, GuestFailed) => (Running, &[End]),
            (Running, GivenUp) => (Running, &[KillGuest, Close, End]),
            (Complete, Connected(There::Committed | There::HandedOver | There::Done)) => {
                (Complete, &[SendResumeReply(Complete)])
            }
            (Complete, Restarted) => (Complete, &[ResumeGuest, Wait]),
            (Complete, Goodbye | GivenUp) => (Complete, &[Close, End]),
            // The migration is finished; the end of the guest does not concern it.
            (Complete, GuestFailed | GuestNeverRan | ShutDown) => (Complete, &[]),
            // Too late: the destination owns the guest.
            (Running | Complete, Cancelled) => (self.stage, &[]),
            (Ready | Running | Complete, _) => (self.stage, &[Wait]),

            // The source owns the guest and needs no answer any more.
            (Declined, CancelledBySource | Connected(There::Owned) | GivenUp) => {
                (Declined, &[DiscardGuest, Close, End])
            }
            (Declined, Connected(_)) => (Declined, &[SendResumeReply(Declined)]),
            (Declined, Restarted | LinkLost | Cancelled) => (Declined, &[DiscardGuest, Wait]),
            (Declined, _) => (Declined, &[]),
        };
        self.stage = stage;
        actions
    }
}
