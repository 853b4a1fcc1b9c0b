//! The kinds of messages that the relay distinguishes.

use hikkoshi_lab::relay::{Part, Passing, Towards};
use hikkoshi_wire::{Frame, HEADER_LEN, message_name};

/// The kinds of messages, by their names in the protocol.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MessageKind {
    /// Source: opens the control link.
    HelloControl,
    /// Source: opens the urgent link.
    HelloUrgent,
    /// Source: opens a background link.
    HelloBackground,
    /// Source: opens the link for a disk.
    HelloDisk,
    /// Destination: its greeting on any link.
    Greeting,
    /// Sent by the source.
    Offer,
    /// Sent by the destination.
    Accept,
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
    ShutDown,
    /// Destination: something was not done there.
    LeftToDo,
}

impl MessageKind {
    pub(super) fn name(self) -> String {
        format!("{self:?}")
    }
}

/// What the kind of what passes is called, also of kinds that no test asks for; `None` of bytes
/// that are not read.
pub(super) fn kind_name(passing: &Passing<'_>) -> Option<String> {
    let kind = match &passing.part {
        Part::Bytes => return None,
        Part::Hello(_) if passing.towards == Towards::Source => MessageKind::Greeting,
        Part::Hello(role) => return Some(format!("Hello{}", message_name(role))),
        Part::Message(message) => match message.frame {
            Frame::Compressed { .. } => MessageKind::Pages,
            Frame::Disk { .. } if is_flush(&passing.bytes[HEADER_LEN..]) => MessageKind::DiskFlush,
            Frame::Disk { .. } => MessageKind::DiskBytes,
            _ => return Some(message.name.clone()),
        },
    };
    Some(kind.name())
}

/// Whether QEMU's bytes on a disk's connection are a request to flush.
fn is_flush(payload: &[u8]) -> bool {
    // The beginning of a request in the NBD protocol, without and with extended headers: a number,
    // flags, and the kind 3.
    payload.windows(8).any(|request| {
        let known = [[0x25, 0x60, 0x95, 0x13], [0x21, 0xe4, 0x1c, 0x71]];
        known.iter().any(|known| request[..4] == *known) && request[6..] == [0, 3]
    })
}
