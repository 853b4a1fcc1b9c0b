//! VLANs whose frames the guest no longer receives after a move to an old QEMU.
//!
//! A virtio-net card drops frames of VLANs that the guest has not set. QEMU before 8.2 empties the
//! table of VLANs after it has loaded a guest, also after its own migration.

use error_reporter::Report;
use serde_json::{Value, json};

use super::rx_filter;
use crate::qmp::{Client, Version};

/// From this version on, the table is kept (QEMU's commit 06b636a1e2ad).
const KEPT_SINCE: Version = Version::new(8, 2, 0);

/// The most VLANs of a card that are named.
const MAX_NAMED: usize = 8;

/// A note if the guest uses VLANs, and is not on a newer QEMU: then its destination is not on an
/// older one.
pub(crate) fn note(client: &mut Client) -> Option<String> {
    if client.version() >= KEPT_SINCE {
        return None;
    }
    client
        .execute(rx_filter::QUERY, json!({}))
        .inspect_err(|error| {
            tracing::warn!(error = %Report::new(error), "querying the VLANs of the guest's network cards");
        })
        .ok()
        .and_then(|answer| of_answer(&answer))
}

fn of_answer(answer: &Value) -> Option<String> {
    let filters = rx_filter::parse(answer).into_iter();
    let cards: Vec<_> = filters
        .filter(|filter| !filter.vlans.is_empty())
        .map(|mut filter| {
            filter.vlans.sort_unstable();
            let more = if filter.vlans.len() > MAX_NAMED {
                ", …"
            } else {
                ""
            };
            let vlans = filter.vlans.iter().take(MAX_NAMED).map(u16::to_string);
            let vlans: Vec<_> = vlans.collect();
            format!("{} (VLAN {}{more})", filter.name, vlans.join(", "))
        })
        .collect();
    (!cards.is_empty()).then(|| {
        format!(
            "the guest has set VLANs on its network card {}: if the destination's QEMU is older \
             than 8.2, it drops the frames that arrive in them, until the guest creates \
             its VLAN interfaces again",
            cards.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_with_vlans_are_named() {
        let card = |name: &str, state: &str, vlans: Vec<u16>| {
            json!({ "name": name, "vlan": state, "main-mac": "52:54:00:12:34:56",
                    "vlan-table": vlans, "unicast-table": [] })
        };
        assert_eq!(of_answer(&json!([])), None);
        let none = json!([
            card("net0", "normal", vec![0]),
            card("net1", "all", vec![5])
        ]);
        assert_eq!(of_answer(&none), None);
        let some = json!([
            card("net0", "normal", vec![7, 5, 0]),
            card("net1", "normal", (1..10).collect()),
        ]);
        let note = of_answer(&some).unwrap();
        assert!(
            note.contains(
                "card net0 (VLAN 5, 7) and net1 (VLAN 1, 2, 3, 4, 5, 6, 7, 8, …): if the \
                 destination's QEMU is older than 8.2, it drops"
            ),
            "{note}"
        );
    }
}
