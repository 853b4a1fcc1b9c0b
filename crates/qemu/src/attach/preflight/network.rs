//! Network backends. A network card's type does not show its backend.

use serde_json::json;

use crate::qmp::{Client, QmpError};

/// A network card or its backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// The type as for `-netdev`; `nic` for a card.
    pub(crate) kind: String,
}

/// All network cards and backends.
pub(crate) fn peers(client: &mut Client) -> Result<Vec<Peer>, QmpError> {
    let command = "info network";
    let answer = client.execute("human-monitor-command", json!({ "command-line": command }))?;
    parse(answer.as_str().unwrap_or_default())
        .map_err(|line| QmpError::unexpected(command, line.to_owned()))
}

/// `n0: index=0,type=user,net=…`, possibly after ` \ `, or after the port
/// of a hub (` \ h0: n0: index=…`). Other lines do not describe backends: names of
/// hubs, their ports, filters. The error is the line of a backend without a type.
fn parse(text: &str) -> Result<Vec<Peer>, &str> {
    let mut peers = Vec::new();
    for line in text.lines() {
        let line = line.trim().trim_start_matches('\\').trim_start();
        let Some((name, rest)) = line.split_once(": index=") else {
            continue;
        };
        let kind = rest.split(',').find_map(|part| part.strip_prefix("type="));
        peers.push(Peer {
            name: name.to_owned(),
            kind: kind.ok_or(line)?.to_owned(),
        });
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_backend_without_a_type_is_not_passed_over() {
        assert_eq!(
            parse("n0: index=0,kind=odd\r\n"),
            Err("n0: index=0,kind=odd")
        );
    }
}
