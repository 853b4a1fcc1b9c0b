//! Names of images that QEMU itself reaches over a network, by what it calls them.
//!
//! QEMU names a node by a URL, or by its options as `json:`. Two nodes with the same name are one
//! image if that names a server: not a socket or an address of the own host, and not a pool whose
//! cluster a file of the host names.

use std::collections::BTreeMap;

use hikkoshi_wire::ImageName;
use serde_json::{Map, Value};

use super::shared::is_own_host;

/// Protocols whose names are compared.
const PROTOCOLS: [&str; 5] = ["gluster", "iscsi", "nbd", "nfs", "rbd"];

/// Options that say which image it is. Others say who asks, and how.
const NAMING: [&str; 14] = [
    "export",
    "host",
    "image",
    "lun",
    "namespace",
    "path",
    "pool",
    "port",
    "portal",
    "server",
    "snapshot",
    "target",
    "transport",
    "volume",
];

/// The protocol by which QEMU reaches the image that it describes so. `None`: it is a file, or that
/// is not known.
pub(super) fn protocol(described: &str) -> Option<String> {
    match options(described) {
        Some(options) => Some(options.get("driver")?.as_str()?.to_owned()),
        None => {
            let (scheme, _) = described.split_once(':')?;
            // `nbd+unix`, `gluster+tcp`.
            let scheme = scheme.split('+').next().unwrap_or_default();
            (!scheme.is_empty() && !scheme.contains('/')).then(|| scheme.to_owned())
        }
    }
}

/// The name of the image that QEMU describes so. `None`: its name does not say which server has it.
pub(super) fn name_of(described: &str) -> Option<ImageName> {
    let protocol = protocol(described)?;
    if protocol.starts_with("null-") {
        // It keeps nothing.
        return Some(unique(protocol));
    }
    if !PROTOCOLS.contains(&&*protocol) {
        return None;
    }
    match options(described) {
        Some(options) => by_options(&protocol, &options),
        None => by_url(&protocol, described),
    }
}

fn unique(name: String) -> ImageName {
    ImageName {
        name: name.into(),
        unique: true,
    }
}

/// The options of the node that reaches the image: below its formats and filters.
fn options(described: &str) -> Option<Map<String, Value>> {
    let options = serde_json::from_str(described.strip_prefix("json:")?).ok()?;
    let Value::Object(mut options) = options else {
        return None;
    };
    while let Some(Value::Object(file)) = options.remove("file") {
        options = file;
    }
    Some(options)
}

/// `scheme://user@server:port/image`.
fn by_url(protocol: &str, url: &str) -> Option<ImageName> {
    let (scheme, rest) = url.split_once("://")?;
    // Neither names nor passwords of users.
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, image) = rest.split_at(end);
    let server = authority
        .rsplit_once('@')
        .map_or(authority, |(_, server)| server);
    let is_socket = scheme.ends_with("+unix") || url.contains("socket=");
    if protocol == "rbd" || is_socket || is_own_host(server) {
        return None;
    }
    let image = image.split('?').next().unwrap_or_default();
    Some(unique(format!("{protocol}://{server}{image}")))
}

fn by_options(protocol: &str, options: &Map<String, Value>) -> Option<ImageName> {
    let mut found = BTreeMap::new();
    flatten("", &Value::Object(options.clone()), &mut found);
    found.retain(|key, _| {
        key.split('.')
            .next()
            .is_some_and(|first| NAMING.contains(&first))
    });
    let mut hosts = found.iter().filter(|(key, _)| {
        let last = key.rsplit('.').next().unwrap_or_default();
        last == "host" || last == "portal"
    });
    let is_socket = found.iter().any(|(key, value)| {
        let last = key.rsplit('.').next().unwrap_or_default();
        last == "type" && value != "inet" || key.starts_with("server.") && last == "path"
    });
    let has_host = hosts.clone().next().is_some();
    if is_socket || !has_host || hosts.any(|(_, host)| is_own_host(host)) {
        return None;
    }
    let parts: Vec<_> = found
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let name = format!("{protocol}:{}", parts.join(","));
    name.bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then(|| unique(name))
}

/// Options of options, by names with dots, as QEMU accepts them.
fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let name = |key: &str| match prefix {
        "" => key.to_owned(),
        prefix => format!("{prefix}.{key}"),
    };
    match value {
        Value::Object(options) => {
            for (key, value) in options {
                flatten(&name(key), value, into);
            }
        }
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                flatten(&name(&number.to_string()), value, into);
            }
        }
        Value::String(text) => drop(into.insert(prefix.to_owned(), text.clone())),
        other => drop(into.insert(prefix.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(described: &str) -> Option<String> {
        name_of(described).map(|name| name.name.into())
    }

    #[test]
    fn an_image_of_a_server_has_the_same_name_on_each_host() {
        for (described, expected) in [
            ("nbd://store:10809/disk", "nbd://store:10809/disk"),
            (
                "iscsi://me%secret@10.0.0.9/iqn.2026-01.org:a/1",
                "iscsi://10.0.0.9/iqn.2026-01.org:a/1",
            ),
            (
                "gluster+tcp://store/volume/a.raw?debug=4",
                "gluster://store/volume/a.raw",
            ),
            (
                r#"json:{"driver":"raw","file":{"driver":"nbd","export":"d","tls-creds":"t",
                    "server":{"type":"inet","host":"store","port":"10809"}}}"#,
                "nbd:export=d,server.host=store,server.port=10809,server.type=inet",
            ),
            (
                r#"json:{"driver":"nbd","export":"d","server.host":"store","server.port":"10809"}"#,
                "nbd:export=d,server.host=store,server.port=10809",
            ),
            (
                r#"json:{"driver":"qcow2","file":{"driver":"rbd","pool":"p","image":"i",
                    "user":"admin","key-secret":"k","server":[{"host":"mon1","port":"3300"}]}}"#,
                "rbd:image=i,pool=p,server.0.host=mon1,server.0.port=3300",
            ),
            (
                r#"json:{"driver":"iscsi","portal":"10.0.0.9","target":"iqn.2026-01.org:a","lun":1,
                    "transport":"tcp","initiator-name":"iqn.host"}"#,
                "iscsi:lun=1,portal=10.0.0.9,target=iqn.2026-01.org:a,transport=tcp",
            ),
            (r#"json:{"driver":"null-co","size":1}"#, "null-co"),
            ("null-co://", "null-co"),
        ] {
            assert_eq!(name(described).as_deref(), Some(expected), "{described}");
            assert!(name_of(described).unwrap().unique);
        }
    }

    #[test]
    fn what_each_host_has_of_its_own_is_no_name() {
        for described in [
            "/images/a.raw",
            "a.raw",
            "nbd://localhost:10809/disk",
            "nbd://127.0.0.1/disk",
            "nbd://[::1]:10809/disk",
            "nbd+unix:///disk?socket=/run/nbd",
            "nbd:unix:/run/nbd",
            r#"json:{"driver":"nbd","server":{"type":"unix","path":"/run/nbd"}}"#,
            r#"json:{"driver":"nbd","server.path":"/run/nbd","server.host":"store"}"#,
            r#"json:{"driver":"nbd","host":"127.0.0.1","port":"1"}"#,
            // Each cluster has such a pool, and a file of the host says which cluster it is.
            "rbd:rbd/vm-100-disk-0:conf=/etc/ceph/ceph.conf",
            r#"json:{"driver":"rbd","pool":"rbd","image":"vm-100-disk-0","conf":"/etc/ceph.conf"}"#,
            // QEMU has cut it off.
            r#"json:{"driver":"nbd","server.ho"#,
            "ssh://host/a.raw",
        ] {
            assert_eq!(name(described), None, "{described}");
        }
        for (described, expected) in [
            ("/images/a:b.raw", None),
            ("nbd+unix:///disk?socket=/run/nbd", Some("nbd")),
            ("rbd:rbd/disk", Some("rbd")),
            (
                r#"json:{"driver":"qcow2","file":{"driver":"ssh"}}"#,
                Some("ssh"),
            ),
        ] {
            assert_eq!(protocol(described).as_deref(), expected, "{described}");
        }
    }
}
