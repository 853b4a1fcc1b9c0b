//! The destination's machine.

use serde::{Deserialize, Serialize};

use super::SourceStage;

/// How far the destination is in taking the guest in. Recorded from
/// [`Ready`](Self::Ready) on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestinationStage {
    /// Memory and device state arrive; nothing was promised.
    // The serde names are those in journals of released versions.
    #[serde(rename = "arriving")]
    Receiving,
    /// The guest could run here, and the source was told so: it may have
    /// handed it over.
    Ready,
    /// The guest is the destination's; pages may be missing.
    #[serde(rename = "runs")]
    Running,
    /// The guest is the destination's, and nothing of it is needed from the
    /// source: all of it is here, or it has ended itself here.
    #[serde(rename = "whole")]
    Complete,
    /// The guest was never run here and never will be.
    Declined,
}

impl DestinationStage {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [
        Self::Receiving,
        Self::Ready,
        Self::Running,
        Self::Complete,
        Self::Declined,
    ];
}

/// What happens to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DestinationEvent {
    /// The engine begins anew with what was recorded.
    Restarted,
    /// Device state is loaded, and page requests would be answered.
    DeviceStateLoaded,
    /// The source says *commit*.
    Commit,
    /// The source says that nothing comes of it.
    CancelledBySource,
    /// No page is missing any more.
    AllPagesReceived,
    /// The guest has run here and has ended itself (it powered off).
    ShutDown,
    /// The source has heard that everything is here.
    Goodbye,
    /// A link was lost, or the source says what it should not.
    LinkLost,
    /// The guest cannot run here: its process died, or did not take the
    /// device state.
    GuestFailed,
    /// Somebody here wants it stopped.
    Cancelled,
    /// The guest was to be run, and it is known for sure that it never did.
    GuestNeverRan,
    /// Somebody here gives the migration up, knowing what that means.
    GivenUp,
    /// A new connection; this is where the source says it is.
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

/// What the destination is to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DestinationAction {
    /// Record the new stage; go on only when it is recorded.
    Record(DestinationStage),
    /// Say *ready*.
    SendReady,
    /// Let the guest run here, if it does not.
    ResumeGuest,
    /// Say *resumed*.
    SendGuestResumed,
    /// Say *complete*.
    SendComplete,
    /// Say *shut down*.
    SendShutDown,
    /// Say *declined*, as well as that can be.
    SendDeclined,
    /// Ask the source to call it off.
    SendCancel,
    /// Say that this is the stage, and in [`DestinationStage::Ready`] and
    /// [`DestinationStage::Running`] which pages are missing.
    SendResumeReply(DestinationStage),
    /// Drop the guest, which was never run here and never will be.
    DiscardGuest,
    /// End the guest, which has run here, for good.
    KillGuest,
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
    /// A destination in `stage`: [`DestinationStage::Receiving`], or as
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
            // Nothing was promised: the source needs no word to go on.
            (Receiving, _) => (Declined, &[SendDeclined, DiscardGuest, Close, End]),

            (Ready, Commit) => (Running, &[Record(Running), ResumeGuest, SendGuestResumed]),
            (Ready, CancelledBySource | Connected(There::Owned)) => {
                (Declined, &[Record(Declined), DiscardGuest, Close, End])
            }
            // The source may wait for that word, and for ever.
            (Ready, GuestFailed | GivenUp) | (Running, GuestNeverRan) => {
                (Declined, &[Record(Declined), SendDeclined])
            }
            // Only the source can still call it off.
            (Ready, Cancelled) => (Ready, &[SendCancel]),
            (Ready, Connected(There::Committed)) => (Ready, &[SendResumeReply(Ready)]),

            (Running, AllPagesReceived) => (Complete, &[Record(Complete), SendComplete]),
            // A guest that has ended itself needs no more pages: its source may
            // let go of them.
            (Running, ShutDown) => (Complete, &[Record(Complete), SendShutDown]),
            (Running, Connected(There::Committed | There::HandedOver)) => {
                (Running, &[SendResumeReply(Running)])
            }
            (Running, Restarted) => (Running, &[ResumeGuest, Wait]),
            // It was told so before, and the answer was lost.
            (Running | Complete, Commit) => (self.stage, &[SendGuestResumed]),
            // A guest that cannot run here any longer has run here, and cannot
            // be had back.
            (Running, GuestFailed) => (Running, &[End]),
            (Running, GivenUp) => (Running, &[KillGuest, Close, End]),
            (Complete, Connected(There::Committed | There::HandedOver | There::Done)) => {
                (Complete, &[SendResumeReply(Complete)])
            }
            (Complete, Restarted) => (Complete, &[ResumeGuest, Wait]),
            (Complete, Goodbye | GivenUp) => (Complete, &[Close, End]),
            // What becomes of it now is its own matter.
            (Complete, GuestFailed | GuestNeverRan | ShutDown) => (Complete, &[]),
            // Too late: it is nobody else's any more.
            (Running | Complete, Cancelled) => (self.stage, &[]),
            (Ready | Running | Complete, _) => (self.stage, &[Wait]),

            // It has the guest, and needs no word from here any more.
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
