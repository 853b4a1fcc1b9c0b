//! Network backends and block nodes that were added later, as far as QEMU reports them.

use serde_json::{Value, json};

use crate::process::options::join;
use crate::qmp::human_monitor::human;
use crate::qmp::{Client, QmpError};

/// The longest chain of block nodes.
const MAX_NODES: usize = 64;

/// The value of `-netdev` for the backend `id`; `None` if QEMU does not report enough.
pub(super) fn netdev(client: &mut Client, id: &str) -> Result<Option<String>, QmpError> {
    Ok(parse_netdev(&human(client, "info network")?, id))
}

/// From ` \ n0: index=0,type=tap,ifname=tap0,script=no,downscript=no`, a line for each queue.
fn parse_netdev(text: &str, id: &str) -> Option<String> {
    let line = |line: &str| {
        let line = line.trim().trim_start_matches('\\').trim_start();
        let (name, rest) = line.split_once(": index=")?;
        (name == id).then(|| rest.to_owned())
    };
    let lines: Vec<_> = text.lines().filter_map(line).collect();
    let fields = lines.first()?;
    let field = |key: &str| {
        let mut fields = fields.split(',');
        fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
    };
    let kind = field("type")?;
    let mut parts = vec![kind.to_owned(), format!("id={id}")];
    let keys: &[&str] = match kind {
        // Without its name it was given by a descriptor, or opened by a helper.
        "tap" if field("ifname").is_some() => &["ifname", "script", "downscript"],
        "user" => &["restrict"],
        _ => return None,
    };
    for key in keys {
        parts.extend(field(key).map(|value| format!("{key}={value}")));
    }
    if lines.len() > 1 {
        parts.push(format!("queues={}", lines.len()));
    }
    Some(join(&parts))
}

/// The name of a block node on a command line: QEMU's own names (`#block123`) are not allowed
/// there.
pub(super) fn node_name(name: &str) -> String {
    match name.strip_prefix('#') {
        Some(rest) => format!("node-{rest}"),
        None => name.to_owned(),
    }
}

/// The values of `-blockdev` for the node `name` and those below it, which come first; `None` if
/// QEMU does not report enough. `is_known`: whether there is an option for a node already.
pub(super) fn blockdevs(
    client: &mut Client,
    name: &str,
    is_known: impl Fn(&str) -> bool,
) -> Result<Option<Vec<String>>, QmpError> {
    let nodes = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
    let graph = match client.execute("x-debug-query-block-graph", json!({})) {
        Ok(graph) => graph,
        // Not a stable command.
        Err(error) if error.is_refusal() => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(chain(&nodes, &graph, name, is_known))
}

fn chain(
    nodes: &Value,
    graph: &Value,
    name: &str,
    is_known: impl Fn(&str) -> bool,
) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut next = name.to_owned();
    loop {
        let node = nodes
            .as_array()?
            .iter()
            .find(|node| node.get("node-name").and_then(Value::as_str) == Some(&next))?;
        let driver = node.get("drv")?.as_str()?;
        let mut parts = vec![
            format!("driver={driver}"),
            format!("node-name={}", node_name(&next)),
        ];
        let child = match driver {
            "file" | "host_device" | "host_cdrom" => {
                let file = node.get("file")?.as_str()?;
                if file.starts_with("json:") {
                    return None;
                }
                parts.push(format!("filename={file}"));
                None
            }
            "raw" | "qcow2" => {
                let Children { file, backing } = Children::of_parent(graph, &next)?;
                parts.push(format!("file={}", node_name(&file)));
                // Others are opened as the image names them.
                let backing = backing.filter(|backing| is_known(backing));
                parts.extend(backing.map(|backing| format!("backing={backing}")));
                Some(file)
            }
            _ => return None,
        };
        let flag = |value: Option<&Value>| value.and_then(Value::as_bool) == Some(true);
        if flag(node.get("ro")) {
            parts.push("read-only=on".to_owned());
        }
        for key in ["direct", "no-flush"] {
            if flag(node.get("cache").and_then(|cache| cache.get(key))) {
                parts.push(format!("cache.{key}=on"));
            }
        }
        // The node below has to exist first.
        found.insert(0, join(&parts));
        match child {
            Some(child) if found.len() < MAX_NODES => next = child,
            Some(_) => return None,
            None => return Some(found),
        }
    }
}

/// The nodes that a format reads from.
struct Children {
    /// Its image.
    file: String,
    backing: Option<String>,
}

impl Children {
    /// Those of `parent`. `None` if it also uses others.
    fn of_parent(graph: &Value, parent: &str) -> Option<Self> {
        let nodes = graph.get("nodes")?.as_array()?;
        let number = |name: &str| {
            let is = |node: &&Value| {
                node.get("type").and_then(Value::as_str) == Some("block-driver")
                    && node.get("name").and_then(Value::as_str) == Some(name)
            };
            nodes.iter().find(is)?.get("id")?.as_u64()
        };
        let parent = number(parent)?;
        let edges = graph.get("edges")?.as_array()?.iter();
        let mut edges =
            edges.filter(|edge| edge.get("parent").and_then(Value::as_u64) == Some(parent));
        let named =
            |edge: &Value, name: &str| edge.get("name").and_then(Value::as_str) == Some(name);
        let child = |name: &str| {
            let edge = edges.clone().find(|edge| named(edge, name))?;
            let child = edge.get("child")?.as_u64()?;
            let mut nodes = nodes.iter();
            let node = nodes.find(|node| node.get("id").and_then(Value::as_u64) == Some(child))?;
            Some(node.get("name")?.as_str()?.to_owned())
        };
        let (file, backing) = (child("file")?, child("backing"));
        if edges.any(|edge| !named(edge, "file") && !named(edge, "backing")) {
            return None;
        }
        Some(Self { file, backing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_backends_that_qemu_reports() {
        let text = "net0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \
            \\ n0: index=0,type=tap,ifname=tap0,script=no,downscript=no\r\n\
            net0: index=1,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \
            \\ n0: index=1,type=tap,ifname=tap0,script=no,downscript=no\r\n\
            n1: index=0,type=user,net=10.0.2.0,restrict=on\r\n\
            n2: index=0,type=tap,fd=31\r\n\
            n3: index=0,type=socket,listen\r\n";
        let netdev = |id| parse_netdev(text, id);
        assert_eq!(
            netdev("n0").as_deref(),
            Some("tap,id=n0,ifname=tap0,script=no,downscript=no,queues=2")
        );
        assert_eq!(netdev("n1").as_deref(), Some("user,id=n1,restrict=on"));
        assert_eq!(
            [netdev("n2"), netdev("n3"), netdev("n9")],
            [None, None, None]
        );
    }

    #[test]
    fn block_nodes_come_after_those_that_they_read() {
        let node = |name: &str, driver: &str, file: &str, direct: bool| {
            json!({ "node-name": name, "drv": driver, "file": file, "ro": false,
                    "cache": { "direct": direct, "no-flush": false } })
        };
        let nodes = json!([
            node("image", "qcow2", "/a,b.qcow2", true),
            node("proto", "file", "/a,b.qcow2", true),
            node("odd", "nbd", "nbd://x", false),
            node("split", "qcow2", "/c", false),
        ]);
        let names = ["image", "proto", "base", "split", "data"];
        let listed = names.iter().zip(1..);
        let listed: Vec<_> = listed
            .map(|(name, id)| json!({ "id": id, "type": "block-driver", "name": name }))
            .collect();
        let edge = |parent, name, child| json!({ "parent": parent, "name": name, "child": child });
        let graph = json!({ "nodes": listed, "edges": [
            edge(1, "backing", 3), edge(1, "file", 2), edge(4, "file", 2), edge(4, "data-file", 5),
        ]});
        assert_eq!(
            chain(&nodes, &graph, "image", |_| false).unwrap(),
            [
                "driver=file,node-name=proto,filename=/a,,b.qcow2,cache.direct=on",
                "driver=qcow2,node-name=image,file=proto,cache.direct=on"
            ]
        );
        let over_base = chain(&nodes, &graph, "image", |node| node == "base").unwrap();
        assert_eq!(
            over_base[1],
            "driver=qcow2,node-name=image,file=proto,backing=base,cache.direct=on"
        );
        assert_eq!(node_name("#block123"), "node-block123");
        for name in ["odd", "split", "none"] {
            assert_eq!(chain(&nodes, &graph, name, |_| true), None, "{name}");
        }
    }
}
