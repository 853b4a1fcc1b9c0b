//! The addresses and VLANs that the guest has set on its network cards, by `query-rx-filter`.

use hikkoshi_network_frames::MacAddress;
use serde_json::Value;

use super::cards::parse_address;

/// The most VLANs in a table that lists the guest's: half of all. A fuller one says nothing.
///
/// QEMU 10.0.2 fills the table when the guest resets the card, and leaves it full when the guest
/// starts to filter (mended in 10.0.4). From then on the guest only removes VLANs that it has had.
/// Windows sets all by default.
const MAX_SET: usize = 4094 / 2;

/// What a network card receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RxFilter {
    /// QEMU's name of the card.
    pub(super) name: String,
    /// The guest's address of the card, and further ones.
    pub(super) addresses: Vec<MacAddress>,
    /// VLANs with a tag, 1 to 4094; empty as well if the guest does not tell the card.
    pub(super) vlans: Vec<u16>,
}

/// The command, without arguments. QEMU 7.2 and 10.0 answer for virtio-net cards only.
pub(crate) const QUERY: &str = "query-rx-filter";

/// The filters in QEMU's answer. Members of another form are skipped.
pub(super) fn parse(answer: &Value) -> Vec<RxFilter> {
    let filters = answer.as_array().into_iter().flatten();
    filters
        .filter_map(|filter| {
            let texts = |key: &str| filter[key].as_array().into_iter().flatten();
            let main = filter["main-mac"].as_str().and_then(parse_address)?;
            let further = texts("unicast-table").filter_map(|text| parse_address(text.as_str()?));
            // 0 marks priorities, not a VLAN.
            let vlans: Vec<u16> = texts("vlan-table")
                .filter_map(|vlan| u16::try_from(vlan.as_u64()?).ok())
                .filter(|vlan| (1..4095).contains(vlan))
                .collect();
            // In state `all` the card passes every VLAN, and its table says nothing.
            let tells = filter["vlan"].as_str() == Some("normal") && vlans.len() <= MAX_SET;
            let mut addresses = vec![main];
            addresses.extend(further.filter(|address| *address != main));
            Some(RxFilter {
                name: filter["name"].as_str()?.to_owned(),
                addresses,
                vlans: if tells { vlans } else { Vec::new() },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_and_vlans_of_cards() {
        let answer = json!([
            {
                "name": "net0", "promiscuous": false, "multicast": "normal", "unicast": "normal",
                "vlan": "normal", "broadcast-allowed": true, "multicast-overflow": false,
                "unicast-overflow": false, "main-mac": "52:54:00:12:34:56",
                "vlan-table": [0, 7, 4094, 4095], "multicast-table": ["01:00:5e:00:00:01"],
                "unicast-table": ["52:54:00:12:34:56", "02:00:00:00:00:07"]
            },
            {
                "name": "net1", "vlan": "all", "main-mac": "52:54:00:12:34:57",
                "vlan-table": [1, 2], "unicast-table": []
            },
            {
                "name": "net2", "vlan": "normal", "main-mac": "52:54:00:12:34:58",
                "vlan-table": (0..4096).collect::<Vec<u16>>(), "unicast-table": []
            },
            // The guest has removed VLAN 6.
            {
                "name": "net3", "vlan": "normal", "main-mac": "52:54:00:12:34:59",
                "vlan-table": (0..4096).filter(|vlan| *vlan != 6).collect::<Vec<u16>>(),
                "unicast-table": []
            },
            { "name": "odd", "main-mac": "x" },
        ]);
        let card = |name: &str, addresses: &[MacAddress], vlans: &[u16]| RxFilter {
            name: name.to_owned(),
            addresses: addresses.to_vec(),
            vlans: vlans.to_vec(),
        };
        assert_eq!(
            parse(&answer),
            [
                card(
                    "net0",
                    &[[0x52, 0x54, 0, 0x12, 0x34, 0x56], [2, 0, 0, 0, 0, 7]],
                    &[7, 4094]
                ),
                card("net1", &[[0x52, 0x54, 0, 0x12, 0x34, 0x57]], &[]),
                card("net2", &[[0x52, 0x54, 0, 0x12, 0x34, 0x58]], &[]),
                card("net3", &[[0x52, 0x54, 0, 0x12, 0x34, 0x59]], &[]),
            ]
        );
        assert_eq!(parse(&Value::Null), []);
    }
}
