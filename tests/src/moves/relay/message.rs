//! The kinds of messages that the relay distinguishes.

use hikkoshi_lab::relay::{Part, Passing, Towards};
use hikkoshi_wire::{Frame, HEADER_LEN, message_name};

/// The kinds of messages, by their names in the protocol.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(test, derive(serde::Deserialize))]
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
            Frame::Disk { .. }
                if passing.towards == Towards::Destination
                    && is_flush(&passing.bytes[HEADER_LEN..]) =>
            {
                MessageKind::DiskFlush
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_lab::relay::Message;
    use hikkoshi_pages::{Page, PageRange};
    use hikkoshi_wire::{CompressionMethod, Role, ToDestination, ToSource};
    use serde::de::DeserializeOwned;

    /// The names that an enumeration has.
    fn names<T: DeserializeOwned>() -> Vec<String> {
        // All are in the error: "unknown variant `?`, expected one of `A`, `B`".
        let Err(error) = serde_json::from_str::<T>("\"?\"") else {
            panic!("'?' is a name");
        };
        let error = error.to_string();
        let names = error.split('`').skip(3).step_by(2);
        names.map(ToOwned::to_owned).collect()
    }

    fn named(towards: Towards, part: Part, bytes: &mut [u8]) -> String {
        let passing = Passing {
            link: 1,
            towards,
            part,
            bytes,
        };
        kind_name(&passing).unwrap()
    }

    fn of_frame(towards: Towards, frame: Frame, payload: &[u8]) -> String {
        let message = Message {
            role: Role::Control,
            towards,
            frame,
            name: message_name(&frame),
            control: None,
        };
        let mut bytes = [&[0; HEADER_LEN], payload].concat();
        named(towards, Part::Message(message), &mut bytes)
    }

    #[test]
    fn each_kind_is_one_of_the_protocol() {
        let mut known = [names::<ToDestination>(), names::<ToSource>()].concat();
        let index = 0;
        for role in [
            Role::Control,
            Role::Urgent,
            Role::Background { index },
            Role::Disk { index },
        ] {
            known.push(named(Towards::Destination, Part::Hello(role), &mut []));
            let answer = named(Towards::Source, Part::Hello(role), &mut []);
            assert_eq!(answer, MessageKind::Greeting.name());
            known.push(answer);
        }
        let range = PageRange::from_len(Page::new(0), 1);
        for frame in [
            Frame::Pages { range },
            Frame::Zeros { range },
            Frame::Request { range },
            Frame::Ack { bytes: 1 },
        ] {
            known.push(of_frame(Towards::Destination, frame, &[]));
        }
        let method = CompressionMethod::Zstd;
        let compressed = Frame::Compressed {
            range,
            method,
            len: 1,
        };
        let compressed = of_frame(Towards::Destination, compressed, &[0]);
        assert_eq!(compressed, MessageKind::Pages.name());
        // A request to write and one to flush.
        let request = |kind| [0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind];
        for (towards, kind, expected) in [
            (Towards::Destination, 1, MessageKind::DiskBytes),
            (Towards::Destination, 3, MessageKind::DiskFlush),
            (Towards::Source, 3, MessageKind::DiskBytes),
        ] {
            let name = of_frame(towards, Frame::Disk { len: 8 }, &request(kind));
            assert_eq!(name, expected.name());
            known.push(name);
        }
        let kinds = names::<MessageKind>();
        assert!(kinds.len() > 20 && known.len() > 40, "{kinds:?}, {known:?}");
        let unknown: Vec<_> = kinds.iter().filter(|kind| !known.contains(kind)).collect();
        assert!(unknown.is_empty(), "no message is called {unknown:?}");
    }
}
