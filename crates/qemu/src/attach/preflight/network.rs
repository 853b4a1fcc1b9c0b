//! Network backends. A network card's type does not show its backend.

use serde_json::json;

use crate::qmp::{Client, QmpError};

/// A network card or its backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// The type as for `-netdev`; `nic` for a card.
    pub(crate) kind: String,
    /// What QEMU prints after the type.
    pub(crate) info: String,
}

/// All network cards and backends.
pub(crate) fn peers(client: &mut Client) -> Result<Vec<Peer>, QmpError> {
    let command = "info network";
    let answer = client.execute("human-monitor-command", json!({ "command-line": command }))?;
    let text = answer
        .as_str()
        .ok_or_else(|| QmpError::unexpected(command, "not a text"))?;
    parse(text).map_err(|line| QmpError::unexpected(command, line.to_owned()))
}

/// `n0: index=0,type=user,net=…`, possibly after ` \ `, or after the port
/// of a hub (` \ h0: n0: index=…`). There are also the names of hubs, their ports, and filters
/// (`print_net_client` and `net_hub_info` in QEMU's `net/`). The error is a line of any other form:
/// a backend that is overlooked could write to the guest's memory.
fn parse(text: &str) -> Result<Vec<Peer>, &str> {
    let mut peers = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let below = line.strip_prefix('\\').map(str::trim_start);
        let Some((name, rest)) = below.unwrap_or(line).split_once(": index=") else {
            let is_hub = line
                .strip_prefix("hub ")
                .is_some_and(|number| number.parse::<u32>().is_ok());
            let is_port = below.is_some_and(|port| !port.contains(':'));
            let is_filter = line.starts_with("- ") && line.contains(": type=");
            if is_hub || is_port || is_filter || line == "filters:" {
                continue;
            }
            return Err(line);
        };
        let (_, rest) = rest.split_once(",type=").ok_or(line)?;
        let (kind, info) = rest.split_once(',').unwrap_or((rest, ""));
        peers.push(Peer {
            name: name.to_owned(),
            kind: kind.to_owned(),
            info: info.to_owned(),
        });
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::scripted;

    fn kinds(text: &str) -> Vec<(String, String)> {
        let peers = parse(text).unwrap();
        peers
            .into_iter()
            .map(|peer| (peer.name, peer.kind))
            .collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = |&(name, kind): &(&str, &str)| (name.to_owned(), kind.to_owned());
        expected.iter().map(own).collect()
    }

    #[test]
    fn backends_of_both_versions() {
        let captured = "hub 1\r\n \\ h2: u2: index=0,type=user,net=10.0.2.0,restrict=off\r\n \\ h\r\n\
            st: index=0,type=stream,initializing\r\n\
            s: index=0,type=socket,\r\n\
            filters:\r\n  - fd: type=filter-dump,file=/tmp/dump,netdev=s,queue=all\r\n\
            virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \
            \\ n0: index=0,type=vhost-user,net=10.0.2.0,restrict=off\r\n\r\n";
        assert_eq!(
            kinds(captured),
            pairs(&[
                ("h2: u2", "user"),
                ("st", "stream"),
                ("s", "socket"),
                ("virtio-net-pci.0", "nic"),
                ("n0", "vhost-user"),
            ])
        );
        assert_eq!(kinds(""), pairs(&[]));
    }

    #[test]
    fn a_line_of_another_form_is_not_passed_over() {
        for line in [
            "n0: index=0,kind=odd",
            "n0: queue=0,type=vhost-user",
            "hub one",
            "\\ n0: backend=vhost-user",
            "unknown command: 'info network'",
        ] {
            assert_eq!(parse(&format!("hub 0\r\n{line}\r\n")), Err(line));
        }
    }

    #[test]
    fn an_answer_of_another_form_is_not_a_guest_without_backends() {
        let (mut client, _qemu) = scripted::session(|_| Ok(json!({})));
        let error = peers(&mut client).unwrap_err().to_string();
        assert!(
            error.contains("info network") && error.contains("not a text"),
            "{error}"
        );
    }

    #[test]
    fn the_mode_of_passt_is_reported() {
        let text = " \\ #net006: index=0,type=passt,vhost-user,connected to pid 25731\r\n";
        let peers = parse(text).unwrap();
        let [peer] = peers.as_slice() else {
            panic!("{peers:?}");
        };
        assert_eq!(
            (&*peer.kind, &*peer.info),
            ("passt", "vhost-user,connected to pid 25731")
        );
    }
}
