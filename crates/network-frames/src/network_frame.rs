//! An Ethernet frame.

/// The address of a network card.
pub type MacAddress = [u8; 6];

/// The length of [`NetworkFrame::offload`] in bytes: `struct virtio_net_hdr` in
/// `linux/virtio_net.h`.
pub const OFFLOAD_LEN: usize = 10;

/// The longest frame, in bytes: a segment of 64 KiB with its Ethernet header and two
/// VLAN tags.
pub const MAX_NETWORK_FRAME: usize = (64 << 10) + 22;

/// Where the VLAN tag of a frame is: after both addresses.
const TAG_AT: usize = 12;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`
const NEEDS_CHECKSUM: u8 = 1;

/// An Ethernet frame, without its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkFrame {
    /// What a network device has to do before the frame is complete: `struct
    /// virtio_net_hdr`.
    pub offload: [u8; OFFLOAD_LEN],
    /// From the destination address on.
    pub bytes: Vec<u8>,
}

impl NetworkFrame {
    /// Whether the frame is addressed to several stations (broadcast, multicast).
    pub fn is_group(&self) -> bool {
        self.bytes.first().is_none_or(|first| first & 1 == 1)
    }

    /// The address of the station that sent it; `None` for a frame without addresses.
    pub fn source(&self) -> Option<MacAddress> {
        self.bytes.get(6..12)?.try_into().ok()
    }

    /// Inserts a VLAN tag (IEEE 802.1Q, section 9.6) that the kernel stores beside the
    /// frame. Nothing is inserted into a frame without addresses.
    pub(crate) fn insert_tag(&mut self, protocol: u16, control: u16) {
        if self.bytes.len() < TAG_AT {
            return;
        }
        let [a, b] = protocol.to_be_bytes();
        let [c, d] = control.to_be_bytes();
        self.bytes.splice(TAG_AT..TAG_AT, [a, b, c, d]);
        // Offsets in the frame move with it: the header's length, and where the checksum starts.
        let [
            flags,
            kind,
            length_low,
            length_high,
            _,
            _,
            start_low,
            start_high,
            ..,
        ] = &mut self.offload;
        let moved = |low: &mut u8, high: &mut u8| {
            let offset = u16::from_ne_bytes([*low, *high]).wrapping_add(4);
            [*low, *high] = offset.to_ne_bytes();
        };
        if *flags & NEEDS_CHECKSUM != 0 {
            moved(start_low, start_high);
        }
        if *kind != 0 {
            moved(length_low, length_high);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test's failure is its message")]
mod tests {
    use super::*;

    #[test]
    fn a_tag_moves_what_the_checksum_starts_at() {
        let bytes: Vec<u8> = (0..60).collect();
        let mut frame = NetworkFrame {
            offload: [NEEDS_CHECKSUM, 0, 0, 0, 0, 0, 34, 0, 6, 0],
            bytes: bytes.clone(),
        };
        frame.insert_tag(0x8100, 7);
        assert_eq!(frame.bytes.len(), 64);
        assert_eq!(frame.bytes[..12], bytes[..12]);
        assert_eq!(frame.bytes[12..16], [0x81, 0, 0, 7]);
        assert_eq!(frame.bytes[16..], bytes[12..]);
        assert_eq!(
            frame.offload,
            [NEEDS_CHECKSUM, 0, 0, 0, 0, 0, 38, 0, 6, 0],
            "the offset within the checksummed part stays"
        );
    }

    #[test]
    fn a_complete_frame_has_no_offsets_to_move() {
        let mut frame = NetworkFrame {
            offload: [0; OFFLOAD_LEN],
            bytes: vec![0; 60],
        };
        frame.insert_tag(0x8100, 7);
        assert_eq!(frame.offload, [0; OFFLOAD_LEN]);
        let mut short = NetworkFrame::default();
        short.insert_tag(0x8100, 7);
        assert_eq!(short, NetworkFrame::default());
    }

    #[test]
    fn the_source_is_behind_the_destination() {
        let frame = NetworkFrame {
            bytes: (0..14).collect(),
            ..NetworkFrame::default()
        };
        assert_eq!(frame.source(), Some([6, 7, 8, 9, 10, 11]));
        assert_eq!(NetworkFrame::default().source(), None);
    }

    #[test]
    fn broadcast_and_multicast_are_group_frames() {
        for (first, group) in [(0xff, true), (0x33, true), (0x01, true), (0x52, false)] {
            let frame = NetworkFrame {
                bytes: vec![first; 14],
                ..NetworkFrame::default()
            };
            assert_eq!(frame.is_group(), group, "{first:#x}");
        }
    }
}
