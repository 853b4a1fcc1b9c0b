//! The messages that the relay can tell apart.

use hikkoshi_wire::{ToDestination, ToSource, decode_control};

/// What passes by. What the source says first: names of the protocol's messages.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MessageKind {
    /// The source opens the control link.
    HelloControl,
    /// The source opens the urgent link.
    HelloUrgent,
    /// The source opens the background link.
    HelloBackground,
    /// The destination's greeting on whichever link.
    Greeting,
    /// Source.
    Machine,
    /// Source.
    Processors,
    /// Source.
    Begin,
    /// Destination.
    Differs,
    /// Destination.
    Accept,
    /// Destination.
    Refuse,
    /// Source: contents of pages, on any link.
    Pages,
    /// Source: a mark.
    Zeros,
    /// Destination: a page request.
    Request,
    /// Destination: on the background link.
    Ack,
    /// Source.
    Discard,
    /// Source.
    DiscardEnd,
    /// Destination.
    Discarded,
    /// Source.
    DeviceStateChunk,
    /// Source.
    Switch,
    /// Destination.
    Ready,
    /// Source.
    Commit,
    /// Destination.
    Resumed,
    /// Destination.
    Complete,
    /// Destination.
    Measured,
    /// Source.
    Goodbye,
    /// Either.
    Cancel,
    /// Destination.
    Failed,
    /// Source: it is back.
    Here,
    /// Destination.
    Where,
    /// Destination.
    Missing,
    /// Destination.
    MissingEnd,
    /// Source.
    Owed,
    /// Source.
    OwedEnd,
    /// Destination.
    Declined,
    /// Destination.
    Perished,
    /// Destination.
    ShutDown,
}

pub(super) fn from_source(payload: &[u8]) -> MessageKind {
    match decode_control::<ToDestination>(payload).unwrap() {
        ToDestination::Begin { .. } => MessageKind::Begin,
        ToDestination::Discard { .. } => MessageKind::Discard,
        ToDestination::DiscardEnd => MessageKind::DiscardEnd,
        ToDestination::DeviceStateChunk { .. } => MessageKind::DeviceStateChunk,
        ToDestination::Switch { .. } => MessageKind::Switch,
        ToDestination::Commit => MessageKind::Commit,
        ToDestination::Cancel { .. } => MessageKind::Cancel,
        ToDestination::Goodbye => MessageKind::Goodbye,
        ToDestination::Here { .. } => MessageKind::Here,
        ToDestination::Owed { .. } => MessageKind::Owed,
        ToDestination::OwedEnd { .. } => MessageKind::OwedEnd,
        ToDestination::Processors { .. } => MessageKind::Processors,
        ToDestination::Machine { .. } => MessageKind::Machine,
    }
}

pub(super) fn from_destination(payload: &[u8]) -> MessageKind {
    match decode_control::<ToSource>(payload).unwrap() {
        ToSource::Accept { .. } => MessageKind::Accept,
        ToSource::Refuse { .. } => MessageKind::Refuse,
        ToSource::Discarded => MessageKind::Discarded,
        ToSource::Ready => MessageKind::Ready,
        ToSource::Failed { .. } => MessageKind::Failed,
        ToSource::Resumed => MessageKind::Resumed,
        ToSource::Cancel { .. } => MessageKind::Cancel,
        ToSource::Complete { .. } => MessageKind::Complete,
        ToSource::Measured { .. } => MessageKind::Measured,
        ToSource::Where { .. } => MessageKind::Where,
        ToSource::Missing { .. } => MessageKind::Missing,
        ToSource::MissingEnd { .. } => MessageKind::MissingEnd,
        ToSource::Declined { .. } => MessageKind::Declined,
        ToSource::Perished { .. } => MessageKind::Perished,
        ToSource::Differs { .. } => MessageKind::Differs,
        ToSource::ShutDown => MessageKind::ShutDown,
    }
}
