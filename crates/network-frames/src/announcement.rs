//! Frames that tell switches where a station is.

use crate::network_frame::MacAddress;

/// The shortest Ethernet frame, without its checksum (IEEE 802.3, section 4A.4.2).
const MIN_LEN: usize = 60;

/// EtherTypes: a VLAN tag, and RARP.
const VLAN: u16 = 0x8100;
const RARP: u16 = 0x8035;

/// An announcement of the station `address` in a VLAN (1 to 4094; `None`: without a tag): a reverse
/// ARP request (RFC 903), as QEMU announces a card. Nothing answers it, but each switch that it
/// passes learns the address.
pub fn announcement(address: MacAddress, vlan: Option<u16>) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(address);
    if let Some(vlan) = vlan {
        frame.extend(VLAN.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(RARP.to_be_bytes());
    // Hardware type Ethernet, protocol type IPv4, lengths of both addresses, "reverse request".
    frame.extend([0, 1, 8, 0, 6, 4, 0, 3]);
    for _ in ["sender", "target"] {
        frame.extend(address);
        frame.extend([0; 4]);
    }
    frame.resize(frame.len().max(MIN_LEN), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: MacAddress = [0x52, 0x54, 0, 1, 2, 3];

    #[test]
    fn a_station_is_announced_to_all() {
        let frame = announcement(STATION, None);
        assert_eq!(frame.len(), MIN_LEN);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[6..12], STATION);
        assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!(frame[22..28], STATION);
        assert_eq!(frame[32..38], STATION);
    }

    #[test]
    fn a_tag_is_between_addresses_and_type() {
        let (plain, tagged) = (
            announcement(STATION, None),
            announcement(STATION, Some(0x123)),
        );
        assert_eq!(tagged[..12], plain[..12]);
        assert_eq!(tagged[12..16], [0x81, 0, 1, 0x23]);
        assert_eq!(tagged[16..46], plain[12..42]);
    }
}
