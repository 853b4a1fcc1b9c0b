//! The kinds of messages that the relay distinguishes.

use hikkoshi_wire::{ToDestination, ToSource, decode_control};

/// The kinds of messages, by their names in the protocol.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MessageKind {
    /// Source: opens the control link.
    HelloControl,
    /// Source: opens the urgent link.
    HelloUrgent,
    /// Source: opens a background link.
    HelloBackground,
    /// Source: opens the link for network frames.
    HelloFrames,
    /// Source: opens the link for a disk.
    HelloDisk,
    /// Destination: its greeting on any link.
    Greeting,
    /// Sent by the source.
    Offer,
    /// Sent by the destination.
    Warning,
    /// Sent by the destination.
    Accept,
    /// Sent by the destination.
    Refuse,
    /// Source: pages with content, on any link.
    Pages,
    /// Source: a zero mark.
    Zeros,
    /// Destination: a page request.
    Request,
    /// Destination: acknowledges pages on a background link.
    Ack,
    /// Either side: bytes of a disk's connection.
    DiskBytes,
    /// Source: the same, with QEMU's request to flush the disk. QEMU sends the first one when all
    /// is copied, and the second one when the guest is paused, as the last step of the copy.
    DiskFlush,
    /// Sent by the source.
    Discard,
    /// Sent by the source.
    DiscardEnd,
    /// Sent by the destination.
    Discarded,
    /// Sent by the source.
    DeviceStateChunk,
    /// Sent by the source.
    Switch,
    /// Sent by the destination.
    Ready,
    /// Sent by the source.
    Commit,
    /// Sent by the destination.
    GuestResumed,
    /// Sent by the destination.
    Complete,
    /// Sent by the source.
    Goodbye,
    /// Sent by either side.
    Cancel,
    /// Sent by the destination.
    Failed,
    /// Source: has returned.
    ResumeRequest,
    /// Sent by the destination.
    ResumeReply,
    /// Sent by the destination.
    Missing,
    /// Sent by the destination.
    MissingEnd,
    /// Sent by the source.
    Owed,
    /// Sent by the source.
    OwedEnd,
    /// Sent by the destination.
    Declined,
    /// Sent by the destination.
    GuestLost,
    /// Sent by the destination.
    ShutDown,
    /// Source: network frames.
    Frames,
    /// Sent by the source.
    FramesEnd,
    /// Sent by the destination.
    FramesDelivered,
    /// Sent by the source.
    MemoryLost,
    /// Sent by the source.
    Compare,
    /// Sent by the destination.
    Obstacle,
    /// Sent by the destination.
    Compared,
    /// Source: measures the line.
    Probe,
    /// Sent by the source.
    Echo,
    /// Sent by the destination.
    ProbeReady,
    /// Sent by the destination.
    Echoed,
    /// Destination: something was not done there.
    LeftToDo,
    /// Sent by the destination.
    ResumeTime,
}

/// What bytes of a disk's connection are that the source has sent.
pub(super) fn of_disk(payload: &[u8]) -> MessageKind {
    // The beginning of a request in the NBD protocol, without and with extended headers: a number,
    // flags, and the kind 3.
    let is_flush = |request: &[u8]| {
        let number = request.get(..4);
        let known = [[0x25, 0x60, 0x95, 0x13], [0x21, 0xe4, 0x1c, 0x71]];
        known.iter().any(|known| number == Some(known)) && request.get(6..8) == Some(&[0, 3])
    };
    match payload.windows(8).any(is_flush) {
        true => MessageKind::DiskFlush,
        false => MessageKind::DiskBytes,
    }
}

pub(super) fn from_source(payload: &[u8]) -> MessageKind {
    match decode_control::<ToDestination>(payload).unwrap() {
        ToDestination::Offer { .. } => MessageKind::Offer,
        ToDestination::Discard { .. } => MessageKind::Discard,
        ToDestination::DiscardEnd => MessageKind::DiscardEnd,
        ToDestination::DeviceStateChunk { .. } => MessageKind::DeviceStateChunk,
        ToDestination::Switch { .. } => MessageKind::Switch,
        ToDestination::Commit => MessageKind::Commit,
        ToDestination::Cancel { .. } => MessageKind::Cancel,
        ToDestination::Goodbye => MessageKind::Goodbye,
        ToDestination::ResumeRequest { .. } => MessageKind::ResumeRequest,
        ToDestination::Owed { .. } => MessageKind::Owed,
        ToDestination::OwedEnd { .. } => MessageKind::OwedEnd,
        ToDestination::Frames { .. } => MessageKind::Frames,
        ToDestination::FramesEnd => MessageKind::FramesEnd,
        ToDestination::MemoryLost { .. } => MessageKind::MemoryLost,
        ToDestination::Compare { .. } => MessageKind::Compare,
        ToDestination::Probe { .. } => MessageKind::Probe,
        ToDestination::Echo => MessageKind::Echo,
    }
}

pub(super) fn from_destination(payload: &[u8]) -> MessageKind {
    match decode_control::<ToSource>(payload).unwrap() {
        ToSource::Accept { .. } => MessageKind::Accept,
        ToSource::Refuse { .. } => MessageKind::Refuse,
        ToSource::Discarded => MessageKind::Discarded,
        ToSource::Ready => MessageKind::Ready,
        ToSource::Failed { .. } => MessageKind::Failed,
        ToSource::GuestResumed => MessageKind::GuestResumed,
        ToSource::Cancel { .. } => MessageKind::Cancel,
        ToSource::Complete { .. } => MessageKind::Complete,
        ToSource::ResumeReply { .. } => MessageKind::ResumeReply,
        ToSource::Missing { .. } => MessageKind::Missing,
        ToSource::MissingEnd { .. } => MessageKind::MissingEnd,
        ToSource::Declined { .. } => MessageKind::Declined,
        ToSource::GuestLost { .. } => MessageKind::GuestLost,
        ToSource::Warning { .. } => MessageKind::Warning,
        ToSource::ShutDown => MessageKind::ShutDown,
        ToSource::FramesDelivered { .. } => MessageKind::FramesDelivered,
        ToSource::Obstacle { .. } => MessageKind::Obstacle,
        ToSource::Compared { .. } => MessageKind::Compared,
        ToSource::ProbeReady { .. } => MessageKind::ProbeReady,
        ToSource::Echoed => MessageKind::Echoed,
        ToSource::LeftToDo { .. } => MessageKind::LeftToDo,
        ToSource::ResumeTime { .. } => MessageKind::ResumeTime,
    }
}
